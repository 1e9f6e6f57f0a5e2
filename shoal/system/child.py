"""Child processes that run our own code: how they start, talk to their parent, report faults and end with it.

A child is started with `python -m`, and its module calls `serve`. Parent and child send each other messages, a JSON
object with bytes behind it; the first one is the child's specification. Memory is shared by passing on descriptors. A
`UserError` in the child is sent as a sentence, any other fault as a traceback; both are raised in the parent.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any

from shoal.errors import UserError

Message = dict[str, Any]
USERS, FAULT, INTERRUPTED = 2, 1, 130  # exit codes: a sentence for the user, a traceback, Ctrl-C
STOPS = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}
"""Signals that ask a program to stop. A terminal or a job scheduler sends them to children, too."""
LOOK = 0.5  # seconds between checks that a child which does not answer is still running


class Ended(Exception):
    """A child has ended without a message; the text says how. `code` is its exit code, None while it still runs."""

    def __init__(self, code: int | None) -> None:
        super().__init__("has closed its connection" if code is None else ended(code))
        self.code = code


class Channel:
    """One end of the connection between a parent and its child."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def send(self, message: Message, data: bytes = b"") -> None:
        """Send a message with the bytes that belong to it."""
        self.connection.send_bytes(json.dumps(message).encode() + b"\n" + data)

    def receive(self) -> tuple[Message, bytes] | None:
        """Wait for the next message; None where the other side is gone."""
        try:
            line, _, data = self.connection.recv_bytes().partition(b"\n")
        except (EOFError, OSError):
            return None
        return json.loads(line), data


class Child:
    """A child process as its parent sees it."""

    def __init__(
        self,
        module: str,
        spec: Message,
        remedy: str,
        *,
        descriptors: Sequence[int] = (),
        threads: int | None = 1,
        log: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start `python -m module`, whose last word is what the child is called in messages.

        Args:
            spec: What the child is to do.
            remedy: What to do where the system has no room for another process.
            descriptors: Open files and memory that the child inherits.
            threads: Threads of each library in the child; None: as many as it likes.
            log: Where its output goes; None: to standard error, because standard output is for answers only.
            environment: Environment variables besides this process's own.
        """
        self.role = module.rpartition(".")[2]
        variables = {**os.environ, **thread_limits(threads), "PYTHONPATH": os.pathsep.join(sys.path)}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # until `serve` has decided who answers them
        connection = None
        try:
            connection, theirs = Pipe()
            self.channel = Channel(connection)
            with theirs:  # which is closed here, so that the connection ends with the child
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=2 if log is None else log,
                    stderr=log,
                    pass_fds=[*descriptors, theirs.fileno()],
                    env=variables | dict(environment or {}),
                )
        except OSError as error:  # too many processes or open files, or no memory for one more
            if connection is not None:
                connection.close()
            raise UserError(
                f"A process for another {self.role} cannot be started ({error.strerror}); {remedy}."
            ) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with contextlib.suppress(OSError):  # it is gone already, which `receive` will find out
            self.channel.send({**spec, "parent": os.getpid()})

    def receive(self, timeout: float | None = None) -> tuple[Message, bytes]:
        """Wait for the child's next message.

        Raises:
            UserError, RuntimeError: The fault that the child reported.
            Ended: It ended, or closed its connection, without a message.
            TimeoutError: It did not answer in time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        connection = self.channel.connection
        while not connection.poll(LOOK):  # a process that the child started may keep the connection open
            if self.process.poll() is not None and not connection.poll():
                raise Ended(self.process.returncode)
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError
        if (received := self.channel.receive()) is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5.0)
            raise Ended(self.process.poll())
        message = received[0]
        if "error" in message:
            raise UserError(message["error"])  # as if it had happened here
        if "fault" in message:
            raise RuntimeError(f"the {self.role} process failed:\n{message['fault']}")
        return received

    def raise_fault(self) -> None:
        """Raise the fault that the child has reported, if any; for children that send nothing else."""
        with contextlib.suppress(Ended):
            if self.channel.connection.poll():
                self.receive()
        if (code := self.process.poll()) in (USERS, FAULT):  # third-party code ended it, or Python could not start
            raise UserError(f"The {self.role} process {ended(code)} without an error message.")

    def kill(self) -> None:
        """End it at once, stopped or not, and release its resources."""
        self.process.kill()
        self.process.wait()
        self.channel.connection.close()


def ended(code: int) -> str:
    """How a process ended, by its exit code."""
    if code == -signal.SIGKILL:
        return "was killed, perhaps because memory ran out"
    return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def thread_limits(count: int | None) -> dict[str, str]:
    """Environment variables that limit the threads of a child's libraries."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    return {} if count is None else dict.fromkeys(names, str(count))


# ---- in the child ----------------------------------------------------------------------------------------------------


def serve(run: Callable[[Message, Channel], int | None], answer_signals: Callable[[], None] | None = None) -> None:
    """Do what the parent's first message says, and end this process.

    Args:
        run: Is given that message and the channel to the parent; returns the exit code, or None for 0.
        answer_signals: Prepares this process for `STOPS` and for the end of its parent. By default the parent answers
            them, which saves its state first, and the child is killed when the parent ends.
    """
    if answer_signals is not None:
        answer_signals()
    else:
        for number in STOPS:  # not SIG_IGN: processes that an environment starts would inherit it and never be stopped
            signal.signal(number, lambda number, frame: None)
        end_with_parent(signal.SIGKILL)
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    parent = Channel(Connection(descriptor))
    report = {}
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        received = parent.receive()
        if received is None or os.getppid() != received[0]["parent"]:
            os._exit(INTERRUPTED)
        code = run(received[0], parent) or 0
    except UserError as error:
        code, report = USERS, {"error": str(error)}
    except MemoryError:
        code, report = USERS, {"error": "There is not enough memory; use fewer processes or copies."}
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException:
        code, report = FAULT, {"fault": traceback.format_exc()}
    with contextlib.suppress(OSError):  # the parent is gone
        for kind, text in report.items():
            parent.send({kind: text.encode(errors="backslashreplace").decode()})
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # threads of libraries are not waited for


def end_with_parent(number: int) -> None:
    """Linux: be sent this signal when the parent ends; SIGKILL works even while stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, int(number))  # PR_SET_PDEATHSIG
