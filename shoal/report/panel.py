"""Draws one panel of a figure: its series, ticks and labels."""

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from shoal.results.figure import COLOURS, FAINT_INK, INK, Numbers, Panel, Series
from shoal.results.table import share_text
from shoal.training.returns import smooth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.ticker import MaxNLocator

LineStyle = str | tuple[float, tuple[float, ...]]
"""As matplotlib takes it: a name, or an offset and lengths of dashes and gaps."""
WIDEST_TICKS = 40  # characters that fit side by side under a panel
MOST_MARKERS = 20  # longest line, in values, that has markers
LEAST_SHARE = 7.0  # smallest part of a stack, in per cent of the tallest, that is labelled with its value
LEAST_PART = 0.06  # smallest share of a bar that is labelled in the bar as well
TEXT_LINE = 0.042  # height of a line of small text, as a share of a panel
NEAR = 0.02  # share of the x axis within which labels of spans would overlap
LEAST_COLOURED = 1e-6  # smallest share of a map with a colour of its own
PAPERS = "papers"
DASHED: LineStyle = (0, (5, 3))


def draw_panel(axes: "Axes", panel: Panel, colours: dict[str, str], styles: dict[str, LineStyle]) -> None:
    """Draw a panel with these colours and line styles of labels."""
    if panel.cells:
        _draw_map(axes, panel)
        return

    def of_kind(kind: str) -> list[Series]:
        return [series for series in panel.series if series.kind == kind]

    if panel.level is not None:
        axes.axhline(panel.level, color=FAINT_INK, linewidth=1, linestyle=DASHED, label=panel.level_label or None)
        if panel.level_half:
            low, high = panel.level - panel.level_half, panel.level + panel.level_half
            axes.axhspan(low, high, color=FAINT_INK, alpha=0.12, linewidth=0)
    bars, lines = of_kind("bars"), of_kind("line")
    for number, series in enumerate(bars):
        _draw_bars(axes, series, colours[series.label], number, len(bars))
    _draw_stacks(axes, of_kind("stack"), colours, panel.above)
    for number, series in enumerate(lines):
        aside = 0.0 if series.at else 0.08 * (number - (len(lines) - 1) / 2)  # so that intervals do not hide each other
        style = "none" if panel.points else styles[series.label]
        _draw_line(axes, series, colours[series.label], style, aside)
    for series in panel.series:
        if draw := KINDS.get(series.kind):
            draw(axes, series, series.colour or colours[series.label])
    if panel.rings:
        axes.plot([], [], "o", color=FAINT_INK, markerfacecolor="white", markersize=5, label=panel.rings)
    if of_kind("shares"):
        axes.set(xlim=(0, 1), ylim=(-0.4, 0.4))
        axes.set_axis_off()
        axes.set_title(panel.title, loc="left", fontsize=9, color=FAINT_INK, pad=3)
    else:
        _finish(axes, panel)
        _name_ends(axes, of_kind("thin"), colours)
        for series in of_kind("moment"):
            _draw_moment(axes, series)


def _draw_map(axes: "Axes", panel: Panel) -> None:
    """A cell per row and column, darker for larger shares, each with its share as text."""
    from matplotlib.colors import LogNorm

    shades = [[math.nan if not share else max(share, LEAST_COLOURED) for share in row] for row in panel.cells]
    axes.imshow(shades, cmap="YlOrRd", norm=LogNorm(LEAST_COLOURED, 1), aspect="auto", interpolation="nearest")
    for y, row in enumerate(panel.cells):
        for x, share in enumerate(row):
            colour = "white" if share and share > 0.03 else INK if share else FAINT_INK
            text = "" if share is None else share_text(share)
            axes.text(x, y, text, ha="center", va="center", fontsize=6.5, color=colour)
    _name_ticks(axes, panel.ticks)
    axes.set_yticks(range(len(panel.rows)), panel.rows)
    axes.set_title(panel.title, loc="left", fontsize=9, color=INK)
    axes.tick_params(labelsize=7, length=0)
    axes.spines[:].set_visible(False)
    axes.set_xticks([x - 0.5 for x in range(1, len(panel.ticks))], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, len(panel.rows))], minor=True)
    axes.grid(which="minor", color="#E8EBF0", linewidth=0.8)
    axes.tick_params(which="minor", length=0)


def _draw_bars(axes: "Axes", series: Series, colour: str, number: int, count: int) -> None:
    """Bars side by side; a black line across a bar is the papers' value."""
    width = 0.8 / count
    places = [place + (number - (count - 1) / 2) * width for place in range(len(series.values))]
    axes.bar(places, _filled(series.values), width, color=colour, label=series.label)
    for place, paper in zip(places, series.paper, strict=False):
        if paper is not None:
            axes.plot(
                [place - 0.45 * width, place + 0.45 * width], [paper, paper], color=INK, linewidth=2, label=PAPERS
            )


def _draw_stacks(axes: "Axes", stacks: list[Series], colours: dict[str, str], above: list[str]) -> None:
    """One stacked bar per tick, with labels in its larger parts."""
    if not stacks:
        return
    bottoms = [0.0] * len(stacks[0].values)
    tallest = max(
        sum(value or 0.0 for value in parts) for parts in zip(*(stack.values for stack in stacks), strict=True)
    )
    for series in stacks:
        values = _filled(series.values)
        axes.bar(range(len(values)), values, 0.8, bottoms, color=colours[series.label], label=series.label)
        for place, (value, bottom) in enumerate(zip(values, bottoms, strict=True)):
            if 100 * value >= LEAST_SHARE * tallest:
                middle = bottom + value / 2
                axes.text(place, middle, f"{value:.0f}", ha="center", va="center", fontsize=8, color="white")
        bottoms = [bottom + value for bottom, value in zip(bottoms, values, strict=True)]
    for place, (text, top) in enumerate(zip(above, bottoms, strict=False)):
        axes.annotate(text, (place, top), (0, 3), textcoords="offset points", ha="center", fontsize=8, color=INK)
    axes.set_ylim(0, (1.12 if above else 1.0) * tallest)


def _draw_line(axes: "Axes", series: Series, colour: str, style: LineStyle, aside: float) -> None:
    """Values with their intervals or their band, rings where they are hollow."""
    places = series.at or [place + aside for place in range(len(series.values))]
    if series.low and series.high:
        axes.fill_between(places, _gaps(series.low), _gaps(series.high), color=colour, alpha=0.15, linewidth=0)
    hollow = series.hollow or [False] * len(series.values)
    halves = series.halves or [None] * len(series.values)
    points = list(zip(places, _gaps(series.values), _filled(halves), hollow, strict=True))
    marker = "" if style != "none" and not any(hollow) and len(points) > MOST_MARKERS else "o"
    label: str | None = series.label
    for ring, line, face in ((False, style, colour), (True, "none", "white")):
        chosen = [point for point in points if point[3] == ring]
        if chosen:
            x, y, half, _ = zip(*chosen, strict=True)
            axes.errorbar(
                x, y, half if any(half) else None, marker=marker, linestyle=line, color=colour, markerfacecolor=face,
                markersize=5, linewidth=1.4, elinewidth=1, capsize=2, label=label,
            )  # fmt: skip
            label = None


def _draw_steps(axes: "Axes", series: Series, colour: str) -> None:
    """A histogram."""
    axes.stairs(_filled(series.values), series.at, fill=True, color=colour, label=series.label)
    axes.set_yticks([])


def _draw_thin(axes: "Axes", series: Series, colour: str) -> None:
    axes.plot(series.at, _gaps(series.values), color=colour, linewidth=0.9, alpha=0.8)


def _draw_level(axes: "Axes", series: Series, colour: str) -> None:
    axes.axhline(_gaps(series.values)[0], color=colour, linestyle=DASHED, linewidth=1.3, label=series.label)


def _draw_curve(axes: "Axes", series: Series, colour: str) -> None:
    """Every value as a light point, and their running mean as a solid line."""
    values = _gaps(series.values)
    axes.plot(series.at, values, ".", color=colour, alpha=0.35, markersize=5, markeredgewidth=0)
    marker = "o" if len(values) == 1 else ""
    axes.plot(series.at, smooth(values), color=colour, linewidth=2, marker=marker, label=series.label)


def _draw_marks(axes: "Axes", series: Series, colour: str) -> None:
    """Diamonds with their intervals."""
    values = _gaps(series.values)
    halves = np.maximum(0.0, [values - _gaps(series.low), _gaps(series.high) - values])
    axes.errorbar(
        series.at, values, halves, fmt="D", color=colour, markeredgecolor=INK, markersize=5, capsize=3, linewidth=1.2,
        zorder=3, label=series.label or None,
    )  # fmt: skip


def _draw_moment(axes: "Axes", series: Series) -> None:
    """A dotted line with small text beside its upper end, on the side with more room; without a line, text alone."""
    if not axes.has_data():
        axes.set(xticks=[], yticks=[])
    (low, high), x = axes.get_xlim(), next(iter(series.at), None)
    if x is not None:
        axes.axvline(x, color=FAINT_INK, linestyle=":", linewidth=1.3)
    left = x is not None and x > (low + high) / 2
    axes.annotate(
        series.texts[0], (0.0 if x is None else x, 1), (-4 if left else 4, -4),
        ("axes fraction" if x is None else "data", "axes fraction"), "offset points", color=FAINT_INK,
        ha="right" if left else "left", va="top", fontsize=8,
    )  # fmt: skip


def _name_ends(axes: "Axes", thin: list[Series], colours: dict[str, str]) -> None:
    """The labels of thin lines to the right of where they end."""
    low, high = axes.get_ylim()
    ends = sorted(((_gaps(series.values)[-1] - low) / (high - low), n) for n, series in enumerate(thin))
    for (_, n), height in zip(ends, _apart([end for end, _ in ends]), strict=True):
        axes.annotate(
            thin[n].label, (1.01, height), xycoords="axes fraction", va="center", fontsize=8,
            color=thin[n].colour or colours[thin[n].label], annotation_clip=False,
        )  # fmt: skip


def _apart(heights: list[float]) -> list[float]:
    """Heights (ascending, shares of the axes) moved as little as it takes to have a line's room for each.

    Less k lines, the k-th one must not be below the one before: an isotonic regression, by its min-max formula.
    """
    count = len(heights)
    free = np.array(heights) - TEXT_LINE * np.arange(count)
    moved = [max(min(free[i : j + 1].mean() for j in range(k, count)) for i in range(k + 1)) for k in range(count)]
    lowest, highest = TEXT_LINE / 2, 1 - TEXT_LINE * (count - 1 / 2)
    return [float(min(max(height, lowest), highest)) + TEXT_LINE * k for k, height in enumerate(moved)]


def _draw_shares(axes: "Axes", series: Series, colour: str) -> None:
    """One bar of all values by their share of the sum; narrow ones are labelled in the legend only."""
    values, left = _filled(series.values), 0.0
    for number, (name, value) in enumerate(zip(series.texts, values, strict=True)):  # a part of 0 keeps its colour
        if value <= 0:
            continue
        share = value / sum(values)
        label = f"{name} {100 * share:.0f} %" if share >= 0.01 else f"{name} < 1 %"
        axes.barh(0, share, left=left, color=COLOURS[number % len(COLOURS)], edgecolor="white", label=label)
        if share >= LEAST_PART:
            axes.text(left + share / 2, 0, f"{100 * share:.0f} %", ha="center", va="center", color="white", fontsize=9)
        left += share


def _draw_spans(axes: "Axes", series: Series, colour: str) -> None:
    """Thin vertical lines, with labels alternately above and below so that neighbours do not overlap.

    Of two nearly at the same place, the upper one has its label above: else it would lie on the other one's marks.
    """
    from matplotlib.patheffects import withStroke

    lows, highs = _gaps(series.low), _gaps(series.values)
    near = NEAR * (max(series.at) - min(series.at)) if series.at else 0.0
    for number, (x, low, high) in enumerate(zip(series.at, lows, highs, strict=True)):
        axes.plot([x, x], [low, high], color=FAINT_INK, linewidth=0.8, zorder=1)
        others = [y for other, y in zip(series.at, highs, strict=True) if abs(other - x) <= near and y != high]
        below = any(y > high for y in others) if others else bool(number % 2)
        end, offset = (low, (0, -14)) if below else (high, (0, 7))
        text = axes.annotate(series.texts[number], (x, end), offset, textcoords="offset points", ha="center", color=INK)
        text.set(fontsize=8, zorder=5, path_effects=[withStroke(linewidth=3, foreground="white")])  # over other marks


KINDS = {
    "curve": _draw_curve, "thin": _draw_thin, "marks": _draw_marks, "level": _draw_level, "shares": _draw_shares,
    "steps": _draw_steps, "spans": _draw_spans,
}  # fmt: skip
"""What draws a series; bars, stacks and lines are drawn together."""


def _finish(axes: "Axes", panel: Panel) -> None:
    if panel.ticks:
        _name_ticks(axes, panel.ticks)
        axes.set_xlim(-0.5, len(panel.ticks) - 0.5)
    else:
        if _counts(panel, "at"):
            axes.xaxis.set_major_locator(_whole())
        axes.xaxis.set_major_formatter("{x:,.0f}" if _counts(panel, "at") else "{x:,.5g}")
        axes.margins(x=0.01 if any(series.kind == "curve" for series in panel.series) else 0.05, y=0.08)
    if panel.log:
        axes.set_yscale("log")
    elif _counts(panel, "values"):
        axes.yaxis.set_major_locator(_whole())
    axes.set_title(panel.title, loc="left", fontsize=9, color=INK)
    axes.set_xlabel(panel.x, fontsize=9, color=FAINT_INK)
    axes.set_ylabel(panel.y, fontsize=9, color=FAINT_INK)
    bars = any(series.kind in ("bars", "stack") for series in panel.series)
    axes.grid(axis="y" if bars else "both", color="#E8EBF0", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _name_ticks(axes: "Axes", names: list[str]) -> None:
    """Ticks on the x axis, slanted if they would overlap."""
    slanted = sum(map(len, names)) > WIDEST_TICKS
    style: dict[str, Any] = {"rotation": 25, "ha": "right", "va": "top", "rotation_mode": "anchor"} if slanted else {}
    axes.set_xticks(range(len(names)), names, **style)


def _counts(panel: Panel, of: Literal["at", "values"]) -> bool:
    """Whether all positions, or all values, of a panel are whole numbers, so that there is nothing between them."""
    numbers = [number for series in panel.series if series.kind != "steps" for number in getattr(series, of)]
    return bool(numbers) and all(number is None or float(number).is_integer() for number in numbers)


def _whole() -> "MaxNLocator":
    """Ticks at whole numbers, if need be a single one."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1)


def _gaps(values: Numbers) -> NDArray[np.float64]:
    """The values, NaN where there is none."""
    return np.array(values, float)


def _filled(values: Numbers) -> list[float]:
    return [0.0 if value is None else value for value in values]
