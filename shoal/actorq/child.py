"""A child process: how it is started, what it is told, how it ends with its parent, and how its faults are reported.

It is started with `python -m`, told what to do by one line of JSON on its standard input, and given shared memory by
descriptors. Its standard input stays open: when that ends, the parent is gone and so is the child.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from shoal.actorq.board import Board
from shoal.errors import UserError

TICK = 0.2
"""Seconds between signs of life."""
SILENT, STARTING = 5.0, 120.0
"""Seconds without one after which a process counts as dead; before its first it has much to import and to compile."""
USERS, FAULT = 2, 1
"""Exit codes: a sentence for the user, or a traceback."""


class Child:
    """A child process as its parent sees it."""

    def __init__(self, module: str, told: dict[str, Any], descriptors: list[int], index: int, ticks: int) -> None:
        """Start it; `index` is its place on the board, where there were so many ticks before."""
        self._role = module.rpartition(".")[2]
        try:
            self._report = tempfile.TemporaryFile()  # noqa: SIM115
            report = self._report.fileno()
            with no_interrupts():
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module],
                    stdin=subprocess.PIPE,
                    stdout=2,  # standard output is for answers only
                    pass_fds=[*descriptors, report],
                    env={**os.environ, **threads_of_one(), "PYTHONPATH": os.pathsep.join(sys.path)},
                )
        except OSError as error:  # too many processes or open files, or no memory for one more
            raise UserError(
                f"A process for an actor cannot be started ({error.strerror}); use fewer --actors."
            ) from None
        assert self.process.stdin is not None
        line = json.dumps({**told, "index": index, "report": report, "parent": os.getpid()}) + "\n"
        with contextlib.suppress(BrokenPipeError):  # it is gone already, which will be noticed
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()
        self._ticks, self._begun, self._quiet = ticks, False, 0.0

    def alive(self, ticks: int, passed: float) -> bool:
        """Whether it is there and gives signs of life, of which there were so many, after so many more seconds."""
        self._begun |= ticks != self._ticks
        self._quiet = 0.0 if ticks != self._ticks else self._quiet + passed
        self._ticks = ticks
        return self.process.poll() is None and self._quiet < (SILENT if self._begun else STARTING)

    def raise_fault(self) -> None:
        """If it ended by a fault of its own, raise that here."""
        code = self.process.poll()
        if code not in (USERS, FAULT):
            return
        self._report.seek(0)
        text = self._report.read().decode(errors="replace").strip()
        if code == USERS and text:
            raise UserError(f"The {self._role} process failed: {text}")
        raise RuntimeError(f"the {self._role} process failed:\n{text or 'it left no report'}")

    def kill(self) -> None:
        """End it at once, stopped or not, and let go of what it had."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self._report.close()


@contextlib.contextmanager
def no_interrupts() -> Iterator[None]:
    """Hold SIGINT back: a child started meanwhile is not interrupted before `told` tells it to ignore Ctrl-C."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def threads_of_one() -> dict[str, str]:
    """What a child's libraries are told before they are imported: one thread each."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    return dict.fromkeys(names, "1")


def told() -> dict[str, Any]:
    """In a child: what its parent tells it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the learner's to answer
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _die_with_parent()
    line = sys.stdin.buffer.readline()
    if not line:
        os._exit(0)
    found: dict[str, Any] = json.loads(line)
    if os.getppid() != found["parent"]:
        os._exit(0)
    return found


def live(board: Board, index: int) -> None:
    """In a child: give signs of life from now on, and end when the parent is gone."""

    def beat() -> None:
        while True:
            board.add(index, "ticks")
            ready, _, _ = select.select([sys.stdin.buffer], [], [], TICK)
            if ready and not os.read(sys.stdin.fileno(), 1):
                os._exit(0)

    threading.Thread(target=beat, daemon=True).start()


def reporting(run: Callable[[dict[str, Any]], None]) -> None:
    """In a child: do as told; a fault goes into the report, and its kind into the exit code."""
    settings = told()
    try:
        run(settings)
        code = 0
    except UserError as error:
        code, text = USERS, str(error)
    except BaseException:
        code, text = FAULT, traceback.format_exc()
    if code:
        with os.fdopen(settings["report"], "wb") as report:
            report.write(text.encode())
    os._exit(code)  # threads of libraries are not waited for


def _die_with_parent() -> None:
    """Linux: be killed when the parent ends, even while stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG
