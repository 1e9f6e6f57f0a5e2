"""Standard output for results, standard error for messages.

While a command runs, standard output is for results only: third-party output goes to standard error.
"""

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from shoal.errors import UserError, printable
from shoal.system.files import finite

_out: TextIO | None = sys.stdout  # where results go
_wording: Callable[[str], str] = str  # how the running command words sentences of the library


@contextlib.contextmanager
def answers_only() -> Iterator[None]:
    """Reserve standard output for `put`: other output, from Python or native code, goes to standard error."""
    global _out
    _out = sys.stdout
    word_sentences(str)
    for stream in (sys.stdout, sys.stderr):  # an ASCII terminal shows question marks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    with native_prints_apart(), contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def native_prints_apart() -> Iterator[None]:
    """Redirect what native code and child processes write to standard output to standard error."""
    global _out
    try:
        if (sys.stdout.fileno(), sys.stderr.fileno()) != (1, 2):
            raise ValueError("not the streams of a process")
        kept = os.dup(1)
        os.dup2(2, 1)
    except (AttributeError, OSError, ValueError):  # closed, or redirected by the caller
        yield
        return
    _out = open(kept, "w", encoding=sys.stdout.encoding, errors="replace", closefd=False)  # noqa: SIM115
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            _out.flush()
        os.dup2(kept, 1)
        os.close(kept)
        _out = sys.stdout


def word_sentences(wording: Callable[[str], str]) -> None:
    """Pass all sentences through this function from now on: the running command writes settings as its options."""
    global _wording
    _wording = wording


def worded(sentence: str) -> str:
    """A sentence of the library as the running command words it, on one line."""
    return printable(_wording(sentence))


def say(sentence: str) -> None:
    """Print a message on standard error; a closed standard error is ignored."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(worded(sentence), file=sys.stderr, flush=True)


def put(text: str) -> None:
    """Print a result on standard output; a `UserError` if that fails."""
    if _out is None:
        raise UserError("The output could not be written: standard output is closed.")
    try:
        print(text, file=_out, flush=True)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), _out.fileno())  # the old one can no longer be flushed
        raise UserError(f"The output could not be written: {error.strerror or error}.") from None


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object on standard output; non-finite numbers become null."""
    put(json.dumps(finite(value)))


def on_terminal() -> bool:
    """Whether results go to a terminal."""
    return _out is not None and _out.isatty()


def encoding() -> str:
    """The encoding of results."""
    return getattr(_out, "encoding", None) or "utf-8"
