"""A run that other programs slow down says so once."""

import pytest

from shoal.training import contention
from shoal.training.contention import Contention


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(contention.time, "perf_counter", lambda: now[0])
    return now


def waited(root, *seconds):
    """Each thread's file, as Linux writes it: nanoseconds on a processor and nanoseconds waiting, and turns."""
    for thread, passed in enumerate(seconds):
        folder = root / "proc/self/task" / str(thread)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"123456 {round(passed * 1e9)} 7\n")


def test_waiting_is_told_once(tmp_path, clock):
    waited(tmp_path, 1.0, 2.0)
    meter = Contention(tmp_path)
    waited(tmp_path, 1.5, 5.5)  # four seconds more
    clock[0] += 4
    assert meter.sentence(2) is None  # too early to tell
    clock[0] += 4
    assert meter.sentence(2) == (
        "Other programs keep the CPUs busy: this run waits for them 50% of the time; --threads 1 waits less."
    )
    waited(tmp_path, 5.5, 9.5)
    clock[0] += 8
    assert meter.sentence(2) is None


def test_only_the_time_since_the_last_look_counts(tmp_path, clock):
    waited(tmp_path, 0.0)
    meter = Contention(tmp_path)
    waited(tmp_path, 1.0)
    clock[0] += 10
    assert meter.sentence(1) is None
    waited(tmp_path, 7.0)
    clock[0] += 10
    assert meter.sentence(1) == "Other programs keep the CPUs busy: this run waits for them 60% of the time."


def test_a_system_that_does_not_tell(tmp_path, clock):
    meter = Contention(tmp_path)
    clock[0] += 10
    assert meter.sentence(2) is None
    waited(tmp_path, 1.0)
    (tmp_path / "proc/self/task/0/schedstat").write_text("nonsense")
    clock[0] += 10
    assert meter.sentence(2) is None
