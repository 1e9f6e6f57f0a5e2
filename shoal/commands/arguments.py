"""Command-line words to typed arguments; a mistake becomes one sentence."""

import contextlib
import dataclasses
import functools
import io
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from shoal.errors import UserError, closest, nearest
from shoal.system.streams import put, word_sentences

Arguments = TypeVar("Arguments")
Settings = TypeVar("Settings")


def parse(
    kind: type[Arguments],
    command: Callable[[list[str]], int],
    argv: list[str],
    default: Arguments | None = None,
    meaning_of_none: Mapping[str, str] = {},
) -> Arguments:
    """The arguments of a command; its docstring is the help text, with examples. A mistake becomes one sentence.

    Dataclasses within `kind` are groups of options. `meaning_of_none` are the values that settings have by default,
    where the code says None.
    """
    import tyro

    settings = list(settings_in(kind))
    word_sentences(functools.partial(with_options, settings=settings))
    name = command.__name__.replace("_", " ")
    text, *examples = (command.__doc__ or "").strip().splitlines()
    description = "\n".join([text, "", "Examples:", *(f"  {line.strip()}" for line in examples if line.strip())])
    complaint, answer = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(answer), descriptions(meaning_of_none):
            before: dict[str, Any] = {} if default is None else {"default": default}
            config = (tyro.conf.OmitArgPrefixes,)
            words = with_lists(argv, kind, name)
            return tyro.cli(kind, prog=f"shoal {name}", description=description, args=words, config=config, **before)
    except SystemExit as stop:
        if stop.code in (0, None):
            put(answer.getvalue())
            raise
        raise UserError(one_sentence(complaint.getvalue(), name, argv, settings)) from None


@contextlib.contextmanager
def descriptions(meaning_of_none: Mapping[str, str]) -> Iterator[None]:
    """Let tyro join the lines of an option's docstring, and say what None means.

    It would keep the breaks of indented lines in --help.
    """
    import docstring_parser

    parse = docstring_parser.parse_from_object

    def parsed(*arguments: Any, **named: Any) -> docstring_parser.Docstring:
        docstring = parse(*arguments, **named)
        for setting in docstring.params:
            setting.description = " ".join((setting.description or "").split())
            if value := meaning_of_none.get(setting.arg_name):
                setting.description += f" None: {value}."
        return docstring

    docstring_parser.parse_from_object = parsed
    try:
        yield
    finally:
        docstring_parser.parse_from_object = parse


def option(setting: str) -> str:
    """The option for a setting: that for `update_every` is --update-every."""
    return "--" + setting.replace("_", "-")


def with_options(sentence: str, settings: Collection[str]) -> str:
    """A sentence of the library with these settings, which stand in backquotes, as the options of a command.

    `tau` becomes --tau, `implementation=reference` becomes --implementation reference and `stagger=False` --no-stagger.
    """

    def as_option(match: re.Match[str]) -> str:
        setting, value = match.groups()
        if setting not in settings:
            return match[0]
        if value in ("True", "False"):
            return option(setting if value == "True" else f"no_{setting}")
        return f"{option(setting)} {value}" if value else option(setting)

    return re.sub("`([a-z]\\w*)(?:=([^`]*))?`", as_option, sentence)


def part(command: Any, kind: type[Arguments]) -> Arguments:
    """The library's options among those of a command that adds its own to them."""
    names = vars(command).keys() & set(settings_in(kind))
    return kind(**{name: getattr(command, name) for name in names})


def settings_in(kind: type) -> Iterator[str]:
    """The settings of a dataclass, and of those within it, that have an option."""
    return (field.name for field in fields_in(kind) if not is_positional(field))


def fields_in(kind: type) -> Iterator[dataclasses.Field[Any]]:
    """The fields of a dataclass, and of those within it."""
    for field in dataclasses.fields(kind):
        if isinstance(field.type, type) and dataclasses.is_dataclass(field.type):
            yield from fields_in(field.type)
        else:
            yield field


def is_positional(field: dataclasses.Field[Any]) -> bool:
    """Whether a field is given without the name of an option."""
    import tyro

    return tyro.conf.Positional in get_args(field.type)


def with_lists(argv: list[str], kind: type, command: str) -> list[str]:
    """The words with lists as the parser takes them, whether they were given as `8,4` or as `8 4`.

    If the command's own argument is nowhere else, it ends a list of words: `shoal quantize --bits 8 fp16 RUN`.
    """
    types = {option(field.name): field.type for field in fields_in(kind) if not is_positional(field)}
    alone, *groups = option_groups(argv, types)
    lists = []
    for group in groups:
        of_option = types.get(group[0].replace("--no-", "--"))
        length = 2  # the option and its value
        if item := list_item(of_option):
            length += len([*itertools.takewhile(item.fullmatch, group[2:])])
            lists.append((group, item))
        elif of_option is bool or "=" in group[0]:
            length = 1
        elif of_option is None:  # unknown
            length = len(group)
        alone += group[length:]
        del group[length:]
    argument = next((field for field in fields_in(kind) if is_positional(field) and not list_item(field.type)), None)
    if lists and not alone and argument is not None:  # the parser would take the last item of a list
        ends = [group for group, item in lists if len(group) > 2 and item is WORD and not NUMBER.fullmatch(group[-1])]
        if ends:
            alone = [ends[-1].pop()]
        elif argument.default is not dataclasses.MISSING:
            alone = [argument.default]
        else:
            groups = [group for group in groups if not any(group is words for words, _ in lists)]
    for group, _ in lists:
        if len(group) == 1:
            raise UserError(f"{group[0]} needs a value (shoal {command} --help lists all options).")
        if re.search(r",\s*,", " ".join(group[1:])):
            raise UserError(f"{group[0]} has nothing between two commas (shoal {command} --help lists all options).")
        group[1:] = [part.strip() for word in group[1:] for part in COMMA.split(word) if part.strip()]
    return [*alone, *itertools.chain(*groups)]


def option_groups(argv: list[str], types: Mapping[str, Any]) -> list[list[str]]:
    """The words in front of the first option, then each option with the words behind it."""
    groups: list[list[str]] = [[]]
    for word in argv:
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if equals and list_item(types.get(name)):
            groups.append([name, value])
        elif re.match("--?[A-Za-z]", word):
            groups.append([name if name in types and not equals else word])
        else:
            groups[-1].append(word)
    return groups


COMMA = re.compile(r",(?!\s*\w+=)")
"""Separates the items of a list; one before a setting belongs to its item, as in `E5M2:5+E6M5, order=pairwise`."""
WORD, NUMBER = re.compile(".*"), re.compile("[0-9.,e+-]*")
"""What an item of a list looks like, which tells how many of the words behind an option belong to it."""


def list_item(kind: Any) -> re.Pattern[str] | None:
    """What an item of an option's list looks like, if its type is a tuple, perhaps an optional or annotated one."""
    for part in (kind, *get_args(kind)):
        if get_origin(part) is tuple:
            return NUMBER if {int, float} & {*get_args(part)} else WORD
    return None


def renamed(argv: list[str], aliases: Mapping[str, str]) -> list[str]:
    """The same words with options under their own names."""
    parts = (word.partition("=") for word in argv)
    return [aliases.get(word.replace("_", "-"), word) + equals + value for word, equals, value in parts]


def one_sentence(box: str, command: str, argv: list[str], settings: list[str]) -> str:
    """The gist of the parser's framed message; a wrong word may be taken for one of the settings."""
    lines = [line.strip("│|╰╯ ") for line in box.splitlines()]
    body = itertools.dropwhile(is_rule, lines[1:])  # behind the title
    gist = list(itertools.takewhile(lambda line: not is_rule(line), body))
    sentence = " ".join(gist).rstrip(". ") or "The arguments could not be parsed"
    _, unrecognized, wrong = sentence.partition("Unrecognized options: ")
    words = wrong.split(", ") if unrecognized else []
    if re.match("Missing (value for argument '[^-]|from )", sentence):  # perhaps its value went to a wrong option
        names = {word: word.partition("=")[0].replace("-", "_").lstrip("_") for word in argv if word.startswith("--")}
        words = [word for word, name in names.items() if name.removeprefix("no_") not in settings]
    meant = None
    if words:
        words = [word for word in words if re.match("-+[A-Za-z]", word)] or words  # without the options' values
        sentence = f"Unrecognized options: {', '.join(words)}"
        meant = next((option(setting) for word in words if (setting := nearest(word, settings))), None)
    for pattern, plain in PLAIN_WORDS:
        sentence = re.sub(pattern, plain, sentence)
    if choice := re.search("'([^']*)' is not one of (.*)$", sentence):
        choices = re.findall("'([^']*)'", choice[2])
        if "None" in choices:  # of a setting that may be absent the parser lists a set, in any order
            choices = sorted(set(choices) - {"None"})
            sentence = sentence[: choice.start(2)] + ", ".join(map(repr, choices))
        meant = closest(choice[1], choices)
    hint = f"; perhaps you meant {meant}" if meant else ""
    return f"{sentence[0].upper()}{sentence[1:]}{hint} (shoal {command} --help lists all options)."


PLAIN_WORDS = (  # what the parser says, and what a person would
    (r"^Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)$", r"\1 \2 is not a whole number"),
    (r"^Error parsing (\S+): could not convert string to float: (.*)$", r"\1 \2 is not a number"),
    (r"^Error parsing (\S+): no type matching \{None\}\|INT .* from \[(.*)\]$", r"\1 \2 is not a whole number or None"),
    (r"^Error parsing (\S+): no type matching \{None\}\|FLOAT .* from \[(.*)\]$", r"\1 \2 is not a number or None"),
    (
        r"^Error parsing (\S+): (?:Could not find .*:|no type matching .*\{\[INT .* from) \[(.*)\]$",
        r"\1 \2 is not a list of whole numbers such as 64,32 or 64 32",
    ),
    (r"^invalid choice (.*) for argument '(--\S+)'\. Expected one of \((.*?),?\)$", r"\2 \1 is not one of \3"),
    (r"^invalid choice (.*) for argument '.*'\. Expected one of \((.*?),?\)$", r"\1 is not one of \2"),
    (r"^Missing value for argument '(\S+)'\. Expected 1 values$", r"\1 needs a value"),
    (r"^Missing from .*?: (\S+) (.*?)\.? \(required\)$", r"\1 is missing: \2"),
)


def is_rule(line: str) -> bool:
    """Whether a line of the parser's message is empty or only drawn."""
    return not line.strip("─-=+ ")


def folder_after_resume(argv: list[str]) -> list[str]:
    """`--resume FOLDER` is short for `--resume --out FOLDER`."""
    argv = [part for word in argv for part in (word.split("=", 1) if word.startswith("--resume=") else [word])]
    if "--resume" not in argv:
        return argv
    after, named = argv.index("--resume") + 1, any(word.partition("=")[0] == "--out" for word in argv)
    if after < len(argv) and not argv[after].startswith("-"):
        if named:
            raise UserError("--resume FOLDER and --out name the run folder twice; leave one of them out.")
        return [*argv[:after], "--out", *argv[after:]]
    if not named and "--help" not in argv:
        raise UserError("--resume needs a run folder, e.g. --resume runs/hunt.")
    return argv


def stored_settings(argv: list[str], read: Callable[[Path], Settings]) -> Settings | None:
    """The settings of the run to resume, which `read` finds in its folder, if this is a resume."""
    if "--resume" not in argv:
        return None
    folder = next((argv[k + 1] for k, word in enumerate(argv[:-1]) if word == "--out"), None)
    folder = next((word.removeprefix("--out=") for word in argv if word.startswith("--out=")), folder)
    return None if folder is None else read(Path(folder))


def is_given(argv: list[str], name: str) -> bool:
    """Whether the option for this setting is on the command line."""
    words = (option(name), option(f"no_{name}"))  # the second switches off what is on or off
    return any(word.partition("=")[0].replace("_", "-") in words for word in argv)


def overview(title: str, commands: Mapping[str, Callable[[list[str]], int]], before: str = "") -> str:
    """The text of `shoal --help`, or of a group of commands whose names have a word before them."""
    lines = [title, ""]
    for name, command in commands.items():
        text, *examples = [line.strip() for line in (command.__doc__ or "").strip().splitlines() if line.strip()]
        lines += [f"  shoal {before}{name:<10} {text}", *(f"      {example}" for example in examples[:1])]
    return "\n".join([*lines, "", f"`shoal {before}COMMAND --help` lists all options of a command."])
