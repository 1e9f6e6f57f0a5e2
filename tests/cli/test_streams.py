"""Streams and places that are not there: closed outputs, odd terminals, no working directory."""

import contextlib
import io
import os
import re
import shlex
import sys

from shoal.cli import main
from shoal.commands.console import print_table
from shoal.results import Table
from tests.cli.helpers import QUIET, SHORT, lines, one_sentence, strict


def test_standard_output_is_closed(process, finished_run):
    for line in ("shoal --help >&-", f"shoal evaluate {finished_run} --episodes 2 >&-"):
        result = process(line)
        assert result.returncode == 2
        sentences = [line for line in result.stderr.splitlines() if not line.endswith(" s so far")]  # of a slow machine
        assert sentences == ["shoal: The output could not be written: standard output is closed."]


def test_standard_error_is_closed(process, tmp_path):
    words = shlex.join([*SHORT, "--json", "--out", str(tmp_path / "run")])
    result = process(f"shoal train {words} 2>&-")
    assert result.returncode == 0 and strict(result.stdout)["finished"]
    assert len(lines(tmp_path / "run")) >= 5  # nobody wrote into files that took the place of the closed stream


def test_user_error_with_closed_standard_error(process):
    result = process("shoal fly 2>&-")
    assert (result.returncode, result.stdout) == (2, "")


def test_ascii_only_terminal(shoal, process, finished_run, monkeypatch):
    result = process("shoal train --resume nöwhere", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert result.returncode == 2 and one_sentence(result.stderr) == "shoal: There is no run folder 'n?where'.\n"
    with io.TextIOWrapper(io.BytesIO(), encoding="ascii") as narrow, contextlib.redirect_stdout(narrow):
        assert main(["evaluate", str(finished_run), "--episodes", "2"]) == 0
        assert b"+-----" in narrow.buffer.getvalue() and b"??" not in narrow.buffer.getvalue()


def test_narrow_terminal_keeps_all_digits(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr("shoal.system.streams._out", sys.stdout)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    row = {"team": "a", "return per agent": "-123456.5", "interval": "-123456.7 to -123456.3"}
    print_table(Table.of("", [row]))
    digits = re.sub(r"\x1b\[[0-9;]*m|[^0-9]", "", capsys.readouterr().out)
    assert sorted(digits) == sorted("123456512345671234563")


def test_deleted_working_directory(shoal, process, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    result = process(f"cd {gone} && rmdir {gone} && shoal --version")
    assert result.returncode == 0 and result.stderr == ""
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code, _, err = shoal("train", *QUIET)
    assert code == 2 and "cannot be written" in one_sentence(err)
    assert shoal("train", *QUIET, "--out", tmp_path / "run")[0] == 0


def test_a_table_of_long_headings_fits_120_columns(monkeypatch, capsys):
    monkeypatch.setattr("shoal.system.streams._out", sys.stdout)
    monkeypatch.setenv("COLUMNS", "120")
    row = {f"a long heading number {k}": 1000.5 + k for k in range(8)} | {"name": "x" * 30}
    print_table(Table.of("T", [row]))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 120 and sum("1,000" in line for line in lines) == 1
    assert any("x" * 30 in line and "1,008" in line for line in lines)  # no cell is folded
    print_table(Table.of("T", [{"a long heading": 1.5}]))
    assert "a long heading" in capsys.readouterr().out


def test_a_table_that_is_too_wide_is_printed_in_parts(monkeypatch, capsys):
    monkeypatch.setattr("shoal.system.streams._out", sys.stdout)
    monkeypatch.setenv("COLUMNS", "120")
    rows = [
        {"unit": f"unit {n}", "agents": n} | {f"measure_{k:02}": 1e3 * n + k + 0.5 for k in range(16)} for n in (1, 2)
    ]
    print_table(Table.of("T", rows))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 120 and out.count("T, continued") == out.count("│ unit 1 │") - 1 == 1
    assert sum(f"measure {k:02}" in " ".join(out.split()) or f"{k:02}" in out for k in range(16)) == 16
    assert all(f"{1000 + k + 0.5:,.0f}" in out for k in range(16))


def test_headings_are_wrapped_only_if_needed(monkeypatch, capsys):
    monkeypatch.setattr("shoal.system.streams._out", sys.stdout)
    monkeypatch.setenv("COLUMNS", "120")

    def head(**row):
        print_table(Table.of("", [row]))
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 120
        return [line for line in lines if line.startswith("┃")]

    assert "┃ time per run ┃" in head(configuration="c" * 60, rest="r" * 38, time_per_run=0.8)[0]
    two = head(configuration="c" * 60, rest="r" * 42, time_per_run=0.8)
    assert len(two) == 2 and two[0].endswith(" time per ┃") and two[1].endswith("      run ┃")
    first, second = head(configuration="c" * 60, rest="r" * 48, time_per_run=0.8)  # in two parts
    assert "time" not in first and second.endswith("┃ time per run ┃")


def test_table_parts_repeat_identifying_columns_only(monkeypatch, capsys):
    monkeypatch.setattr("shoal.system.streams._out", sys.stdout)
    monkeypatch.setenv("COLUMNS", "120")
    measures = {f"m{k}": "0.00 ± 0.00" for k in range(10)}

    def heads(*rows):
        print_table(Table.of("T", [row | measures for row in rows]))
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("┃")]

    first, second = heads({"name": "a", "seeds": 3}, {"name": "b", "seeds": 3})
    assert first.startswith("┃ name ┃ seeds ┃ m0") and second.startswith("┃ name ┃ m")
    first, second = heads({"name": "a", "agents": 3}, {"name": "a", "agents": 6})
    assert first.startswith("┃ name ┃ agents ┃ m0") and second.startswith("┃ name ┃ agents ┃ m")


def test_a_narrow_table_in_parts_names_its_rows_and_breaks_its_title_late(monkeypatch, capsys):
    monkeypatch.setattr("shoal.system.streams._out", sys.stdout)
    monkeypatch.setattr("shoal.commands.console.WIDTH", 60)
    rows = [{"team": "trained, most likely actions", **{f"{k}": "0.00 ± 0.00" for k in "abc"}}]
    print_table(Table.of("Return of an episode in predator-prey", rows))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60 and sum("trained, most likely actions" in line for line in lines) == 2
    assert [line for line in lines if "predator" in line] == [
        "Return of an episode in predator-prey",
        "Return of an episode in predator-prey, continued",
    ]
