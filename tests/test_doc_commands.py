"""Every command in the documents and help texts is one that the command line takes."""

import importlib
import itertools
import pkgutil

import pytest

import shoal.commands
from shoal.bench import BENCHES
from shoal.cli import COMMANDS
from shoal.errors import UserError, check_choice
from shoal_papers import STUDIES
from tests.doc_commands import all_commands, needed, page_commands

BY_DOCUMENT = {
    document: list(commands)
    for document, commands in itertools.groupby(all_commands(), lambda command: command.document)
    if document != "docs/extending.md"  # names parts that the reader is about to add
}


class Parsed(Exception):
    """Parsing succeeded; the first argument has the settings."""


@pytest.fixture(scope="module")
def parsed():
    """A function that gives the settings of a command line, or raises what the command would."""
    with pytest.MonkeyPatch.context() as patch:
        for found in pkgutil.iter_modules(shoal.commands.__path__):
            module = importlib.import_module(f"shoal.commands.{found.name}")
            if parse := getattr(module, "parse", None):

                def stop(*words, parse=parse, **named):
                    raise Parsed(parse(*words, **named))

                patch.setattr(module, "parse", stop)
            if hasattr(module, "stored_settings"):
                patch.setattr(module, "stored_settings", lambda argv, read: None)  # of a run that is not there

        def settings(words):
            with pytest.raises(Parsed) as stopped:
                COMMANDS[words[0]](words[1:])
            return stopped.value.args[0]

        yield settings


def check(words, parsed):
    """Raise what the command line would say at once about these words."""
    settings = parsed(words)
    if words[0] == "train":
        settings.config().checked()
    if words[0] == "study" and not settings.list:
        check_choice("The study", settings.name, list(STUDIES))
    if words[0] == "bench":
        check_choice("The bench", settings.name, [*BENCHES, "all"])
    if words[:2] == ["mac", "train"]:
        settings.checked()


@pytest.mark.parametrize("document", BY_DOCUMENT)
def test_documented_commands_parse(document, parsed):
    for command in BY_DOCUMENT[document]:
        words = command.words
        left_open = any(word == "…" or (word.isalpha() and word.isupper()) for word in words)  # shoal COMMAND --help
        if not command.shown and (left_open or words in (["bench"], ["mac"])):
            continue
        try:
            check(words, parsed)
        except UserError as error:
            assert not command.shown and "is missing: " in str(error), f"{command.text}: {error}"
            check([*words, "what-is-missing"], parsed)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("train --episods 3", "Unrecognized options"),
        ("train --batch many", "is not a whole number"),
        ("train --discount 2", "discount"),
        ("study qatt", "not known"),
        ("bench updates", "not known"),
        ("mac train --epochs -1", "epochs"),
        ("evaluate", "POLICY is missing"),
    ],
)
def test_wrong_commands_are_detected(words, problem, parsed):
    with pytest.raises(UserError, match=problem):
        check(words.split(), parsed)


PAGE = """# Title

    shoal train --episodes 3 \\
        --seed 1                # needs sb3

## Several machines

    pip install -c constraints.txt -e ".[cluster]"
    shoal train --cluster local

Try `shoal bench
env` as well; that needs the extras `control` and `box2d`.

## Commands

| command | what it does |
|---|---|
| `shoal mac train` | learns; needs `data` |
"""


def test_commands_found_on_a_page():
    found = {command.text: (sorted(command.extras), command.shown) for command in page_commands("page.md", PAGE)}
    assert found == {
        "shoal train --episodes 3 --seed 1": (["sb3"], True),
        "shoal train --cluster local": (["box2d", "cluster", "control"], True),
        "shoal mac train": (["data"], True),
        "shoal bench env": (["box2d", "cluster", "control"], False),
    }
    assert needed("needs sb3, data") == {"sb3", "data"} and not needed("needs databases; needs no sb3")
