"""Counts what rounding does to a tensor."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.compiled import njit
from shoal.system.threads import share_out

ALONE = 2**16
"""Up to this many numbers one thread is faster than two."""


def count_events(x: Tensor, rounded: Tensor, highest: float, lowest: float) -> tuple[int, int, int]:
    """(saturated, overflowed, underflowed): finite numbers limited to the format's ends, finite numbers that became
    infinite or NaN, and nonzero numbers that became zero.
    """
    before, after = (t.contiguous().reshape(-1).numpy() for t in (x.float(), rounded.float()))
    ends = np.float32(highest), np.float32(lowest)
    totals: list[tuple[int, int, int]] = []

    def work(first: int, last: int) -> int:
        totals.append(_count(before[first:last], after[first:last], *ends))
        return 0

    share_out(work, before.size, torch.get_num_threads() if before.size > ALONE else 1)
    saturated, overflowed, underflowed = np.sum(totals, axis=0) if totals else (0, 0, 0)
    return int(saturated), int(overflowed), int(underflowed)


@njit(cache=True, nogil=True, error_model="numpy")
def _count(
    before: NDArray[np.float32], after: NDArray[np.float32], highest: np.float32, lowest: np.float32
) -> tuple[int, int, int]:
    saturated = overflowed = underflowed = np.int32(0)
    infinity = np.float32(np.inf)
    for n in range(before.size):
        x, y = before[n], after[n]
        finite = abs(x) < infinity
        saturated += np.int32(finite & (((x > y) & (y >= highest)) | ((x < y) & (y <= lowest))))
        overflowed += np.int32(finite & (not (abs(y) < infinity)))
        underflowed += np.int32((x != np.float32(0)) & (y == np.float32(0)))
    return int(saturated), int(overflowed), int(underflowed)
