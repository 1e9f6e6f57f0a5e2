"""Figure 2: update all trainers takes 35 % of the time without the environment at 3 agents, 85 % at 48."""

from typing import Any

from shoal.errors import counted
from shoal.profiling.figures import shares_figure
from shoal.profiling.profile import Profile
from shoal.profiling.tables import time_table
from shoal.results import Result
from shoal.waiting import Advance
from shoal_papers.marl import profiles as sweeps

PAPER = {3: 35.0, 48: 85.0}  # per cent of the time without the environment


def length(quick: bool) -> float:
    """Measured seconds."""
    return sweeps.full(quick).total_seconds


def measured(quick: bool, advance: Advance) -> dict[str, Any]:
    """Time all cells."""
    return sweeps.run(sweeps.full(quick), advance)


def study(data: dict[str, Any]) -> Result:
    """The share of update all trainers over the number of agents."""
    found = Profile(**data)
    findings = [f"Papers: update all trainers is about {PAPER[3]:.0f} % at 3 agents and {PAPER[48]:.0f} % at 48."]
    for name, rows in sweeps.panels(found.rows).items():
        first, last = rows[0], rows[-1]
        verb = "rises" if last["update_share"] > first["update_share"] else "does not rise"
        findings.append(
            f"{name}: {100 * first['update_share']:.0f} % at {counted(first['agents'], 'agent')} and "
            f"{100 * last['update_share']:.0f} % at {last['agents']}: the share {verb}."
        )
    findings.append(sweeps.circumstances(found))
    figures = [shares_figure(found.rows, "breakdown")]
    return Result("breakdown", "Training time by phase (Figure 2)", [time_table(found.rows)], findings, figures, data)
