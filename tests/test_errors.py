"""Words for sentences."""

import subprocess

import pytest

from shoal.console import answers_only, print_table, quoted
from shoal.errors import counted, printable
from shoal.results import Table


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
def test_one_thing_and_many(number, nouns, words):
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
def test_what_a_terminal_would_obey_is_shown_instead(text, shown):
    assert printable(text) == shown


def test_names_in_tables_are_not_obeyed_either(capsys):
    with answers_only():
        print_table(Table.of("a\n[/b]", [{"name": "[/c]\x1b[31m[bold]"}]))
    out = capsys.readouterr().out
    assert r"a\n[/b]" in out and r"[/c]\x1b[31m[bold]" in out


@pytest.mark.parametrize("path", ["plain", "with space", "it's", "a\nb", "a\n'b'\\c", "\x1b[31m"])
def test_a_quoted_path_is_one_line_that_a_shell_takes(path):
    assert quoted(path).isprintable()
    assert subprocess.run(["bash", "-c", f"printf %s {quoted(path)}"], capture_output=True, text=True).stdout == path
