"""`shoal bench steady`: whole training while other programs use the CPUs, relative to an idle machine."""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator

from shoal.bench import Record
from shoal.profiling.cells import Cell
from shoal.profiling.rounds import Subject, Timing, changed, one_round
from shoal.results import Column
from shoal.system.processors import usable_processors
from shoal.training.config import TrainConfig

RING = 25_600
TURNS = 3
NEIGHBOURS = ("none", "same", "other", "all")
"""none: an idle machine; same: one busy process of this login session; other: one of another login session, to which
the scheduler gives as much time as to this whole session; all: one per CPU, of another session."""
COLUMNS = {"steps_per_second": Column("training", "steps/s")}
PARTS = (3, 12)


def run(agents: int, seconds: float = 6.0) -> list[Record]:
    """Both updates, with one thread and with all; the kinds of load alternate."""
    return [
        row
        for update in ("native", "torch")
        for threads in sorted({1, usable_processors()})
        for row in _rows(agents, update, threads, seconds)
    ]


def _rows(agents: int, update: str, threads: int, seconds: float) -> list[Record]:
    config = TrainConfig(episodes=10**7, env="predator-prey", agents=agents, threads=threads)
    subject = Subject(changed(config, update=update), ("maddpg",), RING)
    cell = Cell("predator-prey", agents, "maddpg", "uniform", "engine")
    timings = {name: Timing(cell, RING) for name in NEIGHBOURS}
    one_round(subject, Timing(cell, RING), seconds)  # warms up
    with contextlib.ExitStack() as stack:
        busy = {name: stack.enter_context(neighbour(name)) for name in NEIGHBOURS}
        for _ in range(TURNS):
            for name, timing in timings.items():
                _take_turn(subject, timing, busy[name], seconds / TURNS)
    steps = {name: config.update_every / statistics.median(timing.totals()) for name, timing in timings.items()}
    common = {"agents": agents, "update": update, "threads": threads}
    return [
        {**common, "neighbour": name, "steps_per_second": per_second, "ratio": per_second / steps["none"]}
        for name, per_second in steps.items()
    ]


def _take_turn(subject: Subject, timing: Timing, busy: list[subprocess.Popen[bytes]], seconds: float) -> None:
    """Rounds of training for some seconds while these processes run."""
    _send(busy, signal.SIGCONT)
    spent = 0.0
    while spent < seconds:
        one_round(subject, timing, seconds)
        spent += timing.totals()[-1]
    _send(busy, signal.SIGSTOP)


@contextlib.contextmanager
def neighbour(name: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Busy processes, stopped until they are sent SIGCONT."""
    count = {"none": 0, "all": usable_processors()}.get(name, 1)
    busy: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            command = [sys.executable, "-S", "-c", "while True: pass"]
            busy.append(subprocess.Popen(command, start_new_session=name in ("other", "all")))
        _send(busy, signal.SIGSTOP)
        yield busy
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _send(busy: list[subprocess.Popen[bytes]], number: int) -> None:
    for process in busy:
        os.kill(process.pid, number)
