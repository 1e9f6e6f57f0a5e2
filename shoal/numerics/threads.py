"""Flat work shared out to Python's own threads around compiled functions that let go of the interpreter.

Not numba's parallel loops: those spin while they wait, must not be entered from two threads at once, and do not survive
a fork. The result of a call never depends on how many threads there are.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from shoal.processors import usable_processors

_pool: ThreadPoolExecutor | None = None


def share_out(work: Callable[[int, int], int], items: int, threads: int) -> int:
    """The sum of work(first, last) over consecutive shares of the items, one share a thread."""
    global _pool
    if threads <= 1:
        return work(0, items)
    if _pool is None:
        _pool = ThreadPoolExecutor(usable_processors(), "shoal-numerics")
    own, *others = pairwise(items * t // threads for t in range(threads + 1))
    waiting = [_pool.submit(work, *share) for share in others]
    try:
        total = work(*own)
    finally:  # also when interrupted: nobody may write into the arrays any more
        results = [share.result() for share in waiting]
    return total + sum(results)


def _forget_pool() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)  # threads do not survive a fork
