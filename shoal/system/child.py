"""A child process: how it is started, what it is told, how it ends with its parent, and how its faults are reported.

It is started with `python -m`, told what to do by one line of JSON on its standard input, and given shared memory by
descriptors. Its standard input stays open: when that ends, the parent is gone and so is the child.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from shoal.errors import UserError

USERS, FAULT = 2, 1
"""Exit codes: a sentence for the user, or a traceback."""
STOPS = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}
"""Signals that ask a program to stop. A terminal or a job scheduler sends them to children, too, but they are the
parent's to answer: it saves its state first, and its children end with it."""


class Child:
    """A child process as its parent sees it."""

    def __init__(self, module: str, told: dict[str, Any], descriptors: list[int], remedy: str) -> None:
        """Start `python -m module`; `remedy` says what to do where the system has no room for another process."""
        self.role = module.rpartition(".")[2]
        try:
            self._report = tempfile.TemporaryFile()  # noqa: SIM115
            report = self._report.fileno()
            with signals_held():
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module],
                    stdin=subprocess.PIPE,
                    stdout=2,  # standard output is for answers only
                    pass_fds=[*descriptors, report],
                    env={**os.environ, **thread_limits(1), "PYTHONPATH": os.pathsep.join(sys.path)},
                )
        except OSError as error:  # too many processes or open files, or no memory for one more
            raise no_process(self.role, error, remedy) from None
        assert self.process.stdin is not None
        line = json.dumps({**told, "report": report, "parent": os.getpid()}) + "\n"
        with contextlib.suppress(BrokenPipeError):  # it is gone already, which will be noticed
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()

    def raise_fault(self) -> None:
        """If it ended by a fault of its own, raise that here."""
        code = self.process.poll()
        if code not in (USERS, FAULT):
            return
        self._report.seek(0)
        text = self._report.read().decode(errors="replace").strip()
        if not text:  # third-party code ended it, or Python could not start
            raise UserError(f"The {self.role} process {ended(code)} without an error message.")
        if code == USERS:
            raise UserError(text)  # as if it had happened here
        raise RuntimeError(f"the {self.role} process failed:\n{text}")

    def kill(self) -> None:
        """End it at once, stopped or not, and let go of what it had."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self._report.close()


def no_process(role: str, error: OSError, remedy: str) -> UserError:
    """The error where the system refuses a process."""
    return UserError(f"A process for another {role} cannot be started ({error.strerror}); {remedy}.")


def ended(code: int) -> str:
    """How a process ended, by its exit code."""
    if code == -signal.SIGKILL:
        return "was killed, perhaps because memory ran out"
    return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Hold back `STOPS`: a child started meanwhile is not stopped before `told` leaves them to its parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def thread_limits(count: int) -> dict[str, str]:
    """What a child's libraries are told before they are imported: this many threads each."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    return dict.fromkeys(names, str(count))


def told() -> dict[str, Any]:
    """In a child: what its parent tells it."""
    for number in STOPS:  # not SIG_IGN: processes that an environment starts would inherit it and could not be stopped
        signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    end_with_parent(signal.SIGKILL)
    line = sys.stdin.buffer.readline()
    if not line:
        os._exit(0)
    found: dict[str, Any] = json.loads(line)
    if os.getppid() != found["parent"]:
        os._exit(0)
    return found


def reporting(run: Callable[[dict[str, Any]], None]) -> None:
    """In a child: do as told; a fault goes into the report, and its kind into the exit code."""
    settings = told()
    try:
        run(settings)
        code = 0
    except UserError as error:
        code, text = USERS, str(error)
    except MemoryError:
        code, text = USERS, "There is not enough memory; use fewer processes or copies."
    except BaseException:
        code, text = FAULT, traceback.format_exc()
    if code:
        with os.fdopen(settings["report"], "wb") as report:
            report.write(text.encode(errors="backslashreplace"))
    os._exit(code)  # threads of libraries are not waited for


def end_with_parent(number: int) -> None:
    """Linux: be sent this signal when the parent ends; SIGKILL works even while stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, int(number))  # PR_SET_PDEATHSIG
