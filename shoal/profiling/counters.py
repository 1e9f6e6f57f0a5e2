"""The processor's own counters, by Linux's `perf_event_open`: user space only, all threads of this process.

Many machines do not have them: a virtual machine mostly has no counters, a container or the kernel may forbid them.
Then a sentence says why for every event, and everything else works without.
"""

import collections
import ctypes
import errno
import itertools
import os
import platform
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from shoal.system.control_groups import read_text
from shoal.training.clock import PhaseClock

HARDWARE, CACHE = 0, 3  # perf_event.h: PERF_TYPE_HARDWARE, PERF_TYPE_HW_CACHE
LAST_LEVEL, DATA_TLB = 2, 3
READ_MISSES = 1 << 16  # operation 0, read; result 1, miss
EVENTS = {
    "instructions": (HARDWARE, 1),
    "cycles": (HARDWARE, 0),
    "cache misses": (HARDWARE, 3),
    "LL load misses": (CACHE, LAST_LEVEL | READ_MISSES),
    "dTLB load misses": (CACHE, DATA_TLB | READ_MISSES),
}
"""Name, and the kernel's type and number of it."""
SYSCALLS = {"x86_64": 298, "amd64": 298, "ppc64le": 319, "s390x": 331}
SYSCALLS |= dict.fromkeys(("aarch64", "arm64", "riscv64", "loongarch64"), 241)
"""The number of perf_event_open by machine."""
TIMES = 1 | 2  # read_format: how long the event was wanted and how long it was counted
INHERIT, EXCLUDE_KERNEL, EXCLUDE_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
CLOSE_ON_EXEC = 1 << 3
ATTRIBUTES = struct.Struct("=IIQQQQQIIQ")
"""Type, size, config, period, sample type, read format, bits, and three unused."""
READING = struct.Struct("=QQQ")  # value, time enabled, time running


def attributes(kind: int, config: int) -> bytes:
    """The kernel's perf_event_attr, in its first and smallest version: count in user space, in new threads too."""
    bits = INHERIT | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR
    return ATTRIBUTES.pack(kind, ATTRIBUTES.size, config, 0, 0, TIMES, bits, 0, 0, 0)


def perf_event_open(number: int, attr: bytes, thread: int) -> int:
    """Begin to count an event in a thread, whichever core it is on; the file to read it from, or an OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    any_core, no_group = ctypes.c_long(-1), ctypes.c_long(-1)
    file = library.syscall(
        ctypes.c_long(number), attr, ctypes.c_long(thread), any_core, no_group, ctypes.c_ulong(CLOSE_ON_EXEC)
    )
    if file < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(file)


class Counters(AbstractContextManager["Counters"]):
    """Counts from construction; `reasons` has a sentence for every event that cannot be counted."""

    def __init__(self, events: dict[str, tuple[int, int]] = EVENTS) -> None:
        self.reasons: dict[str, str] = {}
        self._files: dict[str, list[int]] = {}
        number = SYSCALLS.get(platform.machine().lower())
        for name, (kind, config) in events.items():
            if sys.platform != "linux":
                self.reasons[name] = f"Only Linux has perf_event_open, and this is {sys.platform}."
            elif number is None:
                self.reasons[name] = f"How to call perf_event_open on {platform.machine()} is not known."
            else:
                self._open(name, number, attributes(kind, config))

    def _open(self, name: str, number: int, attr: bytes) -> None:
        """Count the event in all threads there are; those to come inherit it from the thread that starts them."""
        files: list[int] = []
        try:
            for thread in _threads():
                try:
                    files.append(perf_event_open(number, attr, thread))
                except OSError as error:
                    if error.errno != errno.ESRCH:  # a thread that has ended meanwhile has nothing to count
                        raise
        except OSError as error:
            for file in files:
                os.close(file)
            self.reasons[name] = reason(error)
        else:
            self._files[name] = files

    def available(self) -> tuple[bool, str]:
        """Whether anything is counted, and a sentence on what is and why the rest is not."""
        names: dict[str, list[str]] = {}
        for name, why in self.reasons.items():
            names.setdefault(why, []).append(name)
        sentences = [f"Not counted: {', '.join(missing)}. {why}" for why, missing in names.items()]
        if self._files:
            sentences.insert(0, f"Counted: {', '.join(self._files)}.")
        return bool(self._files), " ".join(sentences)

    def read(self) -> dict[str, int]:
        """Counts so far of every event that is counted.

        The kernel takes turns where there are more events than counters; then a count is what it would be, had the
        event been counted all the time.
        """
        return {
            name: sum(_scaled(os.read(file, READING.size)) for file in files) for name, files in self._files.items()
        }

    def __exit__(self, *_: object) -> None:
        """Stop counting."""
        for file in itertools.chain(*self._files.values()):
            os.close(file)
        self._files = {}


PhaseCounts = collections.defaultdict[str, collections.Counter[str]]


class PhaseCounters(PhaseClock):
    """A phase clock that also adds up the counters by phase; to be used wherever a clock is."""

    def __init__(self, counters: Counters, wait: Callable[[], object] | None = None) -> None:
        super().__init__(wait)
        self.counters = counters
        self.counts = PhaseCounts(collections.Counter)
        """Phase, event: how many; the parts of "target Q" apart."""
        self._last = counters.read()

    def __call__(self, phase: str) -> None:
        """Begin a phase; what was counted since the last call goes to the phase before."""
        now = self.counters.read()
        self.counts[self.phase].update({name: count - self._last[name] for name, count in now.items()})
        self._last = now
        super().__call__(phase)

    def divide(self, shares: Mapping[str, float]) -> None:
        """Divide time and counts of the present phase among several that ran side by side: counts as the time."""
        began = self.phase
        before = collections.Counter(self.counts[began])
        super().divide(shares)
        passed = {name: count - before[name] for name, count in self.counts[began].items()}
        self.counts[began].subtract(passed)
        for phase, share in shares.items():
            self.counts[phase].update({name: round(share * count) for name, count in passed.items()})

    def counts_by_phase(self) -> dict[str, dict[str, int]]:
        """Counts of each phase, the parts of "target Q" added up; only phases that there were."""
        self(self.phase)
        whole = PhaseCounts(collections.Counter)
        for phase, counts in self.counts.items():
            whole[phase.partition(":")[0]].update(counts)
        return {phase: dict(counts) for phase, counts in whole.items()}


def reason(error: OSError) -> str:
    """Why the kernel refused to count an event."""
    paranoid = Path("/proc/sys/kernel/perf_event_paranoid")  # who may count
    forbidden = f"{paranoid} is {read_text(paranoid).strip() or 'unknown'}, but must be 2 or less"
    missing = "This machine has no such counter, as is common for virtual machines."
    reasons = {
        **dict.fromkeys((errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP), missing),
        errno.EACCES: f"The kernel forbids it: {forbidden}.",
        errno.EPERM: "The kernel, or the filter of system calls that a container has, forbids perf_event_open.",
        errno.ENOSYS: "This kernel has no perf_event_open.",
        errno.EBUSY: "Another process has the counter for itself.",
        errno.EMFILE: "This process has too many open files.",
    }
    return reasons.get(error.errno or 0, f"perf_event_open failed: {os.strerror(error.errno or 0)}.")


def _scaled(data: bytes) -> int:
    """A reading as if the event had been counted all the time; 0 if it never was."""
    value, enabled, running = READING.unpack(data)
    return value * enabled // running if running else 0


def _threads() -> list[int]:
    """The threads of this process."""
    return sorted(int(name) for name in os.listdir("/proc/self/task"))


# ---- energy -----------------------------------------------------------------------------------------------

POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """Joules since the last look; None where there are no counters that may be read.

    A counter wraps round after minutes at full power at the earliest: look more often than that.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self.reason = ""
        """Why counters that are there cannot be read."""
        self._packages: list[tuple[Path, int]] = []
        try:
            self._packages = [(path / "energy_uj", _number(path / "max_energy_range_uj")) for path in packages(root)]
            self._last = self._now()
        except (OSError, ValueError) as error:
            self._packages = []
            why = getattr(error, "strerror", None) or error
            self.reason = f"The energy counters in {root} cannot be read: {why}."

    def joules(self) -> float | None:
        """Of all packages together, since the last call or since the meter was made."""
        if not self._packages:
            return None
        last, self._last = self._last, self._now()
        ranges = (most for _, most in self._packages)
        used = ((new - old) % most for new, old, most in zip(self._last, last, ranges, strict=True))
        return sum(used) / 1e6

    def _now(self) -> list[int]:
        return [_number(path) for path, _ in self._packages]


def packages(root: Path = POWERCAP) -> list[Path]:
    """The folder of every package; the MMIO interface shows the same packages again and is left out."""
    found = sorted(path for path in root.glob("intel-rapl:*") if path.name.count(":") == 1)
    return [path for path in found if (path / "name").read_text().startswith("package")]


def _number(path: Path) -> int:
    return int(path.read_text())


# ---- other programs --------------------------------------------------------------------------------------


class Neighbours:
    """How busy other programs keep the processors meanwhile: times measured beside them are too long."""

    def __init__(self) -> None:
        self._start = self._now()

    def share(self) -> float | None:
        """Their share of all processors' time since the start; None where the system does not tell."""
        if self._start is None or (now := self._now()) is None:
            return None
        ticks, busy, own = (after - before for after, before in zip(now, self._start, strict=True))
        return max(0.0, busy - own) / ticks if ticks > 0 else None

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """Seconds of all processors together: all, those at work, and those of this process."""
        ticks = [int(word) for word in read_text(Path("/proc/stat")).partition("\n")[0].split()[1:9]]
        if not ticks:
            return None
        second = os.sysconf("SC_CLK_TCK")
        idle = ticks[3] + ticks[4]  # waiting for a disk is idle, too
        times = os.times()
        return sum(ticks) / second, (sum(ticks) - idle) / second, times.user + times.system
