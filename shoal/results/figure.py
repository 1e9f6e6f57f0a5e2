"""Figures as data, separate from drawing."""

from dataclasses import dataclass, field
from typing import Literal

# Colours that are distinguishable for colour-blind people (six of Okabe and Ito's first).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8F98", "#332288", "#999933")
INK, FAINT_INK = "#212529", "#68707A"

Numbers = list[float | None]  # None leaves a gap


@dataclass(frozen=True)
class Series:
    """One series of values."""

    label: str
    """Name in the legend; a label has the same colour in all panels of a figure."""
    values: Numbers
    kind: Literal["line", "bars", "stack", "steps", "spans", "curve", "thin", "marks", "level", "moment", "shares"] = (
        "line"
    )
    """bars: side by side; stack: stacked bars; steps: a histogram; spans: from `low` to `values`; curve: light points
    with their running mean; thin: a line with its label beside its end; marks: diamonds with their intervals from `low`
    to `high`; level: a dashed line across the panel; moment: a dotted line at `at`, or none, and its text; shares: one
    bar of parts with `texts` as their names."""
    at: list[float] = field(default_factory=list)
    """Positions on a numeric x axis (for steps: the bin edges); empty: at the panel's ticks."""
    halves: Numbers = field(default_factory=list)
    """Half-widths of the values' intervals."""
    low: Numbers = field(default_factory=list)
    """The lower edge of a band around the values, or the lower ends of spans."""
    high: Numbers = field(default_factory=list)
    """The upper edge of a band."""
    hollow: list[bool] = field(default_factory=list)
    """Values shown as rings, not connected by a line."""
    paper: Numbers = field(default_factory=list)
    """The papers' values, marked on the bars."""
    texts: list[str] = field(default_factory=list)
    """Texts beside spans and moments, and of shares."""
    colour: str = ""
    """None: the next of COLOURS."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    y: str
    """Label of the y axis, with its unit."""
    series: list[Series]
    x: str = ""
    ticks: list[str] = field(default_factory=list)
    """Tick labels of the x axis; empty: it is numeric."""
    above: list[str] = field(default_factory=list)
    """Texts above the bars of each tick."""
    level: float | None = None
    """A dashed line across the panel."""
    level_label: str = ""
    level_half: float | None = None
    """Half-width of the level's interval."""
    points: bool = False
    """Markers without lines: the ticks have no order."""
    rings: str = ""
    """What hollow markers mean."""
    log: bool = False
    rows: list[str] = field(default_factory=list)
    """A map in place of series: names of its rows; the ticks name its columns."""
    cells: list[Numbers] = field(default_factory=list)
    """Its rows of shares from 0 to 1, coloured on a logarithmic scale; None: an empty cell."""
    legend: Literal["", "above", "below"] = ""
    """Where the panel has a legend of its own; empty: its labels are in that of the figure."""


@dataclass(frozen=True)
class Figure:
    """Panels that belong together, with one legend."""

    name: str
    """Also its file name, without the suffix."""
    title: str
    panels: list[Panel]
    same_scale: bool = False
    """All panels share the y axis."""
    columns: int = 0
    """Panels side by side; 0: as many as look good."""
    key: list[str] = field(default_factory=list)
    """Lines of text beside the panels."""
