"""Draws any figure of a result: its panels with their legends, as a PNG."""

import functools
import io
import math
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.report.drawing import drawing, plain_texts
from shoal.report.panel import LineStyle, draw_panel
from shoal.results.figure import COLOURS, FAINT_INK, INK, Figure, Panel
from shoal.results.result import Result
from shoal.system.files import write_whole

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.legend import Legend

ROW_INCHES = 0.2  # height of a row of a map
HANDLE_INCHES, LETTER_INCHES = 0.5, 0.055
"""Width of a label of the legend at the least: of its handle with the gap around it, and of a letter."""
ROOM = 0.86  # share of the figure's width that a panel's own legend may take
LEGEND_INCHES = 0.4
"""Height of a legend for which every figure has room; what a higher one needs is added to the figure."""
LABEL_LINES = 3  # most lines of a label of the legend
LINES: tuple[LineStyle, ...] = ("-", "--", ":", "-.", (0, (8, 2)), (0, (4, 1, 1, 1, 1, 1)))
"""Styles of lines that have the same colour."""
MOST_LABELS = len(COLOURS) * len(LINES)  # longest legend: colours and styles of more lines would repeat


def draw_figures(result: Result, folder: Path, ending: str = "") -> list[Path]:
    """Write all figures of a result as PNG files; `ending` is appended to their names."""
    return [draw_figure(figure, folder / f"{figure.name}{ending}.png") for figure in result.figures]


@drawing()
def draw_figure(figure: Figure, path: str | Path) -> Path:
    """Write one figure as a PNG file."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

    figure = plain_texts(figure)
    panels = figure.panels
    count = len(panels)
    columns = figure.columns or (4 if count > 4 and count % 4 == 0 else 2 if count == 4 else min(3, max(1, count)))
    lines = max(1, math.ceil(count / columns))
    most = max([0, *(len(panel.ticks) for panel in panels)])
    if columns == 1:
        size = (9.0, 5.2) if figure.key else (max(7.5, 0.6 * most), 4.4)  # room for every name
    else:
        size = columns * max(3.4 if columns == 4 else 4.2, 0.45 * most), 2.9 * lines + 1
    heights = [_height(panels[line * columns : (line + 1) * columns]) for line in range(lines)]
    size = size[0], size[1] + sum(heights) - 2.9 * (1 if columns == 1 else lines)
    canvas = Canvas(figsize=size, dpi=130, layout="constrained")
    grid = canvas.subplots(lines, columns, sharey=figure.same_scale, squeeze=False, height_ratios=heights)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    colours = _colours(panels)
    styles = _styles(colours)
    for number, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
        draw_panel(axes, panel, colours, styles)
        if panel.legend:
            _own_legend(canvas, axes, panel)
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
    """Inches of a line of panels: maps need room for their rows, shares are a single bar."""
    if {series.kind for panel in panels for series in panel.series} == {"shares"}:
        return 0.3
    return max([2.9, *(1.2 + ROW_INCHES * len(panel.rows) for panel in panels)])


def _colours(panels: list[Panel]) -> dict[str, str]:
    """A colour for every label: its own, or the next unused one."""
    every = [series for panel in panels for series in panel.series]
    colours = {series.label: series.colour for series in every if series.colour}
    left = iter([colour for colour in COLOURS if colour not in colours.values()] * len(every))
    for series in every:
        if series.label not in colours:
            colours[series.label] = next(left, INK)
    return colours


def _styles(colours: dict[str, str]) -> dict[str, LineStyle]:
    """A line style for every label: the next one for each that has the colour of an earlier one."""
    seen: Counter[str] = Counter()
    styles: dict[str, LineStyle] = {}
    for label, colour in colours.items():
        styles[label] = LINES[seen[colour] % len(LINES)]
        seen[colour] += 1
    return styles


def _legend(canvas: "Canvas", order: list[str]) -> None:
    """One legend below all panels; none if there is nothing to distinguish. The panels keep their height."""
    from matplotlib.lines import Line2D

    known: dict[str, Artist] = {}
    for axes in canvas.axes:
        if axes.get_legend() is None:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                known.setdefault(label, handle)
    labels = [*(label for label in order if label in known), *(label for label in known if label not in order)]
    if len(labels) < 2:
        return
    handles = [known[label] for label in labels]
    if len(labels) > MOST_LABELS:
        labels[MOST_LABELS:] = [f"… and {len(labels) - MOST_LABELS} more"]
        handles[MOST_LABELS:] = [Line2D([], [], linestyle="none")]
    dashes = 2.0 if len(labels) <= len(COLOURS) else 2.4
    make = functools.partial(canvas.legend, loc="outside lower center", handlelength=dashes)
    _fitting_legend(canvas, make, handles, labels, 5, 1.0, LEGEND_INCHES)


def _own_legend(canvas: "Canvas", axes: "Axes", panel: Panel) -> None:
    """A panel's legend, between it and its title or below it.

    Where there are several levels, each has its row: legends are filled by column, and evenly, so that empty entries at
    the end keep the others in their rows.
    """
    from matplotlib.lines import Line2D

    handles, labels = axes.get_legend_handles_labels()
    most, levels = 4, sum(series.kind == "level" for series in panel.series)
    if len(labels) > most and levels > 1:
        most = math.ceil(len(labels) / levels)
        empty = most * levels - len(labels)
        handles, labels = handles + [Line2D([], [], alpha=0)] * empty, labels + [""] * empty
    if panel.legend == "below":
        make = functools.partial(axes.legend, loc="upper left", bbox_to_anchor=(0, 0), handlelength=1)
        _fitting_legend(canvas, make, handles, labels, 5, ROOM)
    elif labels:
        make = functools.partial(axes.legend, loc="lower left", bbox_to_anchor=(0, 1))
        height = _fitting_legend(canvas, make, handles, labels, most, ROOM)
        axes.set_title(panel.title, loc="left", fontsize=9, color=FAINT_INK, pad=72 * height + 10)


def _fitting_legend(
    canvas: "Canvas",
    make: "Callable[..., Legend]",
    handles: "list[Artist]",
    labels: list[str],
    most: int,
    room: float,
    free: float = 0.0,
) -> float:
    """Make a legend in as many columns as fit into this share of the figure's width, at most so many; its height.

    The figure grows by its height, less the inches that are free for it.
    """
    letters = int((canvas.get_figwidth() - HANDLE_INCHES) / LETTER_INCHES)
    ways = [(columns, letters) for columns in range(min(most, len(labels)), 0, -1)]
    for columns, longest in [*ways, *((1, fewer) for fewer in range(letters - 5, 10, -5))]:  # wide letters
        texts = [_folded(label, longest) for label in labels]
        legend = make(handles, texts, ncols=columns, fontsize=8, frameon=False, borderpad=0.1)
        if legend.get_window_extent().width <= room * canvas.bbox.width:
            break
        legend.remove()
    height = legend.get_window_extent().height / canvas.dpi
    canvas.set_figheight(canvas.get_figheight() + max(0.0, height - free))
    return height


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
