"""Settings of a process: how threads wait, when garbage is collected, what the C library keeps of freed memory."""

import atexit
import contextlib
import ctypes
import gc
import mmap
import os
import warnings

from shoal.system.memory import LIMITS, allowed, limits_left
from shoal.system.processors import usable_processors

HEAP_BYTES = 2**28  # of the heap in large pages: what the updates of a dozen agents work in
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, ARENA_MAX = -1, -2, -3, -8  # glibc's malloc.h


def prepare() -> None:
    """Make this process a good neighbour, before its first heavy import; what the environment sets stands."""
    # Threads that wait for each other spin for a moment and then sleep: on a machine with other work to do, spinning
    # takes the processor from the very thread that is waited for.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    os.environ.setdefault("OMP_NUM_THREADS", str(usable_processors()))  # OpenMP knows nothing of a container's quota
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler would tell when it starts and stops,
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # and that it saw only what happened in between
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    # numba's, where /dev/shm is full or missing; it is for programs that fork while they import numba
    warnings.filterwarnings("ignore", ".*Could not obtain multiprocessing lock")
    # The libraries make a million objects that live until the end: looking through them for garbage over and over while
    # they are imported, and once more at exit, took a third of the time of a short run.
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)
    live_within_limits()


def live_within_limits() -> None:
    """Where there is a limit, let libraries reserve nothing per thread: it would take most of the memory."""
    if any(allowed(limit) is not None for limit in LIMITS):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        os.environ.setdefault("MALLOC_ARENA_MAX", "1")  # for processes that this one starts
        with contextlib.suppress(OSError, AttributeError):  # where the C library is not glibc
            ctypes.CDLL(None).mallopt(ARENA_MAX, 1)


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
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(MMAP_THRESHOLD, 2**30)
        library.mallopt(TRIM_THRESHOLD, 2**31 - 1)
        library.mallopt(TOP_PAD, 2**26)
        library.malloc.restype = ctypes.c_void_p
        block = library.malloc(ctypes.c_size_t(HEAP_BYTES))  # addresses only: memory is taken when it is written
        if block is not None:
            first, last = -(-block // mmap.PAGESIZE), (block + HEAP_BYTES) // mmap.PAGESIZE
            start, size = ctypes.c_void_p(first * mmap.PAGESIZE), ctypes.c_size_t((last - first) * mmap.PAGESIZE)
            library.madvise(start, size, mmap.MADV_HUGEPAGE)
            library.free(ctypes.c_void_p(block))
