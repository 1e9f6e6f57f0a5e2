"""A profile's rows as figures: where the time goes, how it grows with the agents, what neighbour sampling saves.

Each has a panel for every world, algorithm and implementation, and the papers' numbers where they give any.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from shoal.profiling.profile import PAPER_REDUCTION, PAPER_TOTAL_REDUCTION, Profile
from shoal.profiling.rows import GrowthRow, SavingRow, TimeRow
from shoal.profiling.tables import remarks, tables
from shoal.results import Figure, Panel, Result, Series
from shoal.results.figure import COLOURS, INK
from shoal.training.clock import PHASES, UPDATE_ALL_TRAINERS

PHASE_COLOURS = {
    "mini-batch sampling": COLOURS[1],
    "target Q": COLOURS[0],
    "Q loss": COLOURS[5],
    "P loss": COLOURS[2],
    "target update": COLOURS[3],
    "action selection": COLOURS[4],
    "replay insertion": COLOURS[7],
    "other": COLOURS[6],
}
Row = TypeVar("Row", TimeRow, GrowthRow, SavingRow)


def profile_result(found: Profile) -> Result:
    """Everything that a profile shows."""
    figures = [shares_figure(found.rows), inside_update_figure(found.rows)]
    if found.growth:
        figures.append(growth_figure(found.growth))
    if found.neighbor:
        figures.append(neighbor_figure(found.neighbor))
    return Result("profile", "Where the time goes", tables(found), remarks(found), figures, found.to_dict())


def shares_figure(rows: Sequence[TimeRow], name: str = "shares") -> Figure:
    """Share of each phase in a round without the environment, as the papers take it (their Figure 2)."""
    names = [*UPDATE_ALL_TRAINERS, *(phase for phase in PHASES if phase not in (*UPDATE_ALL_TRAINERS, "environment"))]

    def panel(title: str, own: list[TimeRow]) -> Panel:
        above = [f"{100 * row['update_share']:.0f} %" for row in own]
        return Panel(title, "per cent", _stack(own, names), "agents", list(map(_agents, own)), above)

    title = "Share of the time without the environment\nabove the bars: update all trainers"
    return _figure(name, title, uniform_only(rows), panel)


def inside_update_figure(rows: Sequence[TimeRow], name: str = "inside-update") -> Figure:
    """Shares inside "update all trainers" (the papers' Figure 4)."""

    def panel(title: str, own: list[TimeRow]) -> Panel:
        return Panel(title, "per cent", _stack(own, UPDATE_ALL_TRAINERS), "agents", list(map(_agents, own)))

    return _figure(name, "Shares inside update all trainers", uniform_only(rows), panel)


def growth_figure(rows: Sequence[GrowthRow], name: str = "growth") -> Figure:
    """How many times as long each part of the update takes when the agents double (the papers' Figure 3)."""

    def panel(title: str, own: list[GrowthRow]) -> Panel:
        times = [{part: ratio for part, ratio in row.items() if isinstance(ratio, float)} for row in own]
        series = [
            Series(part, [one[part] for one in times], "bars", colour=PHASE_COLOURS[part])
            for part in UPDATE_ALL_TRAINERS
        ]
        series.append(Series("update all trainers", [one["update all trainers"] for one in times], colour=INK))
        ticks = [_agents(row).replace(" to ", "→") for row in own]
        return Panel(title, "times", series, "agents", ticks, level=2.0, level_label="as the agents", points=True)

    return _figure(name, "Times as long when the agents double", uniform_only(rows), panel)


def neighbor_figure(rows: Sequence[SavingRow], name: str = "neighbor") -> Figure:
    """What neighbour sampling saves in the sampling phase and in the whole (the papers' Figure 5)."""

    def panel(title: str, own: list[SavingRow]) -> Panel:
        phase = [100 * row["sampling_reduction"] for row in own]
        total = [100 * row["total_reduction"] for row in own]
        papers = [[paper.get(row["agents"]) for row in own] for paper in (PAPER_REDUCTION, PAPER_TOTAL_REDUCTION)]
        series = [
            Series("sampling phase", list(phase), "bars", paper=papers[0], colour=COLOURS[1]),
            Series("total", list(total), "bars", paper=papers[1], colour=COLOURS[0]),
        ]
        # which of the papers' two texts, where they are told apart
        texts = [row["sampler"].removeprefix("neighbor").removeprefix("-") for row in own]
        ticks = [f"{_agents(row)}\n{text}".rstrip() for row, text in zip(own, texts, strict=True)]
        return Panel(title, "per cent", series, "agents", ticks, level=0.0)

    return _figure(name, "Time saved by neighbour sampling, without the environment", rows, panel)


def uniform_only(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows of uniform sampling, or all if there are none: one figure shows one way of sampling."""
    return [row for row in rows if row["sampler"] == "uniform"] or rows


def _figure(name: str, title: str, rows: Sequence[Row], panel: Callable[[str, list[Row]], Panel]) -> Figure:
    """A panel for every world, algorithm and implementation, all with the same scale."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"{row['implementation']}, {row['algorithm']}\n{row['env']}", []).append(row)
    remark = "\n* cut short" if any(row["cut_short"] for row in rows) else "" if rows else "\nnothing was measured"
    return Figure(name, title + remark, [panel(label, own) for label, own in groups.items()], same_scale=True)


def _stack(rows: Sequence[TimeRow], names: Sequence[str]) -> list[Series]:
    """Bars of a hundred per cent each, one per row."""
    totals = [sum(row["phases_ms"][name] for name in names) for row in rows]
    return [
        Series(
            name,
            [100 * row["phases_ms"][name] / total for row, total in zip(rows, totals, strict=True)],
            "stack",
            colour=PHASE_COLOURS[name],
        )
        for name in names
    ]


def _agents(row: Mapping[str, Any]) -> str:
    """With a star where it was cut short."""
    return f"{row['agents']}{'*' if row['cut_short'] else ''}"
