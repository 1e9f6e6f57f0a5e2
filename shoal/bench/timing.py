"""Fair timing on a shared machine: sides are interleaved, so that noise affects all alike."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from shoal.runs.threads import set_torch_threads


def interleaved(sides: Sequence[Callable[[], object]], seconds: float, least: int = 5) -> list[float]:
    """Median seconds per call of each side; all are called in turn until `seconds` have passed."""
    for side in sides:
        side()  # compile, allocate, warm the caches
    times: list[list[float]] = [[] for _ in sides]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < least:
        for side, own in zip(sides, times, strict=True):
            start = time.perf_counter()
            side()
            own.append(time.perf_counter() - start)
    return [statistics.median(own) for own in times]


def blocks(
    sides: Sequence[Callable[[], object]], seconds: float, block: float = 0.02, least: int = 5
) -> list[list[float]]:
    """The seconds of every call of each side, in turns of many consecutive calls: each has warm caches.

    The first two calls of a turn are not counted; a turn lasts `block` seconds, and there are at least `least` turns.
    """
    times: list[list[float]] = [[] for _ in sides]
    end, rounds = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or rounds < least:
        for side, own in zip(sides, times, strict=True):
            side()
            side()
            until = time.perf_counter() + block
            while True:
                start = time.perf_counter()
                side()
                after = time.perf_counter()
                own.append(after - start)
                if after > until:
                    break
        rounds += 1
    return times


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run with this many torch threads; also a decorator."""
    import torch

    before = torch.get_num_threads()
    set_torch_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
