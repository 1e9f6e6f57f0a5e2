"""Processes side by side: failures, kills and signals, with stand-ins for the runs' processes."""

import contextlib
import itertools
import os
import signal
import sys
import threading
import time

import pytest

from shoal.errors import UserError
from shoal.runs.folder import RunFolder, result_json
from shoal.runs.interrupt import Stopped
from shoal.sweeps import side_by_side
from shoal.sweeps.grid import sweep_runs
from shoal.sweeps.side_by_side import choose_parallel, kept_threads, run_bytes, run_side_by_side
from shoal.training.config import TrainConfig
from shoal.training.result import TrainResult

HEAD = """
import json, os, pathlib, signal, sys, time
from multiprocessing.connection import Connection

parent = Connection(int(sys.argv[1]))
settings = json.loads(parent.recv_bytes())["settings"]
seed, out = settings["seed"], pathlib.Path(settings["out"])
out.mkdir(exist_ok=True)
signal.pthread_sigmask(signal.SIG_UNBLOCK, range(1, 16))  # as the real one does
def send(**message): parent.send_bytes(json.dumps(message).encode() + b"\\n")
"""


class Seen:
    def __init__(self):
        self.episodes, self.skipped, self.names, self.warnings = 0, 0, [], []

    def advance(self, episodes, skipped=False):
        self.episodes += episodes
        self.skipped += episodes * skipped

    def ended(self, outcome):
        self.names.append(outcome.run.name)

    def warned(self, run, sentence):
        self.warnings.append((run.name, sentence))


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Let such a program stand for a run's process; `finish()` writes its result."""
    numbers = itertools.count()
    monkeypatch.syspath_prepend(tmp_path)

    def use(code):
        result = result_json(TrainResult("", True, 7, 1, 1, 1.0, 1.0, -1.0))
        program = tmp_path / f"stand_in_{next(numbers)}.py"
        program.write_text(f"{HEAD}def finish(): (out / 'result.json').write_text({result!r})\n{code}")
        monkeypatch.setattr(side_by_side, "CHILD", program.stem)
        return sweep_runs({"base": {"episodes": 7}, "seeds": "0-3"}, tmp_path)

    return use


def test_failed_run_does_not_end_the_others(stand_in):
    code = """
if seed == 1: send(error="It is wrong."); sys.exit(2)
if seed == 2: os.kill(os.getpid(), 9)
if seed == 3: raise ValueError("a fault")
send(episode=3); send(warning="Careful."); finish()
"""
    runs, seen = stand_in(code), Seen()
    outcomes, stopped = run_side_by_side(runs, 2, seen)
    assert stopped is None and sorted(seen.names) == [run.name for run in runs]
    assert (seen.episodes, seen.skipped) == (4 * 7, 3 * 7)  # of those that failed
    assert seen.warnings == [("seed0", "Careful.")]
    errors = [outcome.error for outcome in outcomes]
    assert errors[:3] == ["", "It is wrong.", "The process was killed, perhaps because memory ran out."]
    assert "ValueError: a fault" in errors[3] and "seed3.log" in errors[3]
    assert [outcome.result is not None for outcome in outcomes] == [True, False, False, False]
    assert sorted(path.name for path in runs[0].folder.parent.glob("*.log")) == ["seed3.log"]
    (runs[0].folder / "config.json").write_text(runs[0].config.to_json())
    outcomes, _ = run_side_by_side(stand_in("finish()"), 4, seen)
    assert [outcome.kept for outcome in outcomes] == [True, False, False, False]
    assert all(outcome.result for outcome in outcomes)
    for run in runs:
        (run.folder / "config.json").write_text(run.config.to_json())
    (runs[1].folder / "result.json").write_text("{")  # its own process reports it; the others are kept
    outcomes, _ = run_side_by_side(stand_in("finish()"), 4, seen)
    assert [outcome.kept for outcome in outcomes] == [True, False, True, True] and outcomes[1].result


def test_run_killed_at_its_end_is_completed(stand_in, monkeypatch):
    runs, seen, resumed = stand_in("finish()")[:3], Seen(), []

    def train(config, resume, observer, trust):
        resumed.append(config.out)
        if config.out == str(runs[2].folder):
            raise UserError("Its checkpoints are gone.")

    run_side_by_side(runs, 3, seen)
    monkeypatch.setattr("shoal.api.train", train)
    (runs[0].folder / "curve.png").touch()
    for run, text in zip(runs, ("", "", "Careful."), strict=True):
        run.folder.with_name(f"{run.name}.log").write_text(text)
    outcomes, _ = run_side_by_side(runs, 3, seen)
    assert all(outcome.kept for outcome in outcomes) and resumed == [str(run.folder) for run in runs[1:]]
    assert seen.warnings == [("seed2", "Its checkpoints are gone.")]
    assert [path.name for path in runs[0].folder.parent.glob("*.log")] == ["seed2.log"]


def test_a_process_that_cannot_be_started_and_a_damaged_result(stand_in, monkeypatch):
    runs, seen = stand_in("(out / 'result.json').write_text('{')"), Seen()
    outcomes, _ = run_side_by_side(runs[:1], 1, seen)
    assert "result.json' is damaged" in outcomes[0].error
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    outcomes, _ = run_side_by_side(runs[1:], 2, seen)
    sentence = "cannot be started (No such file or directory); use a smaller `parallel`."
    assert [outcome.error for outcome in outcomes] == 3 * [f"A process for another stand_in_0 {sentence}"]
    assert len(seen.names) == 4


@contextlib.contextmanager
def signals_after(seen, *episodes):
    """Send this process SIGTERM whenever so many episodes are done."""
    over = threading.Event()

    def stop(number, frame):
        raise Stopped(number)

    def send():
        for count in episodes:
            while seen.episodes < count and not over.is_set():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, stop)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()
        signal.signal(signal.SIGTERM, before)


def test_second_signal_ends_at_once(stand_in):
    code = """
signal.signal(signal.SIGTERM, lambda *_: send(episode=3))
send(episode=1)
while True: time.sleep(60)
"""
    runs, seen = stand_in(code), Seen()
    with pytest.raises(Stopped), signals_after(seen, 2, 6):
        run_side_by_side(runs, 2, seen)


def test_externally_stopped_run_has_failed(stand_in):
    code = """
send(episode=1)
if seed > 0: finish()
sys.exit(143 if seed < 2 else 0)
"""
    outcomes, stopped = run_side_by_side(stand_in(code), 2, Seen())
    assert stopped is None
    assert [outcome.error for outcome in outcomes] == [
        "A signal stopped it at episode 1; run the sweep again.",
        "",
        "",
        "",
    ]
    assert [outcome.result is not None for outcome in outcomes] == [False, True, True, True]  # it was just finished


def test_signal_stops_and_saves_all_runs(stand_in):
    code = """
def save(*_): (out / "saved").touch(); sys.exit(143)
signal.signal(signal.SIGTERM, save); send(episode=1); time.sleep(60)
"""
    runs, seen = stand_in(code), Seen()
    with signals_after(seen, 2):
        outcomes, stopped = run_side_by_side(runs, 2, seen)
    assert stopped == signal.SIGTERM and [outcome.error for outcome in outcomes] == [""] * 4
    assert not any(outcome.result for outcome in outcomes)
    assert [(run.folder / "saved").exists() for run in runs] == [True, True, False, False]


def test_parallel_runs_follow_processors_and_memory(tmp_path, monkeypatch):
    runs = sweep_runs({"base": {"episodes": 100}, "seeds": "0-9"}, tmp_path)
    needed = run_bytes(runs[0].config)
    monkeypatch.setattr(side_by_side, "usable_processors", lambda: 4)
    for free, parallel in ((100 * needed, 4), (3.5 * needed, 3), (None, 4)):
        monkeypatch.setattr(side_by_side, "free_memory", lambda free=free: free and int(free))
        assert choose_parallel(runs, None) == parallel
    assert choose_parallel(runs, 7) == 7 and choose_parallel(runs[:2], 7) == 2 and choose_parallel([], 7) == 1
    for free, asked, sentence in (
        (0.5 * needed, None, "1 run side by side needs"),
        (3 * needed, 4, "`parallel=2` would"),
        (3 * needed, 40, "10 runs side by side needs"),
    ):
        for module in ("shoal.sweeps.side_by_side", "shoal.system.memory"):
            monkeypatch.setattr(f"{module}.free_memory", lambda free=free: int(free))
        with pytest.raises(UserError, match=sentence):
            choose_parallel(runs, asked)


def test_a_run_in_torch_keeps_its_threads(tmp_path, monkeypatch):
    run = sweep_runs({}, tmp_path)[0]
    monkeypatch.setattr(side_by_side, "usable_processors", lambda: 4)
    assert kept_threads(run) is None
    run.folder.mkdir()
    for update, threads, kept in (("torch", 2, 2), ("torch", 8, 4), ("native", 2, None)):
        stored = TrainConfig(update=update, threads=threads)
        (run.folder / "config.json").write_text(stored.to_json())
        assert kept_threads(run) == kept


def test_the_estimate_counts_ring_and_processes():
    small = TrainConfig(episodes=100)
    assert run_bytes(TrainConfig(episodes=100_000)) > run_bytes(small) + 300 * 10**6
    assert run_bytes(TrainConfig(episodes=100, actors=2)) == pytest.approx(run_bytes(small) + 10**9, rel=0.01)


def test_one_sweep_at_a_time(tmp_path):
    def locked(path):
        return RunFolder(path, make=True, kind="sweep")

    with locked(tmp_path / "out"), pytest.raises(UserError, match=r"The sweep in .* by another process"):
        locked(tmp_path / "out")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        locked(tmp_path / "file" / "out")
