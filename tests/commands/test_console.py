"""Progress where there is no terminal."""

import re
import time

import pytest

from shoal import waiting
from shoal.commands import console


@pytest.fixture
def soon(monkeypatch):
    """Lines of progress every few milliseconds."""
    monkeypatch.setattr(waiting, "FIRST", 0.01)
    monkeypatch.setattr(waiting, "EVERY", 0.01)


def test_long_step_prints_lines_without_a_terminal(soon, capsys):
    with console.progress_bar("shoal profile", 4.0) as advance:
        advance(1.0, "3 agents\x1b")
        time.sleep(0.05)
    lines = capsys.readouterr().err.splitlines()
    assert lines and all(
        re.fullmatch(r"shoal profile: 3 agents\\x1b: 25% done, about \d+ s left", one) for one in lines
    )
    time.sleep(0.03)
    assert capsys.readouterr().err == ""  # it ended with the work


def test_work_of_unknown_length_shows_how_long_it_has_taken(soon, capsys):
    with console.progress_bar("shoal watch") as progress:
        time.sleep(0.1)
        assert "shoal watch: 0 s so far\n" in capsys.readouterr().err
        progress(1.0)
        progress.expect(3.0)
        progress(1.5)
        time.sleep(0.1)
    assert "shoal watch: 50% done, about 0 s left\n" in capsys.readouterr().err


def test_short_work_prints_no_lines(capsys):
    with console.progress_bar("shoal export", 2) as advance:
        advance(1)
    assert capsys.readouterr().err == ""
