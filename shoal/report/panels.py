"""Draws any figure of a result: panels of lines, bars, stacks, histograms and spans, with one legend for all."""

import io
import math
import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shoal.report.drawing import drawing, plain_texts
from shoal.results.figure import COLOURS, FAINT_INK, INK, Figure, Numbers, Panel, Series
from shoal.results.result import Result
from shoal.results.table import share_text
from shoal.system.files import write_whole

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.legend import Legend
    from matplotlib.ticker import MaxNLocator

LineStyle = str | tuple[float, tuple[float, ...]]
"""As matplotlib takes it: a name, or an offset and lengths of dashes and gaps."""
WIDEST_TICKS = 40
"""Characters that fit side by side under a panel."""
MOST_MARKERS = 20
"""Longest line, in values, that has markers."""
LEAST_SHARE = 7.0
"""Smallest part of a stack, in per cent of the tallest, that is labelled with its value."""
PAPERS = "papers"
ROW_INCHES = 0.2
"""Height of a row of a map."""
NEAR = 0.02
"""Share of the x axis within which labels of spans would overlap."""
HANDLE_INCHES, LETTER_INCHES = 0.5, 0.055
"""Width of a label of the legend at the least: of its handle with the gap around it, and of a letter."""
LEGEND_INCHES = 0.4
"""Height of a legend for which every figure has room; what a higher one needs is added to the figure."""
LABEL_LINES = 3
"""Most lines of a label of the legend."""
LINES: tuple[LineStyle, ...] = ("-", "--", ":", "-.", (0, (8, 2)), (0, (4, 1, 1, 1, 1, 1)))
"""Styles of lines that have the same colour."""
MOST_LABELS = len(COLOURS) * len(LINES)
"""Longest legend: colours and styles of more lines would repeat."""
LEAST_COLOURED = 1e-6
"""Smallest share of a map with a colour of its own."""


def draw_figures(result: Result, folder: Path, ending: str = "") -> list[Path]:
    """Write all figures of a result as PNG files; `ending` is appended to their names."""
    return [draw_figure(figure, folder / f"{figure.name}{ending}.png") for figure in result.figures]


@drawing()
def draw_figure(figure: Figure, path: Path) -> Path:
    """Write one figure as a PNG file."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

    figure = plain_texts(figure)
    panels = figure.panels
    columns = 4 if len(panels) > 4 and len(panels) % 4 == 0 else 2 if len(panels) == 4 else min(3, max(1, len(panels)))
    lines = max(1, math.ceil(len(panels) / columns))
    most = max([0, *(len(panel.ticks) for panel in panels)])
    if len(panels) < 2:
        size = (9.0, 5.2) if figure.key else (max(7.5, 0.6 * most), 4.4)  # room for every name
    else:
        size = columns * max(3.4 if columns == 4 else 4.2, 0.45 * most), 2.9 * lines + 1
    heights = [_height(panels[line * columns : (line + 1) * columns]) for line in range(lines)]
    size = size[0], size[1] + sum(heights) - 2.9 * lines
    canvas = Canvas(figsize=size, dpi=130, layout="constrained")
    grid = canvas.subplots(lines, columns, sharey=figure.same_scale, squeeze=False, height_ratios=heights)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    colours = _colours(panels)
    styles = _styles(colours)
    for number, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
        _draw_panel(axes, panel, colours, styles)
        if number % columns and panel.rows and panels[number - 1].rows == panel.rows:
            axes.set_yticklabels([])  # beside a map with the same rows
    if figure.same_scale:
        for axes in grid[:, 1:].flat:
            axes.set_ylabel("")
    _legend(canvas, list(dict.fromkeys(series.label for panel in panels for series in panel.series)))
    if figure.key:
        nothing = [Line2D([], [], linestyle="none") for _ in figure.key]
        canvas.legend(
            nothing, figure.key, loc="outside right upper", fontsize=8, frameon=False, handlelength=0, handletextpad=0
        )
    for points in range(11, 4, -1):  # the largest that fits
        title = canvas.suptitle(figure.title, fontsize=points, color=INK)
        if title.get_window_extent().width <= canvas.bbox.width:
            break
    content = io.BytesIO()
    canvas.savefig(content, format="png")
    return write_whole(path, content.getvalue())


def _height(panels: list[Panel]) -> float:
    """Inches of a line of panels: maps need room for their rows."""
    return max([2.9, *(1.2 + ROW_INCHES * len(panel.rows) for panel in panels)])


def _colours(panels: list[Panel]) -> dict[str, str]:
    """A colour for every label: its own, or the next unused one."""
    every = [series for panel in panels for series in panel.series]
    found = {series.label: series.colour for series in every if series.colour}
    left = iter([colour for colour in COLOURS if colour not in found.values()] * len(every))
    for series in every:
        if series.label not in found:
            found[series.label] = next(left, INK)
    return found


def _styles(colours: dict[str, str]) -> dict[str, LineStyle]:
    """A line style for every label: the next one for each that has the colour of an earlier one."""
    seen: Counter[str] = Counter()
    styles: dict[str, LineStyle] = {}
    for label, colour in colours.items():
        styles[label] = LINES[seen[colour] % len(LINES)]
        seen[colour] += 1
    return styles


def _draw_panel(axes: "Axes", panel: Panel, colours: dict[str, str], styles: dict[str, LineStyle]) -> None:
    if panel.cells:
        _draw_map(axes, panel)
        return
    bars = [series for series in panel.series if series.kind == "bars"]
    lines = [series for series in panel.series if series.kind == "line"]
    stacks = [series for series in panel.series if series.kind == "stack"]
    if panel.level is not None:
        axes.axhline(panel.level, color=FAINT_INK, linewidth=1, linestyle=(0, (5, 3)), label=panel.level_label or None)
        if panel.level_half:
            low, high = panel.level - panel.level_half, panel.level + panel.level_half
            axes.axhspan(low, high, color=FAINT_INK, alpha=0.12, linewidth=0)
    for number, series in enumerate(bars):
        _draw_bars(axes, series, colours[series.label], number, len(bars))
    _draw_stacks(axes, stacks, colours, panel.above)
    for number, series in enumerate(lines):
        aside = 0.0 if series.at else 0.08 * (number - (len(lines) - 1) / 2)  # so that intervals do not hide each other
        style = "none" if panel.points else styles[series.label]
        _draw_line(axes, series, colours[series.label], style, aside)
    for series in panel.series:
        if series.kind == "steps":
            axes.stairs(_filled(series.values), series.at, fill=True, color=colours[series.label], label=series.label)
            axes.set_yticks([])
        if series.kind == "spans":
            _draw_spans(axes, series)
    if panel.rings:
        axes.plot([], [], "o", color=FAINT_INK, markerfacecolor="white", markersize=5, label=panel.rings)
    _finish(axes, panel)


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
    slanted = sum(map(len, panel.ticks)) > WIDEST_TICKS
    axes.set_xticks(
        range(len(panel.ticks)), panel.ticks, rotation=25 * slanted, ha="right" if slanted else "center",
        rotation_mode="anchor",
    )  # fmt: skip
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
    tallest = max(sum(value or 0.0 for value in parts) for parts in zip(*(one.values for one in stacks), strict=True))
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
        own = [point for point in points if point[3] == ring]
        if own:
            x, y, half, _ = zip(*own, strict=True)
            axes.errorbar(
                x, y, half if any(half) else None, marker=marker, linestyle=line, color=colour, markerfacecolor=face,
                markersize=5, linewidth=1.4, elinewidth=1, capsize=2, label=label,
            )  # fmt: skip
            label = None


def _draw_spans(axes: "Axes", series: Series) -> None:
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


def _finish(axes: "Axes", panel: Panel) -> None:
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), panel.ticks)
        axes.set_xlim(-0.5, len(panel.ticks) - 0.5)
        if sum(map(len, panel.ticks)) > WIDEST_TICKS:
            axes.set_xticks(
                range(len(panel.ticks)), panel.ticks, rotation=25, ha="right", va="top", rotation_mode="anchor"
            )
    else:
        if _counts(panel, "at"):
            axes.xaxis.set_major_locator(_whole())
        axes.xaxis.set_major_formatter("{x:,.5g}")
        axes.margins(x=0.05, y=0.08)
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


def _counts(panel: Panel, what: Literal["at", "values"]) -> bool:
    """Whether all positions, or all values, of a panel are whole numbers, so that there is nothing between them."""
    numbers = [number for series in panel.series if series.kind != "steps" for number in getattr(series, what)]
    return bool(numbers) and all(number is None or float(number).is_integer() for number in numbers)


def _whole() -> "MaxNLocator":
    """Ticks at whole numbers, if need be a single one."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1)


def _legend(canvas: "Canvas", order: list[str]) -> None:
    """One legend below all panels; none if there is nothing to distinguish.

    It has as many columns as fit, and the figure grows with its rows: the panels keep their height.
    """
    found: dict[str, Artist] = {}
    for axes in canvas.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    labels = [*(label for label in order if label in found), *(label for label in found if label not in order)]
    if len(labels) < 2:
        return
    handles = [found[label] for label in labels]
    width = canvas.get_figwidth()
    columns = min(5, len(labels), int(width / (HANDLE_INCHES + LETTER_INCHES * max(map(len, labels)))))
    letters = int((width - HANDLE_INCHES) / LETTER_INCHES)
    while True:
        legend = _try_legend(canvas, handles, labels, columns, letters)
        if legend.get_window_extent().width <= canvas.bbox.width or (columns <= 1 and letters < 10):
            break
        columns, letters = (columns - 1, letters) if columns > 1 else (1, int(0.9 * letters))  # wide letters
        legend.remove()
    more = legend.get_window_extent().height / canvas.dpi - LEGEND_INCHES
    canvas.set_figheight(canvas.get_figheight() + max(0.0, more))


def _try_legend(canvas: "Canvas", handles: "list[Artist]", labels: list[str], columns: int, letters: int) -> "Legend":
    """A legend with so many columns; labels that are longer than so many letters are folded."""
    from matplotlib.lines import Line2D

    texts = [_folded(label, letters) for label in labels[:MOST_LABELS]]
    handles = handles[:MOST_LABELS]
    if len(labels) > MOST_LABELS:
        texts.append(f"… and {len(labels) - MOST_LABELS} more")
        handles.append(Line2D([], [], linestyle="none"))
    return canvas.legend(
        handles, texts, loc="outside lower center", ncols=max(1, columns), fontsize=8, frameon=False,
        handlelength=2.0 if len(labels) <= len(COLOURS) else 2.4,  # dashes need more
    )  # fmt: skip


def _folded(label: str, letters: int) -> str:
    """A label on as many lines as it needs; of one that needs too many, the middle is left out.

    Labels of a sweep often begin alike and differ at the end.
    """
    label = label.replace(r"\$", "$")  # two characters that must stay together
    lines = textwrap.wrap(label, letters)
    if len(lines) <= 1:
        lines = [label]
    for half in range(LABEL_LINES * letters // 2, 0, -1):
        if len(lines) <= LABEL_LINES:
            break
        lines = textwrap.wrap(f"{label[:half]} … {label[-half:]}", letters)
    return "\n".join(lines).replace("$", r"\$")


def _gaps(values: Numbers) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _filled(values: Numbers) -> list[float]:
    return [0.0 if value is None else value for value in values]
