"""Lists on the command line: with commas or as several words, in any place."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import tyro

from shoal.commands.arguments import parse, with_options
from shoal.errors import UserError
from shoal.system.streams import answers_only, say
from shoal.training.config import TrainConfig


def command(argv):
    """A command.

    shoal command RUN
    """
    del argv


@dataclass(frozen=True)
class Group:
    hidden: tuple[int, ...] | None = None
    low: float = 0.0


@dataclass(frozen=True)
class Everything:
    run: Annotated[str, tyro.conf.Positional]
    group: Group = Group()
    bits: tuple[str, ...] = ("8",)
    what: tuple[str, ...] = ("weights",)
    agents: tuple[int, ...] = ()
    seeds: tuple[str, ...] | None = None
    correct: bool = True


@dataclass(frozen=True)
class Units:
    units: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    inner: tuple[int, ...] = (256,)
    schemes: tuple[str, ...] = ()


def given(line, kind: Any = Everything):
    return parse(kind, command, line.split())


@pytest.mark.parametrize(
    "line",
    [
        "RUN --hidden 64 32 --bits 8,fp16 --agents 3,6 --seeds 0-2,5",
        "RUN --hidden 64,32 --bits 8 fp16 --agents 3 6 --seeds 0-2 5",
        "--hidden=64,32 --bits=8,fp16 --agents=3,6 --seeds=0-2,5 RUN",
        "--agents 3, 6 RUN --hidden 64, 32 --bits 8, fp16 --seeds 0-2 5",
        "--hidden 64 32 --agents 3 6 --seeds 0-2 5 --bits 8 fp16 RUN",
        "--hidden 64 32 --bits 8 fp16 RUN --agents 3 6 --seeds 0-2 5",
        "--correct RUN --bits 8 fp16 --hidden 64 32 --agents 3 6 --seeds 0-2 5",
        "--what weights RUN --bits 8,fp16 --hidden 64 32 --agents 3 6 --seeds 0-2 5",
    ],
)
def test_lists_with_commas_or_as_several_words(line):
    found = given(line)
    assert (found.run, found.group.hidden, found.what) == ("RUN", (64, 32), ("weights",))
    assert (found.bits, found.agents, found.seeds) == (("8", "fp16"), (3, 6), ("0-2", "5"))


def test_words_outside_lists_are_unchanged():
    found = given("--low=-1e3 --no-correct RUN")
    assert (found.group.low, found.correct, found.run, found.bits) == (-1000.0, False, "RUN", ("8",))
    assert given("--bits 8 E4M3 --no-correct RUN").bits == ("8", "E4M3")


def test_further_arguments_end_a_list_of_numbers():
    found = given("--inner 256 1024 E4M3 E5M2", Units)
    assert (found.inner, found.units) == ((256, 1024), ("E4M3", "E5M2"))
    assert given("--inner 256 1024", Units) == Units((), (256, 1024))
    assert given("--schemes bf16 E4M3,order=pairwise", Units).schemes == ("bf16", "E4M3,order=pairwise")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("RUN --hidden 64,x", "--hidden '64', 'x' is not a list of whole numbers such as 64,32 or 64 32"),
        ("RUN --bitts 8 4", "Unrecognized options: --bitts; perhaps you meant --bits"),
        ("--bits 8", "STR is missing"),
        ("RUN --bits", "--bits needs a value"),
    ],
)
def test_wrong_lists_are_refused(line, sentence):
    with pytest.raises(UserError, match=sentence):
        given(line)


def test_commands_take_both_forms_of_lists(shoal, tmp_path):
    for words in ("--hidden 8,4 --critic-hidden 8 4", "--hidden 8 4 --critic-hidden=8,4"):
        code, _, err = shoal("train", *words.split(), "--agents", "0", "--out", tmp_path / "run")
        assert code == 2 and "--agents is 0" in err
    for command in ("bench nothing --agents 3 6", "profile --agents 3 6 --algorithm maddpg nothing --out x"):
        code, _, err = shoal(*command.split())
        assert code == 2 and "'nothing' is not known" in err, err


@pytest.mark.parametrize(
    ("sentence", "worded"),
    [
        ("`low` is 3, but `update_every` is 0.", "--low is 3, but --update-every is 0."),
        ("`what=weights` needs `correct=False`.", "--what weights needs --no-correct."),
        ("Leave out `correct=True`.", "Leave out --correct."),
        ("`tau` is 3; `import torch` takes `low and high`.", "`tau` is 3; `import torch` takes `low and high`."),
        ("'low' is not `lows`.", "'low' is not `lows`."),
    ],
)
def test_settings_in_messages_become_options_of_the_command(sentence, worded):
    assert with_options(sentence, ["low", "update_every", "what", "correct"]) == worded


def test_messages_of_a_command_have_its_options_and_those_of_python_have_names(shoal, capsys):
    code, _, err = shoal("train", "--agents", "0")
    assert code == 2 and "--agents is 0, but must be from 1 to 1024." in err
    with pytest.raises(UserError, match=r"^`tau` is 'x', but must be a finite number"):
        TrainConfig(tau="x").checked()
    with answers_only():
        say("`low` is 3.")
    assert capsys.readouterr().err.endswith("`low` is 3.\n")


def test_optional_arguments_are_in_the_help_and_take_nothing_from_lists(shoal, capsys):
    for name, argument in (("bench", "BENCH"), ("study", "STUDY")):
        with pytest.raises(SystemExit):
            shoal(name, "--help")
        assert argument in capsys.readouterr().out.partition("Examples")[0]
    code, _, err = shoal("bench", "--agents", "3", "6")
    assert code == 2 and "A bench must be named" in err
