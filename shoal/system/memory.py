"""How much memory is free, and what limits of the shell (`ulimit -v`, `ulimit -d`) leave of it.

What would not fit is refused with a sentence instead of an out-of-memory kill. Under a limit that is too low, libraries
do not fail in a way that a program could handle: OpenBLAS retries forever, in native code that no signal ends; others
abort the process. So a command compares the limits with its known needs before it imports any of them.
"""

import contextlib
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import UserError
from shoal.system.control_groups import group_folders, read_number, read_text
from shoal.system.processors import affinity

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
    taken: str  # what of it is taken, in /proc/self/status
    with_torch: int
    without_torch: int


LIMITS = (
    Limit("address space", "ulimit -v", resource.RLIMIT_AS, "VmSize:", 1_440_000_000, 660_000_000),
    Limit("data", "ulimit -d", resource.RLIMIT_DATA, "VmData:", 700_000_000, 300_000_000),
)
LEAST_LEFT = 100_000_000  # bytes for arrays that must be left to start at all


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes this process can still allocate: what the machine, its own limits and its control group leave.

    None where the system does not report it. `root` is the folder of /proc and /sys.
    """
    available = _field(root / "proc/meminfo", "MemAvailable:", unit=1024)  # Linux: without swapping
    left = [value for value in (available, *_groups_left(root), limits_left(root)) if value is not None]
    return max(0, min(left)) if left else _physical()


def resident_bytes() -> int:
    """Resident memory of this process; its peak where the system does not report more."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


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
    power = min(len(str(int(count))) - 1, 12) // 3
    value, unit = count / 1000**power, ("bytes", "kB", "MB", "GB", "TB")[power]
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:,.0f} {unit}"


def allowed(limit: Limit) -> int | None:
    """Bytes of it that this process may take; None: no limit."""
    soft = resource.getrlimit(limit.kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def limits_left(root: Path = Path("/")) -> int | None:
    """Bytes that the limits leave for arrays; None where there is no limit. `root` is the folder of /proc.

    What libraries will take in the end is subtracted, even if they have not taken all of it yet.
    """
    left = []
    for limit in LIMITS:
        most, taken = allowed(limit), _field(root / "proc/self/status", limit.taken, 1024)
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


def small_work(limit: Limit, torch: bool) -> int:
    """Bytes that small work takes; on more processors torch and numba start more threads, each with a stack."""
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    stack = USUAL_STACK if stack == resource.RLIM_INFINITY else stack
    return (limit.with_torch if torch else limit.without_torch) + 2 * max(0, affinity() - 2) * stack


def _groups_left(root: Path) -> Iterator[int | None]:
    """What the limits of our control group and of those above it leave."""
    for version, folder in group_folders("memory", root):
        if version == 2:
            limit, usage, cache = "memory.max", "memory.current", "inactive_file"
        else:
            limit, usage, cache = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        most, used = read_number(folder / limit), read_number(folder / usage)
        if most is not None and used is not None:
            # Files read long ago count as used, but the kernel gives them back when asked.
            yield most - used + (_field(folder / "memory.stat", cache) or 0)


def _physical() -> int | None:
    """Elsewhere: free pages where the system counts them, else all the memory there is."""
    for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    return None


def _field(path: Path, name: str, unit: int = 1) -> int | None:
    """The number behind a name at the start of a line."""
    number = re.search(rf"^{name}\s+(\d+)", read_text(path), re.MULTILINE)
    return int(number[1]) * unit if number else None
