"""Limits of the shell on a process (`ulimit -v`, `ulimit -d`): what they leave, and which are too low to start.

Under a limit that is too low, libraries do not fail in a way that a program could handle: OpenBLAS retries forever,
in native code that no signal ends; others abort the process. So a command compares the limits with its known needs
before it imports any of them.
"""

import contextlib
import ctypes
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import UserError

ARENA_MAX = -8  # glibc's malloc.h
USUAL_STACK = 2**21  # of a thread, where stacks have no limit


@dataclass(frozen=True)
class Limit:
    """One of the limits, and the most bytes of it that small work takes on two processors, with loops compiled.

    Measured with torch 2.13 for CPUs: VmPeak and the highest VmData of `shoal train --episodes 60 --warmup 100 --watch`
    in both implementations (evaluate, watch, quantize, export and profile take less), and without torch of
    `shoal evaluate policy.onnx`. A test keeps these figures true (docs/testing.md).
    """

    name: str
    option: str
    kind: int
    taken: str
    """What of it is taken, in /proc/self/status."""
    with_torch: int
    without_torch: int


LIMITS = (
    Limit("address space", "ulimit -v", resource.RLIMIT_AS, "VmSize:", 1_440_000_000, 660_000_000),
    Limit("data", "ulimit -d", resource.RLIMIT_DATA, "VmData:", 700_000_000, 300_000_000),
)
LEAST_LEFT = 100_000_000
"""Bytes for arrays that must be left to start at all."""


def allowed(limit: Limit) -> int | None:
    """Bytes that this process may take; None: no limit."""
    soft = resource.getrlimit(limit.kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def limits_left(root: Path = Path("/")) -> int | None:
    """Bytes that the limits leave for arrays; None where there is no limit. `root` is the folder of /proc.

    What libraries will take in the end is subtracted, even if they have not taken all of it yet.
    """
    left = []
    for limit in LIMITS:
        most, taken = allowed(limit), _taken(root / "proc/self/status", limit.taken)
        if most is not None and taken is not None:
            left.append(most - max(taken, small_work(limit, torch="torch" in sys.modules)))
    return max(0, min(left)) if left else None


def check_limits(torch: bool) -> None:
    """Refuse to start under a limit that is too low; `torch`: PyTorch will be imported."""
    for limit in LIMITS:
        most = allowed(limit)
        needed = -(-(small_work(limit, torch) + LEAST_LEFT) // 1024)
        if most is not None and most // 1024 < needed:
            raise UserError(
                f"This process may take {most // 1024:,} kB of {limit.name} ({limit.option}), but needs at least "
                f"{needed:,} kB to start; raise the limit, e.g. with '{limit.option} {needed}'."
            )


def live_within_limits() -> None:
    """Where there is a limit, let libraries reserve nothing per thread: it would take most of the memory."""
    if any(allowed(limit) is not None for limit in LIMITS):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        os.environ.setdefault("MALLOC_ARENA_MAX", "1")  # for processes that this one starts
        with contextlib.suppress(OSError, AttributeError):  # where the C library is not glibc
            ctypes.CDLL(None).mallopt(ARENA_MAX, 1)


def small_work(limit: Limit, torch: bool) -> int:
    """Bytes that small work takes; on more processors torch and numba start more threads, each with a stack."""
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    stack = USUAL_STACK if stack == resource.RLIM_INFINITY else stack
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return (limit.with_torch if torch else limit.without_torch) + 2 * max(0, processors - 2) * stack


def _taken(status: Path, name: str) -> int | None:
    """Bytes that the process has taken; None where the system does not report it."""
    with contextlib.suppress(OSError):
        for line in status.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return None
