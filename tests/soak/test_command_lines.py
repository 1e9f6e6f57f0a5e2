"""Command lines that nobody should type: each ends by itself or at SIGTERM, with an answer or one sentence.

The options are those of the commands' own dataclasses, so that a new option is tried without a word here.
"""

import contextlib
import dataclasses
import shutil
import typing
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

import pytest
import tyro

from shoal import cli
from shoal.commands import mac
from tests.soak.conftest import RUN
from tests.soak.harness import check_ended, check_json

FULL = 5_000
SECONDS, PATIENCE = 60, 2.0
"""A command has so long; one that was asked for much work is sent SIGTERM after the second, and still has the first."""

FOLDERS = ("run", "stopped", "bare", "empty", "profile")
FILES = ("policy.onnx", "model.zip", "notes.txt")
PLACES = (
    *FOLDERS, *FILES, "nowhere", "run/config.json", "run/checkpoints", ".", "", "a" * 300, "/dev/null", "x/y.onnx",
)  # fmt: skip
UNITS = (
    "E5M2:5+E6M5",
    "E5M2:5+Q8.13",
    "E4M3*E5M2:5+E6M9, order=pairwise",
    "E5M2",
    "Q8.13",
    "bf16",
    "E5M2:9",
    "E5M2+",
    "",
)
LIKELY: dict[str, tuple[str, ...]] = {
    "run": PLACES,
    "policy": PLACES,
    "units": UNITS,
    "name": (*UNITS, "breakdown", "growth", "neighbor-time", "ptq-table", "env", "all", "nothing"),
    "env": (
        "cooperative-navigation", "predator-prey", "gym:CartPole-v1", "gym:Pendulum-v1", "CartPole-v1", "gym:",
        "gym:NoSuch-v1", "gym:no_such_module:X-v0", "pettingzoo:mpe2.simple_spread_v3", "pettingzoo:json",
        "pettingzoo:butterfly.pistonball_v6",
    ),
    "out": ("new", "x.onnx", "run", "stopped", "empty", "notes.txt", "notes.txt/x", "deep/new", "deep/new.onnx"),
    "agents": ("1", "2", "3", "2,3", "0", "-1", "3,,3", "x"),
    "inner": ("1", "7", "8,16", "0"),
    "picture": ("x.png", "x.gif", "no/x.png"),
    "bits": ("8", "2", "32,8", "fp16", "E4M3", "1", "17", "Q4.4", "7"),
    "edge_bits": ("8", "x"),
    "what": ("weights", "both", "activations,both", "all"),
    "device": ("cpu", "cuda", "meta", "cuda:7", "gpu"),
    "caches": ("L3=8M/16", "L2=1M/16,page=2M", "L9=1"),
    "env_options": ("{}", '{"N": 2}', "{", "[1]", '{"render_mode": "human"}'),
    "normaliser": ("notes.txt", "nowhere.npz", "x.pkl"),
    "data": ("profile/profile.json", "profile/profile.json", "run/config.json", "notes.txt", "nowhere"),
    "model": ("model.zip", "run", "notes.txt"),
    "algorithm": ("maddpg", "masac", "maddpg,masac", "ppo"),
    "sampler": ("uniform", "neighbor", "neighbor-v1", "lottery"),
    "implementation": ("engine", "reference"),
    "scheme": ("bf16", "float32", "hfp8", "E5M2:5+E6M5", "swalp; average_after=2", "hfp8; master=", "fp8", ";"),
    "schemes": ("bf16", "bf16,fp16", "bf16,bf16", "E5M2:5+E6M5,order=pairwise", ","),
    "loss_scale": ("none", "1024", "dynamic", "adaptive, interval=2", "-1", "big"),
    "episode_length": ("1", "5", "25"),
    "hidden": ("4", "8 8", "0"),
}  # fmt: skip
"""Values that someone could mean, by the option's name."""
WILD = (
    "", " ", "None", "none", "nan", "inf", "-inf", "-0", "0x10", "1_000", "1e3", "٣", "²", "1.5", "true", "--", "-",
    "=", "[1]", "{}", "two words", "new\nline", "tab\there", "bell\a\x1b[31mred", "naïve 😀", "\udc80", "é" * 200,
    "x" * 5000, "9" * 5000, "%s", "'\"", "\u2028", "$(id)", "*", "?", "#",
)  # fmt: skip
SMALL_NUMBERS = ("1", "2", "3", "4", "0.5", "0.1", "None", "0", "-1")
LARGE_NUMBERS = ("100000", "1000000000", "2147483648", "9223372036854775808", "1" + 30 * "0", "1e308")
"""Some are right, and mean much work."""


FILE = ("evaluate", "x.onnx")
"""`shoal evaluate` has other options for a file than for a run."""


class Option(NamedTuple):
    """An option of a command."""

    name: str
    kind: Any
    positional: bool


class Line(NamedTuple):
    """A command line, and whether it may rightly take long."""

    words: list[str]
    long: bool


class Caught(Exception):
    """The dataclass that a command hands to the parser."""


def grammar() -> dict[tuple[str, ...], list[Option]]:
    """The options of every command, by the words before them."""
    calls = {(name,): (command, []) for name, command in cli.COMMANDS.items() if name != "mac"}
    calls |= {("mac", name): (command, []) for name, command in mac.COMMANDS.items()}
    calls[FILE] = (cli.COMMANDS["evaluate"], ["x.onnx"])
    found: dict[tuple[str, ...], list[Option]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tyro, "cli", catch)
        for words, (command, argv) in calls.items():
            with pytest.raises(Caught) as caught:
                command(argv)
            found[words] = list(options_of(*caught.value.args))
    return found


def catch(kind: type, **_settings: Any) -> None:
    raise Caught(kind)


def options_of(kind: Any) -> Iterator[Option]:
    for field in dataclasses.fields(kind):
        annotated = typing.get_origin(field.type) is typing.Annotated
        plain, *notes = typing.get_args(field.type) if annotated else (field.type,)
        yield Option(field.name, plain, tyro.conf.Positional in notes)


# ---- lines ---------------------------------------------------------------------------------------------------------

SMALL: dict[tuple[str, ...], list[str]] = {
    ("train",): [*RUN, "--out", "new"],
    ("evaluate",): ["--episodes", "2"],
    FILE: ["--episodes", "2"],
    ("quantize",): "--episodes 2 --bits 8 --what both --out new".split(),
    ("export",): ["--out", "new.onnx"],
    ("profile",): "--agents 2 --seconds 0.05 --ring 1024 --implementation engine --threads 1 --out new".split(),
    ("study",): "--data profile/profile.json --out new".split(),
    ("mac", "sweep"): ["--inner", "4"],
    ("mac", "train"): "--model mlp --epochs 1 --train-images 128 --scheme bf16 --out new".split(),
}
"""What keeps a command short, unless the line says otherwise."""
WEIGHTS = {
    ("train",): 35, ("evaluate",): 8, FILE: 8, ("export",): 14, ("quantize",): 8, ("watch",): 4,
    ("profile",): 4, ("study",): 4, ("bench",): 2, ("mac", "describe"): 5, ("mac", "area"): 4, ("mac", "sweep"): 4,
    ("mac", "train"): 6,
}  # fmt: skip


def make_line(rng: Random, commands: dict[tuple[str, ...], list[Option]]) -> Line:
    """A command with a few options, mostly of its own and mostly with values that someone could mean."""
    command = rng.choices(list(commands), [WEIGHTS.get(words, 5) for words in commands])[0]
    options = commands[command]
    chosen = [option for option in options if not option.positional and option.name != "json"]
    chosen = rng.sample(chosen, min(len(chosen), rng.choice((0, 1, 1, 1, 1, 2, 2, 2, 3, 4))))
    given: list[str] = []
    long = command == ("bench",)
    for option in chosen:
        words, work = option_words(rng, option)
        given += words
        long |= work or (option.name == "data" and "profile/profile.json" not in words) or option.name == "train"
    places = [word for option in options if option.positional for word in place_words(rng, option)]
    if command == FILE:
        places = [rng.choice(("policy.onnx", "policy.onnx", "nowhere.onnx", "model.zip", "notes.txt"))]
    before = command[:1] if command == FILE else command
    words = [*before, *places, *kept(SMALL.get(command, []), given), *given]
    if any(option.name == "json" for option in options) and rng.random() < 0.5:
        words.append("--json")
    if rng.random() < 0.08:
        words, long = disordered(rng, words) or words, True
    return Line(words, long)


def place_words(rng: Random, option: Option) -> list[str]:
    """What stands without a name: a run, a file, units."""
    count = rng.choice((0, 1, 1, 2)) if typing.get_origin(option.kind) is tuple else int(rng.random() < 0.95)
    choices = typing.get_args(option.kind) if typing.get_origin(option.kind) is Literal else ()
    likely = choices or LIKELY.get(option.name, ("x",))
    return [rng.choice(likely) if rng.random() < 0.9 else rng.choice(WILD) for _ in range(count)]


def option_words(rng: Random, option: Option) -> tuple[list[str], bool]:
    """The words of an option, and whether they may ask for much work."""
    name = "--" + option.name.replace("_", "-")
    if option.kind is bool:
        plain = rng.choice((name, name, f"--no-{name[2:]}"))
        return [plain] if rng.random() < 0.95 else [plain, rng.choice(WILD)], False
    value = option_value(rng, option)
    spread = value.split(" ") if option.name == "hidden" else [value]
    words = [f"{name}={value}"] if rng.random() < 0.2 else [name, *spread]
    return words, value in (*LARGE_NUMBERS, "inf", "1e3", "1_000")


def option_value(rng: Random, option: Option) -> str:
    chance = rng.random()
    if chance < 0.12:
        return rng.choice(WILD)
    if typing.get_origin(option.kind) is Literal:
        return rng.choice(typing.get_args(option.kind))
    if option.name in LIKELY and chance < 0.85:
        return rng.choice(LIKELY[option.name])
    numeric = {int, float} & {option.kind, *typing.get_args(option.kind)}
    if numeric:
        return rng.choice(SMALL_NUMBERS if chance < 0.85 else LARGE_NUMBERS)
    return rng.choice((*SMALL_NUMBERS, *LARGE_NUMBERS) if chance < 0.3 else LIKELY.get(option.name, WILD))


def kept(small: list[str], given: list[str]) -> list[str]:
    """The words that keep a command short, without the options that the line has itself."""
    said = {word.partition("=")[0].replace("--no-", "--") for word in given if word.startswith("--")}
    words: list[str] = []
    for word in small:
        if word.startswith("--"):
            keep = word not in said
        if keep:
            words.append(word)
    return words


def disordered(rng: Random, words: list[str]) -> list[str]:
    """The words with one lost, twice, misspelled, strange or in another place."""
    at = rng.randrange(len(words) + 1)
    return rng.choice((
        words[:at] + words[at + 1 :],
        words[:at] + words[at : at + 1] * 2 + words[at + 1 :],
        words[:at] + [rng.choice((*WILD, "--wings", "--resume", "--help", "-h", "--json", "--no-json"))] + words[at:],
        words[:at] + [word[:-1] for word in words[at : at + 1]] + words[at + 1 :],
        rng.sample(words, len(words)),
    ))  # fmt: skip


# ---- the soak --------------------------------------------------------------------------------------------------------


def laid_out(words: list[str], material: Path, folder: Path) -> None:
    """Put what the words name into a folder."""
    text = " ".join(words)
    for name in (*FOLDERS, *FILES):
        if name in text:
            source = material / name
            if source.is_dir():
                shutil.copytree(source, folder / name)
            else:
                shutil.copy(source, folder / name)


@pytest.mark.slow
def test_random_command_lines(soak, material, shoal_process, tmp_path):
    commands = grammar()
    for case in soak.cases(FULL):
        with case:
            line = make_line(case.rng, commands)
            case.story = f"shoal {line.words}"
            folder = tmp_path / str(case.number)
            folder.mkdir()
            laid_out(line.words, material, folder)
            ended = shoal_process.run(line.words, folder, SECONDS, PATIENCE if line.long else None)
            check_ended(ended, line.long)
            assert "Warning" not in ended.err, ended.err
            helped = {"-h", "--help"} & set(line.words)
            if "--json" in line.words and "--no-json" not in line.words and not helped and ended.code == 0:
                check_json(ended.out)
            half = [path for path in folder.rglob("*.new") if path.parent.name != "checkpoints"]
            assert not half, f"left half-written: {half}"
            case.count({0: "answered", 2: "refused"}.get(ended.code or 0, "stopped"))
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
