"""Torch's threads, which wait for each other after every operation."""

import os
import sys

from shoal.errors import UserError

PRODUCTS_PER_THREAD = 1_000_000_000
"""Multiplications of an update from which one more thread pays off. With fewer, a second thread saves less than a
third of the time on an idle machine, and costs up to nine tenths of the speed if another program occupies one of the
CPUs (`shoal bench steady`)."""
_threads_of: int | None = None  # the process in which torch has several threads


def set_torch_threads(count: int) -> None:
    """Set the number of torch's threads permanently.

    Starting numba's threads sets OpenMP's number of threads, which torch shares, so they are started first.
    """
    global _threads_of
    if count > 1:
        if _threads_of not in (None, os.getpid()):
            raise UserError(
                "This process was forked from one in which torch has already learned with several threads, which do "
                "not survive a fork; set `threads=1`, or start the process with the method spawn."
            )
        _threads_of = os.getpid()
    import numba
    import torch

    numba.get_num_threads()  # starts them
    torch.set_num_threads(count)


def _after_fork() -> None:
    """OpenMP would wait forever for threads that the fork has left behind: whatever torch does, it does alone."""
    if _threads_of is not None:
        sys.modules["torch"].set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
