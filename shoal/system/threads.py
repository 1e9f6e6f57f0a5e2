"""Work shared out to Python's own threads around compiled functions that let go of the interpreter.

Not numba's parallel loops: those spin while they wait, which takes the processor from the learner's threads and from
other programs, must not be entered from two threads at once, and do not survive a fork.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TypeVar

from shoal.system.processors import usable_processors

Result = TypeVar("Result")


def share_out(work: Callable[..., Result], items: int, threads: int, *arguments: object) -> list[Result]:
    """Call work(first, last, *arguments) for consecutive shares of the items, one share per thread; the results.

    `work` must be compiled with `nogil=True` to gain anything. The calling thread takes a share, too.
    """
    if threads <= 1:
        return [work(0, items, *arguments)]
    mine, *others = pairwise(items * t // threads for t in range(threads + 1))
    waiting = [pool().submit(work, *share, *arguments) for share in others]
    try:
        first = work(*mine, *arguments)
    finally:  # also when interrupted: nobody may write into the arrays any more
        results = [share.result() for share in waiting]
    return [first, *results]


def lend(work: Callable[..., object], *arguments: object) -> None:
    """Call work(*arguments) in another thread, soon, and do not wait for it."""
    pool().submit(work, *arguments)


@cache
def pool() -> ThreadPoolExecutor:
    """The threads, one per processor; they are started when there is work for them."""
    return ThreadPoolExecutor(usable_processors(), "shoal")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pool.cache_clear)  # threads do not survive a fork
