"""What third-party code did wrong, in words: the same for its constructor, for its methods and in worker processes."""

import contextlib
import inspect
import traceback
from pathlib import Path
from typing import Any

from shoal.errors import UserError

MOST_PLACES = 3
NOT_THEIRS = ("shoal", "gymnasium", "importlib")
"""Packages that only pass a call on: their places in a traceback say nothing about the environment."""


def fault(name: str, method: str, error: BaseException) -> UserError:
    """The error to raise where a method of the environment called `name` fails, or calls sys.exit."""
    if isinstance(error, SystemExit):
        return UserError(f"{name} called sys.exit({error.code!r}) in {method}(){_places(error)}.")
    detail = "" if message(error) == type(error).__name__ else f": {message(error)}"
    return UserError(f"{name} raised {type(error).__name__} in {method}(){detail}{_places(error)}.")


def reason(error: BaseException) -> str:
    """What kept third-party code from going on, for the end of a sentence."""
    failed = f"its code called sys.exit({error.code!r})" if isinstance(error, SystemExit) else message(error)
    return failed + _places(error)


def message(error: BaseException) -> str:
    """What an exception says, on one line and without a full stop; the name of its class if it says nothing."""
    return _one_line(str(error), 300).rstrip(".?") or type(error).__name__


def in_short(value: Any) -> str:
    """A wrong value, on one line."""
    return _one_line(repr(value), 80)


def takes_seed(world: Any) -> bool:
    """Whether reset(seed=…) of an environment can be called; wrappers take what it does not."""
    try:
        with contextlib.suppress(ValueError):  # native code without a signature
            inspect.signature(getattr(world, "unwrapped", world).reset).bind(seed=0)
    except TypeError:
        return False
    return True


def _one_line(text: str, most: int) -> str:
    """The text in one line of at most so many characters; words may be cut, as numbers can be long."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 2]} …"


def _places(error: BaseException) -> str:
    """The innermost places of the third-party code, outermost first, in brackets; empty if it was not running."""
    places = [
        f"{Path(frame.f_code.co_filename).name}:{line} in {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in NOT_THEIRS
    ]
    return f" ({', '.join(places[-MOST_PLACES:])})" if places else ""
