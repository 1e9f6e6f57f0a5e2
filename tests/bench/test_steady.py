"""Training beside busy neighbours: they are awake only in their own turns, and none is left behind."""

import time

import pytest

from shoal.bench import steady


def state(process):
    """T for stopped; None if there is no such process."""
    try:
        with open(f"/proc/{process.pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return None


def test_rows_of_the_bench(monkeypatch):
    monkeypatch.setattr(steady, "RING", 1_100)
    monkeypatch.setattr(steady, "TURNS", 1)
    monkeypatch.setattr(steady, "usable_processors", lambda: 1)
    rows = steady.run(1, seconds=0.02)
    assert [(row["agents"], row["update"], row["threads"], row["neighbour"]) for row in rows] == [
        (1, update, 1, name) for update in ("native", "torch") for name in ("none", "same", "other", "all")
    ]
    for own in (rows[:4], rows[4:]):
        assert own[0]["ratio"] == 1
        for row in own:
            assert row["ratio"] == pytest.approx(row["steps_per_second"] / own[0]["steps_per_second"])


@pytest.mark.parametrize(("name", "count"), [("none", 0), ("same", 1), ("other", 1), ("all", 3)])
def test_busy_processes_sleep_and_end_with_the_bench(monkeypatch, name, count):
    monkeypatch.setattr(steady, "usable_processors", lambda: 3)
    awake = []

    def one_round(subject, timing, seconds):
        awake.append([state(process) for process in busy])
        timing.rounds.append({"other": 1.0})

    monkeypatch.setattr(steady, "one_round", one_round)
    with steady.neighbour(name) as busy:
        assert len(busy) == count
        steady._take_turn(None, steady.Timing(None, 0), busy, 0.5)
        assert len(awake) == 1 and len(awake[0]) == count and "T" not in awake[0]
        until = time.monotonic() + 10
        while {state(process) for process in busy} - {"T"} and time.monotonic() < until:
            time.sleep(0.01)  # a signal takes a moment
        assert {state(process) for process in busy} <= {"T"}
    assert {process.poll() for process in busy} <= {-9}
