"""Addresses for the cache model: which bytes of memory a sampler touches, in the order it touches them.

Everything is a list of ranges (K, 2), address and length in bytes; a range of length 0 is one that did not happen.
The engine's are made in `ring_addresses`, the reference's in `object_addresses`.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]

NOWHERE = 2**46
"""Where invented addresses begin: no allocator gets there."""
PAGE = 4096


def touches(*accesses: tuple[ArrayLike, ArrayLike]) -> Ints:
    """(rows, K, 2) of K addresses and lengths, each for all rows or one for each."""
    rows = np.broadcast_shapes(*(np.shape(value) for access in accesses for value in access))[0]
    ranges = np.empty((rows, len(accesses), 2), np.int64)
    for k, (address, length) in enumerate(accesses):
        ranges[:, k, 0] = address
        ranges[:, k, 1] = length
    return ranges


def laid_out(sizes: Iterable[int], first: int = NOWHERE) -> list[int]:
    """Invented addresses of arrays one after the other as the allocator puts large ones: 16 bytes into a page."""
    places = []
    for size in sizes:
        places.append(first + 16)
        first += -(-(size + 16) // PAGE) * PAGE
    return places
