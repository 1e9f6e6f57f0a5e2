"""The sweeps behind the timing figures: all the papers' cells, or as many as fit into two minutes."""

from collections.abc import Sequence
from typing import Any

from shoal.errors import UserError, counted
from shoal.profiling.cells import Sweep
from shoal.profiling.figures import Row, uniform_only
from shoal.profiling.machine import machine_geometry
from shoal.profiling.profile import Profile, profile
from shoal.waiting import Advance

PAPER_AGENTS = (3, 6, 12, 24, 48)


def full(quick: bool, misses: bool = False) -> Sweep:
    """Both algorithms and worlds at all the papers' numbers of agents; quick: MADDPG in predator-prey at three.

    With one thread: threads that wait for each other make times depend on other load on the machine.
    """
    common: dict[str, Any] = {"sampler": ("uniform",), "misses": misses, "memory": False, "threads": 1}
    if quick:
        return Sweep((3, 6, 12), ring=50_000, seconds=4.0, **common)
    return Sweep(PAPER_AGENTS, ("maddpg", "masac"), ("predator-prey", "cooperative-navigation"), seconds=6.0, **common)


def run(sweep: Sweep, advance: Advance) -> dict[str, Any]:
    """The profile of these cells, as plain values."""
    found = profile(sweep, machine_geometry(), advance)
    if not found.rows:
        raise UserError(f"Nothing could be measured: {' '.join(found.failed)}")
    return found.to_dict()


def panels(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of uniform sampling, if any, by implementation, algorithm and world, each in the order of agents."""
    found: dict[str, list[Row]] = {}
    for row in sorted(uniform_only(rows), key=lambda row: int(str(row["agents"]).split()[0])):  # 3, or "3 to 6"
        found.setdefault(f"{row['implementation']}, {row['algorithm']}, {row['env']}", []).append(row)
    return found


def circumstances(found: Profile) -> str:
    """Ring sizes, cells that were cut short or not measured, and other load on the machine."""
    rows = found.rows
    sizes: dict[int, list[int]] = {}
    for row in rows:
        sizes.setdefault(row["agents"], []).append(row["ring"])
    rings = ", ".join(
        f"{' and '.join(f'{ring:,}' for ring in sorted(set(held), reverse=True))} ({counted(agents, 'agent')})"
        for agents, held in sizes.items()
    )
    said = [f"Ring sizes in transitions (papers: 1,000,000): {rings}."]
    if cut := sum(row["cut_short"] for row in rows):
        said.append(f"{cut} of {len(rows)} cells were cut short (*).")
    if (busiest := max(row["others"] or 0.0 for row in rows)) > 0.05:
        said.append(f"Other programs used up to {100 * busiest:.0f} % of the CPUs: times may be too long.")
    return " ".join([*said, *found.failed])
