"""Pictures of a profile: where the time goes, how it grows with the agents, what neighbour sampling saves.

Each has a panel for every world, algorithm and implementation, and the papers' numbers where they give any.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.files import write_whole
from shoal.profiling.profile import PAPER_REDUCTION, PAPER_TOTAL_REDUCTION
from shoal.report.curve import COLOURS, FAINT_INK, INK
from shoal.training.clock import PHASES, UPDATE_ALL_TRAINERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
Panel = tuple[str, str, str]  # world, algorithm, implementation

PHASE_COLOURS = {
    "mini-batch sampling": COLOURS[1],
    "target Q": COLOURS[0],
    "Q loss": COLOURS[5],
    "P loss": COLOURS[2],
    "target update": COLOURS[3],
    "action selection": COLOURS[4],
    "environment": "#CED4DA",
    "replay insertion": COLOURS[7],
    "other": COLOURS[6],
}


def draw_profile(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the pictures that these rows make: shares, growth, inside the update, neighbour sampling."""
    rows = found["rows"]
    pictures = [draw_shares(rows, folder / "shares.png"), draw_inside_update(rows, folder / "inside-update.png")]
    if found["growth"]:
        pictures.append(draw_growth(found["growth"], folder / "growth.png"))
    if found["neighbor"]:
        pictures.append(draw_neighbor(found["neighbor"], folder / "neighbor.png"))
    return pictures


def uniform_only(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows of uniform sampling, or all if there are none: one picture shows one way of sampling."""
    return [row for row in rows if row["sampler"] == "uniform"] or rows


def draw_shares(rows: Sequence[Row], path: Path) -> Path:
    """Share of each phase in a round without the environment, as the papers take it (their Figure 2)."""
    names = [*UPDATE_ALL_TRAINERS, *(name for name in PHASES if name not in (*UPDATE_ALL_TRAINERS, "environment"))]

    def panel(axes: "Axes", own: Sequence[Row]) -> None:
        _stack(axes, own, names, lambda row: row["phases_ms"])
        for x, row in enumerate(own):
            axes.text(x, 103, f"{100 * row['update_share']:.0f} %", ha="center", fontsize=8, color=INK)

    title = "Share of the time without the environment\nabove the bars: update all trainers"
    return _draw(uniform_only(rows), panel, title, "per cent", names, path, top=112)


def draw_inside_update(rows: Sequence[Row], path: Path) -> Path:
    """Shares inside "update all trainers" (the papers' Figure 4)."""
    names = list(UPDATE_ALL_TRAINERS)

    def panel(axes: "Axes", own: Sequence[Row]) -> None:
        _stack(axes, own, names, lambda row: row["phases_ms"])

    title = "Shares inside update all trainers"
    return _draw(uniform_only(rows), panel, title, "per cent", names, path, top=100)


def draw_growth(rows: Sequence[Row], path: Path) -> Path:
    """How many times as long each part of the update takes when the agents double (the papers' Figure 3)."""
    names = [*UPDATE_ALL_TRAINERS]

    def panel(axes: "Axes", own: Sequence[Row]) -> None:
        width = 0.8 / len(names)
        for k, name in enumerate(names):
            places = [x + (k - (len(names) - 1) / 2) * width for x in range(len(own))]
            axes.bar(places, [row[name] for row in own], width, color=PHASE_COLOURS[name])
        axes.plot(range(len(own)), [row["update all trainers"] for row in own], "o", color=INK, markersize=4)
        axes.axhline(2, color=FAINT_INK, linewidth=0.8, linestyle="--")
        axes.set_xticks(range(len(own)), [row["agents"].replace(" to ", "→") + _star(row) for row in own])

    title = "Times as long when the agents double\ndots: update all trainers, dashed: as the agents"
    return _draw(uniform_only(rows), panel, title, "times", names, path)


def draw_neighbor(rows: Sequence[Row], path: Path) -> Path:
    """What neighbour sampling saves in the sampling phase and in the whole (the papers' Figure 5)."""
    bars = {"sampling_reduction": ("sampling phase", COLOURS[1]), "total_reduction": ("total", COLOURS[0])}

    def panel(axes: "Axes", own: Sequence[Row]) -> None:
        for k, (key, (_, colour)) in enumerate(bars.items()):
            axes.bar([x + 0.4 * k - 0.2 for x in range(len(own))], [100 * row[key] for row in own], 0.4, color=colour)
        for x, row in enumerate(own):
            for k, paper in enumerate((PAPER_REDUCTION, PAPER_TOTAL_REDUCTION)):
                if row["agents"] in paper:
                    axes.plot(
                        [x + 0.4 * k - 0.38, x + 0.4 * k - 0.02], [paper[row["agents"]]] * 2, color=INK, linewidth=2
                    )
        axes.axhline(0, color=FAINT_INK, linewidth=0.8)
        axes.set_xticks(range(len(own)), [_name(row) for row in own])

    known = any(row["agents"] in PAPER_REDUCTION for row in rows)
    title = "Time saved by neighbour sampling, without the environment" + ("\nblack: the papers" if known else "")
    legend = dict(bars.values())
    return _draw(rows, panel, title, "per cent", list(legend), path, colours=legend)


def _name(row: Row) -> str:
    """Agents, and which of the papers' two texts where they are told apart."""
    return f"{row['agents']}{_star(row)}\n{row['sampler'].removeprefix('neighbor').removeprefix('-')}".rstrip()


def _star(row: Row) -> str:
    """The mark of what was cut short."""
    return "*" if row.get("cut_short") else ""


def _stack(
    axes: "Axes", rows: Sequence[Row], names: Sequence[str], values: Callable[[Row], Mapping[str, float]]
) -> None:
    """Bars of a hundred per cent each, one a row."""
    for x, row in enumerate(rows):
        total, bottom = sum(values(row)[name] for name in names), 0.0
        for name in names:
            share = 100 * values(row)[name] / total
            axes.bar(x, share, 0.8, bottom, color=PHASE_COLOURS[name])
            if share >= 7:
                axes.text(x, bottom + share / 2, f"{share:.0f}", ha="center", va="center", fontsize=8, color="white")
            bottom += share
    axes.set_xticks(range(len(rows)), [f"{row['agents']}{_star(row)}" for row in rows])


def _draw(
    rows: Sequence[Row],
    draw: Callable[["Axes", Sequence[Row]], None],
    title: str,
    unit: str,
    names: Sequence[str],
    path: Path,
    top: float | None = None,
    colours: Mapping[str, str] = PHASE_COLOURS,
) -> Path:
    """A panel for every world, algorithm and implementation, all with the same scale."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    panels: dict[Panel, list[Row]] = {}
    for row in rows:
        panels.setdefault((row["env"], row["algorithm"], row["implementation"]), []).append(row)
    columns = max(1, min(len(panels), 4))
    lines = max(1, -(-len(panels) // columns))
    figure = Figure(figsize=(max(6.4, 3.2 * columns), 3.0 * lines + 1.2), layout="constrained")
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, ((env, algorithm, implementation), own) in zip(grid.flat, panels.items(), strict=False):
        draw(axes, own)
        axes.set_title(f"{implementation}, {algorithm}\n{env}", fontsize=9, color=INK)
        axes.set_xlabel("agents", fontsize=9, color=FAINT_INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        if top is not None:
            axes.set_ylim(0, top)
    for axes in grid[:, 0]:
        axes.set_ylabel(unit, fontsize=9, color=FAINT_INK)
    handles = [Patch(color=colours[name], label=name) for name in names]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(names)), fontsize=8, frameon=False)
    remark = "\n* cut short" if any(map(_star, rows)) else "" if rows else "\nnothing was measured"
    figure.suptitle(title + remark, fontsize=11, color=INK)
    content = io.BytesIO()
    figure.savefig(content, dpi=130)
    return write_whole(path, content.getvalue())
