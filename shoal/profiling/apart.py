"""Work in a separate process: its memory is returned, and if it takes too much only that process is killed."""

import multiprocessing
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from shoal.errors import UserError

Result = TypeVar("Result")


class Ended(Exception):
    """The process ended before its work was done; the text says how."""


def apart(work: Callable[..., Result], *arguments: Any, advance: Callable[..., None]) -> Result:
    """What work(*arguments, advance) returns, done by a fresh process; `advance` is called here.

    Raises the `UserError` that the work ends in, or `Ended` if the process was ended by something else.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_do, args=(sender, work, arguments), daemon=True)
    process.start()
    sender.close()
    outcome: list[tuple[str, Any]] = []
    try:
        while not outcome:
            kind, value = receiver.recv()
            if kind == "advance":
                advance(*value)
            else:
                outcome.append((kind, value))
    except EOFError:
        process.join()
        raise Ended(how_it_ended(process.exitcode)) from None
    finally:
        if not outcome:
            process.terminate()
        process.join()
    kind, value = outcome[0]
    if kind == "sentence":
        raise UserError(value)
    result: Result = value
    return result


def how_it_ended(code: int | None) -> str:
    """In words."""
    if code is not None and code == -signal.SIGKILL:
        return "it was killed, as the system does when memory runs out"
    return f"its process ended with code {code}"


def _do(sender: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """The other process: tell of progress, then of the result."""
    try:
        sender.send(("result", work(*arguments, lambda *value: sender.send(("advance", value)))))
    except UserError as error:
        sender.send(("sentence", str(error)))
    except (KeyboardInterrupt, BrokenPipeError):  # the one that asked for it stops, too
        sys.exit(130)
