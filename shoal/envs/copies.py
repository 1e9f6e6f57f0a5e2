"""Copies of a third-party environment: Python objects whose size is known only by building some of them."""

import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from shoal.envs.base import EnvSpec
from shoal.errors import UserError
from shoal.system.memory import check_fits

MOST = 2**14
"""Copies of third-party code: they are stepped one after another, and a step of so many takes about a second."""
TELLING = 2**26
"""Bytes that the process must have grown by to tell what a copy takes; less may be anything."""
ACTION_OBJECT = 120
"""Bytes of a kept action beside its numbers: an array's header and its place in a list."""

World = TypeVar("World")


def build_copies(name: str, copies: int, one: Callable[[], World]) -> list[World]:
    """A list of `copies` results of `one`; a `UserError` as soon as it is clear that they do not fit."""
    if copies > MOST:
        raise UserError(
            f"`copies` is {copies:,}, but {name} is Python code that is stepped one copy after another: "
            f"at most {MOST:,} are possible."
        )
    worlds = [one()]
    before = resident_bytes()
    while len(worlds) < copies:
        worlds.append(one())
        built, grown = len(worlds), resident_bytes() - before if _is_power_of_two(len(worlds)) else 0
        if grown >= TELLING:
            check_copies(name, copies, built, grown / (built - 1))
    return worlds


def check_copies(name: str, copies: int, built: int, each: float) -> None:
    """Refuse the copies that are still to come unless they fit into memory, if each takes what those before it took."""
    check_fits(
        f"Building {copies - built:,} more of {copies:,} copies of {name}",
        int(each * (copies - built)),
        lambda usable: f"about {built + int(usable / each):,} copies fit",
    )


def check_arrays(spec: EnvSpec, copies: int) -> None:
    """Refuse copies whose views of four steps and played actions, from which a checkpoint repeats them, do not fit."""
    views = 4 * 4 * spec.agents * spec.observation_size
    played = 8 * spec.agents * spec.action_size + ACTION_OBJECT  # and once more in a checkpoint
    check_fits(
        f"Keeping the actions of an episode in {copies:,} copies of {spec.name}",
        copies * (views + (spec.episode_length or 0) * played),
        lambda usable: (
            f"episodes of {max(0, usable // copies - views) // played:,} steps fit, or fewer copies"
            if spec.episode_length
            else f"about {usable // views:,} copies fit"
        ),
    )


def resident_bytes() -> int:
    """Resident memory of this process; its peak where the system does not report more."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
