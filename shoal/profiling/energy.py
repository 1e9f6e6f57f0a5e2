"""Energy of the processor packages, by the kernel's RAPL counters (Intel, and AMD since Zen).

A counter covers a whole package: every program that runs on it meanwhile. Only packages are added up, because their
subdomains (cores, uncore, DRAM controller) and the platform (psys) would count the same energy again.
"""

from pathlib import Path

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
    found = sorted(root.glob("intel-rapl:*")) if root.is_dir() else []
    return [path for path in found if path.name.count(":") == 1 and _name(path).startswith("package")]


def _name(path: Path) -> str:
    return (path / "name").read_text().strip()


def _number(path: Path) -> int:
    return int(path.read_text())
