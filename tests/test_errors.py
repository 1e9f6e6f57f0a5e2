"""Words for sentences."""

import pickle
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from shoal.cli import COMMANDS
from shoal.commands.console import print_table, quoted
from shoal.errors import UserError, check_choice, check_range, closest, counted, install, printable, whole_number
from shoal.results import Table
from shoal.system.streams import answers_only


@pytest.mark.parametrize(
    ("number", "nouns", "words"),
    [
        (1, ("episode",), "1 episode"),
        (0, ("episode",), "0 episodes"),
        (2_000, ("episode",), "2,000 episodes"),
        (1, ("copy", "copies"), "1 copy"),
        (3, ("copy", "copies"), "3 copies"),
    ],
)
def test_singular_and_plural(number, nouns, words):
    assert counted(number, *nouns) == words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("runs/größe 3 × – 'x'", "runs/größe 3 × – 'x'"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x1b[31m\x07\x85\u2028\u202e", r"\x1b[31m\x07\x85\u2028\u202e"),
        ("\udcff", r"\udcff"),
    ],
)
def test_control_characters_are_escaped(text, shown):
    assert printable(text) == shown


def test_control_characters_in_tables_are_escaped(capsys):
    with answers_only():
        print_table(Table.of("a\n[/b]", [{"name": "[/c]\x1b[31m[bold]"}]))
    out = capsys.readouterr().out
    assert r"a\n[/b]" in out and r"[/c]\x1b[31m[bold]" in out


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("trian", "train"), ("trainn", "train"), ("rain", "train"), ("TRAIN", "train"), ("tarin", "train"),
        ("eval", "evaluate"), ("evlauate", "evaluate"), ("evaluation", "evaluate"), ("simulation", "simulate"),
        ("profiler", "profile"), ("quantise", "quantize"), ("benchmark", "bench"), ("macs", "mac"), ("sudy", "study"),
        ("report", None), ("fly", None), ("plot", None), ("tune", None), ("", None), ("m", None), (None, None),
        ("start", None), ("predict", None), ("x" * 200, None),
    ],
)  # fmt: skip
def test_only_close_words_are_suggested(word, meant):
    assert closest(word, COMMANDS) == meant


@pytest.mark.parametrize("path", ["plain", "with space", "it's", "a\nb", "a\n'b'\\c", "\x1b[31m"])
def test_a_quoted_path_is_one_line_that_a_shell_takes(path):
    assert quoted(path).isprintable()
    assert subprocess.run(["bash", "-c", f"printf %s {quoted(path)}"], capture_output=True, text=True).stdout == path


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_choice("rules", "chess", ("mpe2",)), "`rules` 'chess' is not known; choose one of: mpe2."),
        (lambda: check_choice("rules", None, ("mpe2",)), "`rules` 'None' is not known; choose one of: mpe2."),
        (lambda: check_range("rules", 3, 1, 2), "`rules` is 3, but must be from 1 to 2."),
        (lambda: whole_number("rules", 1.5), "`rules` is 1.5, but must be a whole number."),
    ],
)
def test_an_error_about_a_setting_names_it(check, message):
    with pytest.raises(UserError) as refused:
        check()
    for error in (refused.value, pickle.loads(pickle.dumps(refused.value))):  # it may come from another process
        assert str(error) == message


def test_only_settings_have_backquotes():
    with pytest.raises(UserError, match=r"^The study 'x' is not known; choose one of: y.$"):
        check_choice("The study", "x", ("y",))


def test_every_extra_that_a_message_names_exists():
    assert install("sb3") == "run pip install -c constraints.txt -e '.[sb3]' in your clone of Shoal"
    root = Path(__file__).parents[1]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = "".join(path.read_text() for path in (root / "shoal").rglob("*.py"))
    named = set(re.findall(r"""\binstall\(["'](\w+)["']\)""", sources))
    assert named >= {"sb3", "control", "atari", "pettingzoo"} and named <= extras.keys()
    assert "shoal[" not in sources
