"""Settings of a process before its first heavy import: how threads wait, when garbage is collected."""

import atexit
import gc
import os
import warnings

from shoal.system.limits import live_within_limits
from shoal.system.processors import usable_processors


def prepare() -> None:
    """Make this process a good neighbour; what the person has set in the environment stands."""
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
