"""Figure 3: the time of an update grows faster than the agents, and the cache and dTLB misses 3.9 times from 3 to 6."""

from typing import Any

from shoal.profiling.figures import growth_figure
from shoal.profiling.profile import PAPER_GROWTH, Profile
from shoal.profiling.tables import growth_table, misses_table, times
from shoal.results import Result
from shoal.waiting import Advance
from shoal_papers.marl import profiles as sweeps


def length(quick: bool) -> float:
    """Measured seconds."""
    return sweeps.full(quick).total_seconds


def measured(quick: bool, advance: Advance) -> dict[str, Any]:
    """Time all cells."""
    return sweeps.run(sweeps.full(quick, misses=True), advance)


def study(data: dict[str, Any]) -> Result:
    """Growth of times and cache misses when the number of agents doubles."""
    found = Profile(**data)
    findings = [
        "Papers: the update grows faster than the number of agents, and from 3 to 6 agents dTLB load misses and cache "
        f"misses grow {PAPER_GROWTH} times or more."
    ]
    for name, rows in sweeps.panels(found.growth).items():
        steps = ", ".join(f"×{row['update all trainers']:.1f} ({row['agents']})" for row in rows)
        faster = all(row["update all trainers"] > 2 for row in rows)
        findings.append(f"{name}: update all trainers {steps}: {'always' if faster else 'not always'} more than twice.")
    if not found.growth:
        findings.append("No number of agents was measured together with its half.")
    for row in found.misses:
        if row["growth"] and row["agents"] == 6:
            findings.append(
                f"Cache model, {row['implementation']}, {row['sampler']}, {row['env']}, 3 to 6 agents: "
                f"last-level misses {times(row, 'l3')}, dTLB misses {times(row, 'dtlb')}."
            )
    findings.append(sweeps.circumstances(found))
    tables = [table for table in (growth_table(found.growth), misses_table(found.misses)) if table.rows]
    figures = [growth_figure(found.growth)]
    return Result("growth", "Growth when the number of agents doubles (Figure 3)", tables, findings, figures, data)
