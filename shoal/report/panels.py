"""Studies that compare precisions: panels of lines or points over bits or precisions."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.files import write_whole
from shoal.report.curve import COLOURS, FAINT_INK, INK

WIDEST_TICKS = 40
"""Letters that fit side by side under a panel."""


def draw_panels(title: str, panels: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """A panel each: `title`, `y`, `ticks`, perhaps a `level`, and `series` of a label with `values`, perhaps `halves`.

    Values and the halves of their intervals stand over the ticks; None leaves a gap. `points`: ticks have no order, so
    no lines join them.
    """
    from matplotlib.figure import Figure

    columns = 2 if len(panels) == 4 else min(3, max(1, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    figure = Figure(figsize=(max(6.4, 4.2 * columns), 3.2 * rows + 0.4), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        count = len(panel["series"])
        for number, series in enumerate(panel["series"]):
            aside = 0.08 * (number - (count - 1) / 2)  # so that intervals do not hide each other
            places = [place + aside for place in range(len(panel["ticks"]))]
            values = [math.nan if value is None else value for value in series["values"]]
            halves = [half or 0.0 for half in series.get("halves") or [0.0] * len(values)]
            colour = COLOURS[number % len(COLOURS)]
            line = "none" if panel.get("points") else "-"
            axes.errorbar(
                places, values, halves, marker="o", linestyle=line, color=colour, markersize=4, linewidth=1.3,
                elinewidth=1, capsize=2, label=series["label"],
            )  # fmt: skip
        if panel.get("level") is not None:
            axes.axhline(panel["level"], color=FAINT_INK, linewidth=1, linestyle=(0, (5, 3)))
        axes.set_xticks(range(len(panel["ticks"])), panel["ticks"])
        if sum(map(len, panel["ticks"])) > WIDEST_TICKS:
            axes.tick_params("x", rotation=25)
        if panel.get("log"):
            axes.set_yscale("log")
        axes.set_title(panel["title"], loc="left", fontsize=9, color=INK)
        axes.set_ylabel(panel["y"], fontsize=8, color=FAINT_INK)
        axes.set_xlabel(panel.get("x", ""), fontsize=8, color=FAINT_INK)
        axes.grid(color="#E8EBF0", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        if count > 1:
            axes.legend(fontsize=7, frameon=False)
    figure.suptitle(title, fontsize=11, color=INK)
    content = io.BytesIO()
    figure.savefig(content, dpi=130, format="png")
    return write_whole(path, content.getvalue())
