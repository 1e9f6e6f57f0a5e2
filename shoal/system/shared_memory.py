"""Memory that processes share: anonymous, passed on by its descriptor, gone with the last process that has it open."""

import mmap
import os
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shoal.errors import UserError
from shoal.system.memory import check_fits

LINE = 64  # bytes of a cache line: counters that different processes write are kept that far apart


def aligned(size: int) -> int:
    """The size rounded up to whole cache lines."""
    return -(-size // LINE) * LINE


class SharedMemory:
    """A block of bytes. It has no name, so a process that is killed leaves nothing behind."""

    def __init__(
        self, size: int, descriptor: int | None = None, remedy: str = "use fewer `actors` or `copies`"
    ) -> None:
        """A new block, or the one that a parent passed on as `descriptor`; `remedy`: what would need less memory."""
        self.size = size
        populated = getattr(mmap, "MAP_POPULATE", 0)  # Linux: no page is missing in the middle of the run
        try:
            if descriptor is None:
                check_fits("Memory shared between processes", size, lambda usable: remedy)
                descriptor = _new(size)
            self.descriptor = descriptor
            self.close = weakref.finalize(self, os.close, descriptor)
            """Let go of the descriptor; views stay valid. Happens by itself when the block is no longer used."""
            self._map = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | populated)
        except OSError as error:
            text = f"Cannot allocate {size:,} bytes of shared memory ({error.strerror}); {remedy}."
            raise UserError(text) from None

    @property
    def spec(self) -> dict[str, int]:
        """What a child needs, besides the open descriptor, to attach the block."""
        return {"size": self.size, "descriptor": self.descriptor}

    def array(self, dtype: DTypeLike, shape: tuple[int, ...], offset: int = 0) -> NDArray:
        """A view of a part of the block."""
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(self._map, dtype, count, offset).reshape(shape)


@dataclass(frozen=True)
class ArrayLayout:
    """Arrays in one block, one after the other; each begins on a cache line of its own."""

    arrays: Mapping[str, tuple[DTypeLike, tuple[int, ...]]]  # data type and shape of each, by name

    @cached_property
    def nbytes(self) -> int:
        """Bytes that all of them take."""
        return sum(map(self._bytes, self.arrays))

    def views(self, memory: SharedMemory, offset: int = 0) -> dict[str, NDArray]:
        """The arrays in a block, from this byte on."""
        views = {}
        for name, (dtype, shape) in self.arrays.items():
            views[name] = memory.array(dtype, shape, offset)
            offset += self._bytes(name)
        return views

    def _bytes(self, name: str) -> int:
        dtype, shape = self.arrays[name]
        return aligned(int(np.prod(shape)) * np.dtype(dtype).itemsize)


def _new(size: int) -> int:
    """The descriptor of fresh, zeroed memory whose pages are reserved: no later write can fail."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("shoal")
    else:  # macOS: a file that nobody else can open
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
