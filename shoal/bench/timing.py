"""Fair timing on a shared machine: sides take turns, so that noise hits all alike."""

import statistics
import time
from collections.abc import Callable, Sequence


def interleaved(sides: Sequence[Callable[[], object]], seconds: float, least: int = 5) -> list[float]:
    """Median seconds of one call of each side; all are called in turn until `seconds` have passed."""
    return [statistics.median(own) for own in turns(sides, seconds, least)]


def turns(sides: Sequence[Callable[[], object]], seconds: float, least: int = 5) -> list[list[float]]:
    """The seconds of every call of each side; all are called in turn until `seconds` have passed."""
    for side in sides:
        side()  # compile, allocate, warm the caches
    times: list[list[float]] = [[] for _ in sides]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < least:
        for side, own in zip(sides, times, strict=True):
            start = time.perf_counter()
            side()
            own.append(time.perf_counter() - start)
    return times
