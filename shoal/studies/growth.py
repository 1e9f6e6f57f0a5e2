"""Figure 3: the time of an update grows faster than the agents, and the cache and dTLB misses 3.9 times from 3 to 6."""

from typing import Any

from shoal.profiling.profile import PAPER_GROWTH
from shoal.profiling.tables import growth_table, misses_table, times, without_constants
from shoal.studies import sweeps
from shoal.studies.study import Advance, Study


def length(quick: bool) -> float:
    """Seconds under the clock."""
    return sweeps.full(quick).total_seconds


def measured(quick: bool, advance: Advance) -> dict[str, Any]:
    """Time all cells."""
    return sweeps.run(sweeps.full(quick, misses=True), advance)


def study(found: dict[str, Any]) -> Study:
    """How much longer everything takes with twice the agents, and how much more the samplers miss."""
    findings = [
        "Papers: the update grows faster than the number of agents, and from 3 to 6 agents dTLB load misses and cache "
        f"misses grow {PAPER_GROWTH} times or more."
    ]
    for name, rows in sweeps.panels(found["growth"]).items():
        steps = ", ".join(f"×{row['update all trainers']:.1f} ({row['agents']})" for row in rows)
        faster = all(row["update all trainers"] > 2 for row in rows)
        findings.append(f"{name}: update all trainers {steps}: {'always' if faster else 'not always'} more than twice.")
    if not found["growth"]:
        findings.append("No number of agents was measured beside its half.")
    for row in found["misses"]:
        if row["growth"] and row["agents"] == 6:
            findings.append(
                f"Cache model, {row['implementation']}, {row['sampler']}, {row['env']}, 3 to 6 agents: "
                f"last-level misses {times(row, 'l3')}, dTLB misses {times(row, 'dtlb')}."
            )
    findings.append(sweeps.circumstances(found))
    tables = [
        ("Times as long when the agents double", growth_table(found["growth"])),
        ("Cache model: misses in thousands of one update's mini-batches", misses_table(found["misses"])),
    ]
    return Study(
        "growth",
        "Growth when the agents double (Figure 3)",
        [without_constants(*table) for table in tables if table[1]],
        findings,
        "growth",
        found,
    )
