"""Figure 4: inside update all trainers, sampling takes 61 % and target Q 21 % (first text), 63 % and 24 % (second)."""

from typing import Any

from shoal.profiling.figures import inside_update_figure
from shoal.profiling.profile import Profile
from shoal.profiling.tables import update_table
from shoal.results import Result
from shoal.waiting import Advance
from shoal_papers.marl import profiles as sweeps

PAPER: dict[str, dict[str, float]] = {
    "first text, mean over workloads": {"mini-batch sampling": 61, "target Q": 21, "Q loss": 10, "P loss": 8},
    "second text, mean at 48 agents": {"mini-batch sampling": 63, "target Q": 24, "Q loss": 6.5, "P loss": 6},
}


def length(quick: bool) -> float:
    """Measured seconds."""
    return sweeps.full(quick).total_seconds


def measured(quick: bool, advance: Advance) -> dict[str, Any]:
    """Time all cells."""
    return sweeps.run(sweeps.full(quick), advance)


def study(data: dict[str, Any]) -> Result:
    """The shares of the update's phases."""
    found = Profile(**data)
    findings = [
        f"Papers, {which}: " + ", ".join(f"{name} {share:g} %" for name, share in shares.items()) + "."
        for which, shares in PAPER.items()
    ]
    for name, rows in sweeps.panels(found.rows).items():
        names = ("mini-batch sampling", "target Q", "Q loss", "P loss")
        mean = {phase: 100 * sum(row["shares_of_update"][phase] for row in rows) / len(rows) for phase in names}
        largest = max(mean, key=lambda phase: mean[phase])
        findings.append(
            f"{name}, mean over {', '.join(str(row['agents']) for row in rows)} agents: "
            + ", ".join(f"{phase} {share:.1f} %" for phase, share in mean.items())
            + f": {largest} is the largest."
        )
    findings.append(sweeps.circumstances(found))
    tables, figures = [update_table(found.rows)], [inside_update_figure(found.rows)]
    return Result("inside-update", "Inside update all trainers (Figure 4)", tables, findings, figures, data)
