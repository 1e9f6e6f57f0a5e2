"""Pictures of a policy at many widths: its return over bits, and how its weights are spread."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import counted
from shoal.files import write_whole
from shoal.report.curve import COLOURS, FAINT_INK, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_widths(found: Mapping[str, Any], path: Path) -> Path:
    """Write the return over the precisions, widest first, with intervals: a line through the integers, other formats
    as rings beside those of the same width."""
    from matplotlib.figure import Figure

    rows: Sequence[dict[str, Any]] = found["rows"]
    full = rows[0]
    widths = {row["precision"]: row["bits"] for row in rows[1:]}
    figure = Figure(figsize=(max(7.5, 0.6 * len(widths)), 4.4), layout="constrained")  # room for every name
    axes = figure.subplots()
    axes.axhline(full["return_mean"], color=FAINT_INK, linewidth=1, linestyle=(0, (5, 3)), label="float32")
    low, high = (full["return_mean"] + sign * (full["return_ci95"] or 0) for sign in (-1, 1))
    axes.axhspan(low, high, color=FAINT_INK, alpha=0.12, linewidth=0)
    order = sorted(widths, key=lambda name: (-widths[name], not _integers(name), name))
    places = {name: place for place, name in enumerate(order)}
    kinds = list(dict.fromkeys(row["what"] for row in rows[1:]))
    for number, what in enumerate(kinds):
        aside = 0.06 * (number - (len(kinds) - 1) / 2)  # so that intervals do not hide each other
        own = [row | {"place": places[row["precision"]] + aside} for row in rows if row["what"] == what]
        _plot(axes, own, what, COLOURS[number % len(COLOURS)])
    axes.set_xticks(range(len(order)), [name.removesuffix(" bits") for name in order])
    axes.set_xlabel("bits, or number format", fontsize=9, color=FAINT_INK)
    axes.set_ylabel("return of an episode", fontsize=9, color=FAINT_INK)
    played = counted(found["episodes"], "episode")
    title = f"Return over bits, {found['env']}: means of {played} with 95 % intervals"
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    _finish(axes)
    axes.legend(fontsize=8, frameon=False)
    return _write(figure, path)


def draw_weights(found: Mapping[str, Any], path: Path) -> Path:
    """Write a histogram of each layer's weights."""
    from matplotlib.figure import Figure

    layers: Sequence[Mapping[str, Any]] = found["layers"]
    columns = min(3, len(layers))
    rows = math.ceil(len(layers) / columns)
    figure = Figure(figsize=(3.2 * columns, 2.2 * rows + 0.4), layout="constrained")
    every = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    for axes, layer in zip(every, layers, strict=False):
        edges = np.linspace(layer["low"], layer["high"], len(layer["counts"]) + 1)
        axes.stairs(layer["counts"], edges, fill=True, color=COLOURS[0])
        shape = " × ".join(str(side) for side in layer["shape"])
        axes.set_title(f"{layer['layer']}  ({shape})", loc="left", fontsize=8, color=INK)
        axes.set_yticks([])
        _finish(axes)
    for axes in every[len(layers) :]:
        axes.set_visible(False)
    figure.suptitle("Weights of each layer: how many have which value", x=0.01, ha="left", fontsize=10, color=INK)
    return _write(figure, path)


def _integers(precision: str) -> bool:
    return precision.endswith(" bits")


def _plot(axes: "Axes", rows: Sequence[Mapping[str, Any]], what: str, colour: str) -> None:
    """Integers as a line, other formats as rings."""
    line = sorted((row for row in rows if _integers(row["precision"])), key=lambda row: row["place"])
    rings = [row for row in rows if not _integers(row["precision"])]
    for own, style, fill in ((line, "o-", colour), (rings, "o", "white")):
        if own:
            places, means = [row["place"] for row in own], [row["return_mean"] for row in own]
            errors = [row["return_ci95"] or 0 for row in own]
            label = what if own is line or not line else None
            axes.errorbar(
                places, means, errors, fmt=style, color=colour, markerfacecolor=fill, markersize=5, linewidth=1.5,
                elinewidth=1, capsize=2, label=label,
            )  # fmt: skip


def _finish(axes: "Axes") -> None:
    axes.grid(color="#E8EBF0", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _write(figure: "Figure", path: Path) -> Path:
    content = io.BytesIO()
    figure.savefig(content, dpi=130, format="png")
    return write_whole(path, content.getvalue())
