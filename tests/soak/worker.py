"""`python -m tests.soak.worker`: runs command lines one after the other in this process, as `shoal` would.

A request is a line of JSON on standard input: `words`, the working directory `folder`. The answer, on standard output,
has the exit `code` (None: an exception came out, whose text is `trace`), and all that was written to `out` and `err`,
by native code too. The first line is "ready": what is sent before it might meet a process that is not yet there.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from typing import Any, BinaryIO

MEMORY = 6 * 2**30
"""Bytes of address space: what asks for more is refused by the system instead of taking it from others."""


def run(words: list[str]) -> int:
    """The exit code of a command, however it ends."""
    from shoal.cli import main

    path = [*sys.path]
    try:
        return main(words)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    finally:
        ignore_signals()  # one that comes after the end of the command
        sys.path[:] = path


def ignore_signals() -> None:
    """Until a command sets its own handlers."""
    from shoal.runs.interrupt import SIGNALS

    for number in SIGNALS:
        signal.signal(number, lambda number, frame: None)


def answer(request: dict[str, Any], out: BinaryIO, err: BinaryIO) -> dict[str, Any]:
    """What happened."""
    os.chdir(request["folder"])
    code, trace = None, ""
    try:
        code = run(request["words"])
    except BaseException:
        trace = traceback.format_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return {"code": code, "trace": trace, "out": emptied(out), "err": emptied(err)}


def emptied(file: BinaryIO) -> str:
    """What was written since the last time."""
    text = os.pread(file.fileno(), 2**24, 0).decode(errors="replace")
    os.ftruncate(file.fileno(), 0)
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    return text


def serve() -> None:
    """Answer until nobody asks any more."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        import shoal.training.loop  # noqa: F401  # which takes long, and is not what is timed

        ignore_signals()  # one that comes before the command has set its own handlers
        answers.write("ready\n")
        answers.flush()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for line in requests:
            answers.write(json.dumps(answer(json.loads(line), out, err)) + "\n")
            answers.flush()


if __name__ == "__main__":
    serve()
