"""Checksums of what one process leaves in shared memory for another."""

import numpy as np

from shoal.compiled import njit


@njit(cache=True, nogil=True)
def copy_checked(source, target):  # type: ignore[no-untyped-def]
    """Copy 64-bit words and return their checksum: four lanes, so that it takes no longer than the copy."""
    prime = np.uint64(0x9E3779B97F4A7C15)
    a, b, c, d = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    whole = source.size // 4 * 4
    for i in range(0, whole, 4):
        w, x, y, z = source[i], source[i + 1], source[i + 2], source[i + 3]
        target[i], target[i + 1], target[i + 2], target[i + 3] = w, x, y, z
        a, b, c, d = (a ^ w) * prime, (b ^ x) * prime, (c ^ y) * prime, (d ^ z) * prime
    for i in range(whole, source.size):
        target[i] = source[i]
        a = (a ^ source[i]) * prime
    return ((a * prime ^ b) * prime ^ c) * prime ^ d


@njit(cache=True, nogil=True)
def checksum(words):  # type: ignore[no-untyped-def]
    """What `copy_checked` returns for these words."""
    prime = np.uint64(0x9E3779B97F4A7C15)
    a, b, c, d = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    whole = words.size // 4 * 4
    for i in range(0, whole, 4):
        a, b = (a ^ words[i]) * prime, (b ^ words[i + 1]) * prime
        c, d = (c ^ words[i + 2]) * prime, (d ^ words[i + 3]) * prime
    for i in range(whole, words.size):
        a = (a ^ words[i]) * prime
    return ((a * prime ^ b) * prime ^ c) * prime ^ d
