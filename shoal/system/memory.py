"""How much memory is free; what would not fit is refused with a sentence instead of an out-of-memory kill."""

import contextlib
import ctypes
import mmap
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from shoal.errors import UserError
from shoal.system.control_groups import group_folders, read_number, read_text
from shoal.system.limits import limits_left

HEAP_BYTES = 2**28  # of the heap in large pages: what the updates of a dozen agents work in


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes this process can still allocate: what the machine, its own limits and its control group leave.

    None where the system does not report it. `root` is the folder of /proc and /sys.
    """
    left = [value for value in (_available(root), *_groups_left(root), limits_left(root)) if value is not None]
    if left:
        return max(0, min(left))
    return _physical()


def resident_bytes() -> int:
    """Resident memory of this process; its peak where the system does not report more."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def keep_freed_memory() -> None:
    """Ask the C library to keep what is freed for the next request, in large pages where the system has them.

    An update frees and asks for the same megabytes over and over; getting them from the system page by page took
    a fifth of its time, finding them by way of small pages another tenth. Nothing happens where the C library is not
    glibc or the system knows no large pages, nor where the process's limits leave little: what is kept for arrays is
    lost to threads and libraries.
    """
    left = limits_left()
    if left is not None and left < 8 * HEAP_BYTES:
        return
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # glibc's malloc.h
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(mmap_threshold, 2**30)
        library.mallopt(trim_threshold, 2**31 - 1)
        library.mallopt(top_pad, 2**26)
        library.malloc.restype = ctypes.c_void_p
        block = library.malloc(ctypes.c_size_t(HEAP_BYTES))  # addresses only: memory is taken when it is written
        if block is not None:
            first, last = -(-block // mmap.PAGESIZE), (block + HEAP_BYTES) // mmap.PAGESIZE
            start, size = ctypes.c_void_p(first * mmap.PAGESIZE), ctypes.c_size_t((last - first) * mmap.PAGESIZE)
            library.madvise(start, size, mmap.MADV_HUGEPAGE)
            library.free(ctypes.c_void_p(block))


def check_fits(what: str, needed: int, largest: Callable[[int], str], reserved: int = 0) -> None:
    """Refuse `what` unless its bytes fit into free memory less a tenth, which is kept for everything else.

    `reserved` more bytes are promised to something that has not allocated them yet.
    `largest` is given the bytes that may be used and returns half a sentence on what would fit into them.
    """
    free = free_memory()
    if free is None:
        return
    kept = free // 10 + reserved
    if needed > free - kept:
        left = limits_left()
        within = " within this process's limits (ulimit)" if left is not None and left <= free else ""
        raise UserError(
            f"{what} needs {human_bytes(needed)}, but only {human_bytes(free)} of memory is free{within} "
            f"({human_bytes(kept)} of it is reserved); {largest(max(0, free - kept))}."
        )


def ran_out_of_memory(error: Exception) -> bool:
    """Whether an error means that memory ran out; torch and the loader have no exception type for it."""
    phrases = ("allocate memory", "failed to map segment", "start new thread", "bad_alloc")
    return isinstance(error, MemoryError) or any(words in str(error) for words in phrases)


def human_bytes(count: int) -> str:
    """A size in the unit that reads best."""
    value, unit = float(count), "bytes"
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return (
        f"{value:.0f} bytes" if unit == "bytes" else f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
    )


def _available(root: Path) -> int | None:
    """Linux: memory available without swapping."""
    return _field(root / "proc/meminfo", "MemAvailable:", unit=1024)


def _groups_left(root: Path) -> Iterator[int | None]:
    """What the limits of our control group and of those above it leave."""
    for version, folder in group_folders("memory", root):
        if version == 2:
            limit, usage, cache = "memory.max", "memory.current", "inactive_file"
        else:
            limit, usage, cache = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        allowed, used = read_number(folder / limit), read_number(folder / usage)
        if allowed is not None and used is not None:
            # Files read long ago count as used, but the kernel gives them back when asked.
            yield allowed - used + (_field(folder / "memory.stat", cache) or 0)


def _physical() -> int | None:
    """Elsewhere: free pages where the system counts them, else all the memory there is."""
    for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        try:
            return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, ValueError, OSError):
            continue
    return None


def _field(path: Path, name: str, unit: int = 1) -> int | None:
    """The number behind a name at the start of a line."""
    for line in read_text(path).splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == name and words[1].isdecimal():
            return int(words[1]) * unit
    return None
