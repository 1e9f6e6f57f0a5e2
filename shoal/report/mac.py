"""Plot of a sweep over MAC units: error of a product over hardware cost."""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import UserError
from shoal.files import write_whole
from shoal.numerics.sweep import Line
from shoal.report.curve import COLOURS, FAINT_INK, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_sweep(found: Sequence[Line], path: Path) -> Path:
    """Plot one point per unit and inner length, labelled by unit number; hollow where something saturated."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patheffects import withStroke

    points = [line for line in found if line.system is not None and math.isfinite(line.error) and line.error > 0]
    if not points:
        raise UserError("None of the units has both a cost and a finite error, so there is nothing to draw.")
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    axes = figure.subplots()
    for number, inner in enumerate(sorted({line.inner for line in points})):
        colour = COLOURS[number % len(COLOURS)]
        axes.plot([], [], "o", color=colour, markersize=5, label=f"K = {inner:,}")
        for line in (line for line in points if line.inner == inner):
            fill = "white" if line.saturated + line.overflowed > 0 else colour
            axes.plot(_luts(line), line.error, "o", color=colour, markerfacecolor=fill, markersize=6)
    axes.plot([], [], "o", color=FAINT_INK, markerfacecolor="white", markersize=5, label="saturated or overflowed")
    units = sorted({line.unit: _luts(line) for line in points}.items(), key=lambda unit: unit[1])
    for number, (unit, luts) in enumerate(units, 1):
        errors = [line.error for line in points if line.unit == unit]
        axes.plot([luts, luts], [min(errors), max(errors)], color=FAINT_INK, linewidth=0.8, zorder=1)
        place = (0, 7) if number % 2 else (0, -14)  # alternate above and below
        end = max(errors) if number % 2 else min(errors)
        label = axes.annotate(str(number), (luts, end), place, textcoords="offset points", ha="center", color=INK)
        label.set(
            fontsize=8, zorder=5, path_effects=[withStroke(linewidth=3, foreground="white")]
        )  # above other points
    _finish(axes)
    names = [f"{number}  {unit}" for number, (unit, _) in enumerate(units, 1)]
    nothing = [Line2D([], [], linestyle="none") for _ in units]
    figure.legend(nothing, names, loc="outside right upper", fontsize=8, frameon=False, handlelength=0, handletextpad=0)
    content = io.BytesIO()
    figure.savefig(content, dpi=130, format="png")
    return write_whole(path, content.getvalue())


def _luts(line: Line) -> float:
    assert line.system is not None
    return line.system.luts


def _finish(axes: "Axes") -> None:
    axes.set(yscale="log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("LUTs of a system with 64 units", fontsize=9, color=FAINT_INK)
    axes.set_ylabel("relative RMS error of the product", fontsize=9, color=FAINT_INK)
    axes.set_title("Error of a product over the area of its MAC units", loc="left", fontsize=10, color=INK)
    axes.margins(0.08)
    axes.grid(color="#E8EBF0", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=8, frameon=False)
