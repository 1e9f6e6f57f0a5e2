"""Figure 5: neighbour sampling shortens the sampling phase by about 27 %, and training as a whole by 10.2 %."""

from typing import Any

from shoal.errors import counted
from shoal.profiling.cells import Sweep
from shoal.profiling.figures import neighbor_figure
from shoal.profiling.profile import PAPER_REDUCTION, PAPER_TOTAL_REDUCTION, Profile
from shoal.profiling.tables import misses_table, neighbor_table
from shoal.results import Result
from shoal.waiting import Advance
from shoal_papers.marl import profiles as sweeps


def _sweep(quick: bool) -> Sweep:
    if quick:
        return Sweep((3, 6, 12), sampler=("uniform", "neighbor"), seconds=3.0, ring=100_000, memory=False, threads=1)
    samplers = ("uniform", "neighbor", "neighbor-v1", "neighbor-v2")
    return Sweep((3, 6, 12), sampler=samplers, seconds=20.0, memory=False, threads=1)


def length(quick: bool) -> float:
    """Measured seconds."""
    return _sweep(quick).total_seconds


def measured(quick: bool, advance: Advance) -> dict[str, Any]:
    """Time both samplers in both implementations."""
    return sweeps.run(_sweep(quick), advance)


def study(data: dict[str, Any]) -> Result:
    """Neighbour sampling against uniform sampling in both implementations."""
    found = Profile(**data)
    findings = [
        f"Papers: the sampling phase is {PAPER_REDUCTION[3]} % (3 agents) to {PAPER_REDUCTION[12]} % (12) shorter, "
        f"training as a whole {PAPER_TOTAL_REDUCTION[12]} % (12)."
    ]
    if not found.neighbor:
        findings.append("Neighbour sampling was not measured together with uniform sampling.")
    for row in found.neighbor:
        agents = row["agents"]
        goal = PAPER_REDUCTION.get(agents)
        reached = "" if goal is None else f" (papers: {goal} %)"
        findings.append(
            f"{row['implementation']}, {row['algorithm']}, {row['env']}, {row['sampler']}, {counted(agents, 'agent')}: "
            f"the sampling phase is {100 * row['sampling_reduction']:.1f} % shorter{reached}; this alone shortens the "
            f"whole by {100 * row['total_reduction_by_sampling']:.1f} %."
        )
    findings.append(sweeps.circumstances(found))
    tables = [table for table in (neighbor_table(found.neighbor), misses_table(found.misses)) if table.rows]
    figures = [neighbor_figure(found.neighbor, "neighbor-time")]
    return Result("neighbor-time", "Time saved by neighbour sampling (Figure 5)", tables, findings, figures, data)
