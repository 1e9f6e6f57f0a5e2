"""Memory that processes share: anonymous, passed on by its descriptor, gone with the last process that has it open."""

import mmap
import os
import tempfile
import weakref

import numpy as np
from numba import njit
from numpy.typing import DTypeLike, NDArray

from shoal.errors import UserError
from shoal.memory import check_fits

LINE = 64
"""Bytes of a cache line: counters that different processes write are kept that far apart."""


def aligned(size: int) -> int:
    """The size rounded up to whole cache lines."""
    return -(-size // LINE) * LINE


class SharedMemory:
    """A block of bytes. It has no name, so a process that is killed leaves nothing behind."""

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        """A new block, or the one that a parent process passed on as `descriptor`."""
        self.size = size
        self.descriptor = _new(size) if descriptor is None else descriptor
        self.close = weakref.finalize(self, os.close, self.descriptor)
        """Let go of the descriptor; views stay valid. Happens by itself when the block is no longer used."""
        populated = getattr(mmap, "MAP_POPULATE", 0)  # Linux: no page is missing in the middle of the run
        try:
            self._map = mmap.mmap(self.descriptor, size, flags=mmap.MAP_SHARED | populated)
        except OSError as error:
            raise no_memory(size, error) from None

    def array(self, dtype: DTypeLike, shape: tuple[int, ...], offset: int = 0) -> NDArray:
        """A view of a part of the block."""
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(self._map, dtype, count, offset).reshape(shape)


def _new(size: int) -> int:
    """The descriptor of fresh, zeroed memory whose pages are reserved: no later write can fail."""
    check_fits("Memory shared with the actors", size, lambda usable: "fewer --actors or --copies need less")
    try:
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("shoal")
        else:  # macOS: a file that nobody else can open
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
    except OSError as error:
        raise no_memory(size, error) from None
    try:
        os.ftruncate(descriptor, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        os.close(descriptor)
        raise no_memory(size, error) from None
    return descriptor


def no_memory(size: int, error: OSError) -> UserError:
    """The error where the system refuses a block."""
    return UserError(f"Cannot allocate {size:,} bytes of shared memory ({error.strerror}); use fewer --actors.")


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
