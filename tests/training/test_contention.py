"""A run that other programs slow down says so once."""

import pytest

from shoal.training import contention
from shoal.training.contention import Contention


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(contention.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(contention.time, "process_time", lambda: now[0] - 100)  # one thread's worth
    monkeypatch.setattr(contention.os, "sched_getaffinity", lambda process: {1, 3}, raising=False)
    return now


def waited(root, *seconds, busy=None):
    """Each thread's file, as Linux writes it: nanoseconds on a processor and nanoseconds waiting, and turns.

    And the file of the CPUs: busy for so many seconds, or far longer than anybody waited.
    """
    ticks = round(contention.TICKS * (1000 * sum(seconds) if busy is None else busy))
    rows = [f"cpu{k} {ticks // 4 if k in (1, 3) else 9 * ticks} {ticks // 4} 0 777 88 0 0 0 0 0" for k in range(4)]
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/stat").write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *rows, "intr 1 2 3"]))
    for thread, passed in enumerate(seconds):
        folder = root / "proc/self/task" / str(thread)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"123456 {round(passed * 1e9)} 7\n")


def test_waiting_is_reported_once(tmp_path, clock):
    waited(tmp_path, 1.0, 2.0)
    meter = Contention(tmp_path)
    waited(tmp_path, 1.5, 6.0)  # the second one four seconds more
    clock[0] += 4
    assert meter.sentence(2) is None  # too early to tell
    clock[0] += 4
    assert meter.sentence(2) == (
        "Other programs keep the CPUs busy: this run waits for them 50% of the time; --threads 1 waits less."
    )
    waited(tmp_path, 5.5, 9.5)
    clock[0] += 8
    assert meter.sentence(2) is None


def test_waiting_is_measured_since_the_last_check(tmp_path, clock):
    waited(tmp_path, 0.0)
    meter = Contention(tmp_path)
    waited(tmp_path, 1.0)
    clock[0] += 10
    assert meter.sentence(1) is None
    waited(tmp_path, 7.0)
    clock[0] += 10
    assert meter.sentence(1) == "Other programs keep the CPUs busy: this run waits for them 60% of the time."


def test_threads_that_wait_for_each_other_do_not_wait_for_other_programs(tmp_path, clock):
    waited(tmp_path, 0.0, 0.0, busy=50)
    meter = Contention(tmp_path)
    waited(tmp_path, 3.0, 4.0, busy=62)  # 10 s of these 12 are this process's own
    clock[0] += 10
    assert meter.sentence(1) is None
    waited(tmp_path, 6.0, 8.0, busy=76)  # 4 s are others'
    clock[0] += 10
    assert meter.sentence(1) == "Other programs keep the CPUs busy: this run waits for them 40% of the time."


def test_the_runs_own_processes_are_not_other_programs(tmp_path, clock):
    def processes(seconds):
        """A worker, and what it has started, with so many seconds each."""
        ticks = round(seconds * contention.TICKS)
        for parent, child in (("self/task/0", "77"), ("77/task/77", "78")):
            for path, text in (
                (f"{parent}/children", f"{child} "),
                (f"{child}/stat", f"{child} (a ) b) R 1{' 0' * 9}"),
            ):
                (tmp_path / "proc" / path).parent.mkdir(parents=True, exist_ok=True)
                spent = f" {ticks // 2} {ticks // 4} {ticks // 4} 0 20 0" if path.endswith("stat") else ""
                (tmp_path / "proc" / path).write_text(text + spent)

    waited(tmp_path, 0.0, busy=50)
    processes(1)
    meter = Contention(tmp_path)
    waited(tmp_path, 5.0, busy=68)  # 8 s of these 18 are the children's, 10 s this process's own
    processes(5)
    clock[0] += 10
    assert meter.sentence(1) is None
    waited(tmp_path, 10.0, busy=86)  # 8 s are others'
    clock[0] += 10
    assert meter.sentence(1) == "Other programs keep the CPUs busy: this run waits for them 50% of the time."


def test_waiting_without_system_statistics(tmp_path, clock):
    meter = Contention(tmp_path)
    clock[0] += 10
    assert meter.sentence(2) is None
    waited(tmp_path, 1.0)
    (tmp_path / "proc/self/task/0/schedstat").write_text("nonsense")
    clock[0] += 10
    assert meter.sentence(2) is None
