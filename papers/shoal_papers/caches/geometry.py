"""The caches and translation buffers of this machine, or of one that the user describes.

Linux reports the data caches of the first core under /sys; for what it does not report, documented defaults are used,
and a note says so. The sizes of the data translation buffers (dTLB) are reported nowhere: unless given, they are those
that the vendor documents.
"""

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.errors import UserError, counted
from shoal.system.processors import processor_name

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Level:
    """One level of a cache or of a translation buffer, replaced least recently used first within a set."""

    capacity: int
    """Bytes of a cache, entries of a translation buffer."""
    ways: int
    """Places where a line or a page may lie."""


@dataclass(frozen=True)
class Geometry:
    """What the cache model needs to know of a machine."""

    l1: Level = Level(32 * 2**10, 8)
    """The first core's data cache."""
    l2: Level = Level(2**20, 16)
    l3: Level = Level(32 * 2**20, 16)
    """Shared by cores; the model gives all of it to one."""
    line: int = 64
    """Bytes of a cache line."""
    dtlb: Level = Level(64, 4)
    """First level of the data translation buffer."""
    stlb: Level = Level(1536, 12)
    """Second level; a page that is in neither takes a page walk."""
    page: int = 4096
    """Bytes of a page."""
    cpu: str = "unknown"
    assumed: Mapping[str, str] = field(default_factory=dict)
    """By name, a sentence for each of the above that the system did not tell."""

    def __post_init__(self) -> None:
        """Refuse what no machine can be."""
        for name, size in (("line", self.line), ("page", self.page)):
            if size < 1 or size & (size - 1):
                raise UserError(f"The {name} of a machine is {counted(size, 'byte')}, but must be a power of two.")
        if self.page < self.line:
            raise UserError(f"A page of {counted(self.page, 'byte')} is smaller than a line of {self.line}.")
        for name, (level, unit) in self._levels().items():
            if level.capacity < 1 or level.ways < 1 or level.capacity % (unit * level.ways):
                what = "entries" if unit == 1 else f"bytes in lines of {unit}"
                raise UserError(f"{name} has {level.capacity} {what}, which {level.ways} ways do not divide evenly.")

    def _levels(self) -> dict[str, tuple[Level, int]]:
        """Every level by its name in a description, and what its capacity is counted in."""
        caches = {"L1": (self.l1, self.line), "L2": (self.l2, self.line), "L3": (self.l3, self.line)}
        return {**caches, "dtlb": (self.dtlb, 1), "stlb": (self.stlb, 1)}

    def shapes(self) -> dict[str, tuple[int, int]]:
        """Sets and ways of each level."""
        return {
            name: (level.capacity // (unit * level.ways), level.ways) for name, (level, unit) in self._levels().items()
        }

    def __str__(self) -> str:
        """The description that `parse_geometry` reads."""
        levels = [
            f"{name}={level.capacity if unit == 1 else _short(level.capacity)}/{level.ways}"
            for name, (level, unit) in self._levels().items()
        ]
        return ",".join([*levels[:3], f"line={self.line}", *levels[3:], f"page={_short(self.page)}"])

    def describe(self) -> str:
        """The machine in a few lines for people, with what was assumed."""
        pages = (
            f"Every page is modelled as {_short(self.page)}; where the kernel gives transparent huge pages (numpy asks "
            "for them for arrays of 4 MB and more), say page=2M to see what they save."
        )
        return "\n".join([f"CPU {self.cpu}; modelled as {self}", *self.assumed.values(), pages])


AMD_TLB = (Level(64, 64), Level(2048, 16), "AMD documents since Zen 2")  # the second is skewed: 16 plain ways here
OTHER_TLB = (Geometry.dtlb, Geometry.stlb, "Intel documents since Skylake")


def modelled_geometry(caches: Sequence[str]) -> Geometry:
    """The geometry that these sizes describe, or this machine's if there are none."""
    return parse_geometry(",".join(caches)) if caches else machine_geometry()


def machine_geometry(root: Path = Path("/")) -> Geometry:
    """The geometry of the machine we run on. `root` is where /proc and /sys are looked for."""
    levels, line = _caches(root / "sys/devices/system/cpu/cpu0/cache")
    assumed = {}
    for name in ("l1", "l2", "l3"):
        if name not in levels:
            level = levels[name] = getattr(Geometry, name)
            size = f"{_short(level.capacity)}, {level.ways}-way"
            assumed[name] = f"The system does not report its {name.upper()} data cache; {size}, is assumed."
    if line is None:
        line = Geometry.line
        assumed["line"] = f"The system does not report the size of a cache line; {line} bytes are assumed."
    cpu, vendor = processor_name(root)
    dtlb, stlb, source = AMD_TLB if vendor == "AuthenticAMD" else OTHER_TLB
    for name, level in (("dtlb", dtlb), ("stlb", stlb)):
        which = "First" if name == "dtlb" else "Second"
        ways = "fully associative" if level.ways == level.capacity else f"{level.ways}-way"
        assumed[name] = (
            f"{which}-level data TLB: {level.capacity} entries, {ways}, are assumed, as {source}; operating systems do "
            "not report its size."
        )
    return Geometry(**levels, line=line, dtlb=dtlb, stlb=stlb, page=mmap.PAGESIZE, cpu=cpu, assumed=assumed)


def parse_geometry(text: str, base: Geometry | None = None) -> Geometry:
    """Read "L1=32K/8,L2=1M/16,L3=32M/16,line=64,dtlb=64/4,stlb=1536/12,page=4K".

    What is left out is as in `base`, which is this machine unless given.
    """
    given: dict[str, Level | int] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        name = key.strip().lower()
        if name not in ("l1", "l2", "l3", "line", "dtlb", "stlb", "page"):
            raise UserError(f"'{part.strip()}' is not a cache size; use some of {Geometry()}.")
        if name in given:
            raise UserError(f"The cache sizes '{text}' name '{key.strip()}' twice.")
        size, _, ways = value.partition("/")
        try:
            given[name] = _parse_size(value) if name in ("line", "page") else Level(_parse_size(size), int(ways))
        except ValueError:
            right = "a size such as 64 or 4K" if name in ("line", "page") else "size/ways such as 32K/8"
            raise UserError(f"'{part.strip()}' in the cache sizes '{text}' is not {right}.") from None
    machine = base or machine_geometry()
    assumed = {name: sentence for name, sentence in machine.assumed.items() if name not in given}
    return replace(machine, assumed=assumed, **given)  # type: ignore[arg-type]


def _parse_size(text: str) -> int:
    """A whole number with K, M or G behind it, or none; 32K, 32k, 32KB and 32KiB are the same."""
    digits = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = digits[-1:] if digits[-1:] in ("K", "M", "G") else ""
    number = digits.removesuffix(unit)
    if not (number.isascii() and number.isdecimal()):
        raise ValueError(text)
    return int(number) * UNITS[unit]


def _short(size: int) -> str:
    """Bytes in the largest unit that divides them, as `_parse_size` reads it."""
    for unit in ("G", "M", "K"):
        if size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]}{unit}"
    return str(size)


def _caches(folder: Path) -> tuple[dict[str, Level], int | None]:
    """The data and unified caches that the kernel tells, by level, and the size of their lines."""
    found: dict[str, Level] = {}
    lines: list[int] = []
    for index in sorted(folder.glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            name = f"l{(index / 'level').read_text().strip()}"
            size = _parse_size((index / "size").read_text())
            ways = int((index / "ways_of_associativity").read_text())
            line = _parse_size((index / "coherency_line_size").read_text())
        except (OSError, ValueError):
            continue
        if kind == "Instruction" or name not in ("l1", "l2", "l3") or size < 1 or line < 1:
            continue
        ways = ways or size // line  # 0 ways: fully associative
        if size % (line * ways) == 0:
            found[name] = Level(size, ways)
            lines.append(line)
    return found, min(lines, default=None)
