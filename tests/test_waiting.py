"""Lines for a user who waits."""

import threading
import time

import pytest

from shoal import waiting
from shoal.waiting import ProgressLines, said_if_long


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(waiting, "FIRST", 0.02)
    monkeypatch.setattr(waiting, "EVERY", 0.02)


def heard(enough):
    """A list that can be said to, and an event when it has so many sentences."""
    said, full = [], threading.Event()

    def say(sentence):
        said.append(sentence)
        if len(said) >= enough:
            full.set()

    return said, say, full


def test_only_long_work_is_reported(hurried):
    said, say, full = heard(1)
    with said_if_long(say, "Writing."):
        assert full.wait(10)
    with said_if_long(say, "Short."):
        pass
    time.sleep(0.05)
    assert said == ["Writing."]


def test_lines_continue_without_progress(hurried):
    said, say, full = heard(3)
    with ProgressLines(say, "playing", 10):
        assert full.wait(10)
    assert len(said) >= 3 and all(line == "playing: 0 s so far" for line in said)
    count = len(said)
    time.sleep(0.05)
    assert len(said) == count  # the thread has ended


def test_a_line_has_the_share_and_the_time_left():
    lines = ProgressLines(print, "playing", 8)
    lines(2, "chess")
    lines(0)
    assert lines.line(10) == "playing: chess: 25% done, about 30 s left"
    lines(2)
    assert lines.line(20) == "playing: 50% done, about 20 s left"


@pytest.mark.parametrize(("done", "total"), [(0.0, 5.0), (5.0, 5.0), (7.0, 5.0), (1.0, None), (1.0, 0.0)])
def test_no_share_is_shown_for_unknown_lengths(done, total):
    lines = ProgressLines(print, "x", total)
    lines(done)
    assert lines.line(3.2) == "x: 3 s so far"
