"""Copies shared out to threads.

These are Python's own threads around a compiled function that lets go of the interpreter, not numba's parallel
loops: waiting threads sleep instead of spinning, so that they do not take the processor from the learner's threads
or from other programs, and nothing is compiled twice.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from shoal.processors import usable_processors

_pool: ThreadPoolExecutor | None = None


def share_out(work: Callable[..., None], copies: int, threads: int, *arguments: object) -> None:
    """Call work(first, last, *arguments) for consecutive shares of the copies, one share a thread.

    `work` must be compiled with `nogil=True`. The calling thread takes a share, too.
    """
    global _pool
    if threads == 1:
        work(0, copies, *arguments)
        return
    if _pool is None:
        _pool = ThreadPoolExecutor(usable_processors(), "shoal-envs")
    own, *others = pairwise(copies * t // threads for t in range(threads + 1))
    waiting = [_pool.submit(work, *share, *arguments) for share in others]
    try:
        work(*own, *arguments)
    finally:  # also when interrupted: nobody may write into the arrays any more
        for share in waiting:
            share.result()


def _forget_pool() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)  # threads do not survive a fork
