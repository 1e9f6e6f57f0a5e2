"""Learning curves of one or several runs: return over episodes, and time per phase."""

import io
import math
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shoal.envs.base import group_of
from shoal.errors import counted
from shoal.report.drawing import drawing, plain
from shoal.results.figure import COLOURS, FAINT_INK, INK
from shoal.runs.metrics import read_metrics
from shoal.system.files import write_whole
from shoal.training.config import read_config
from shoal.training.early import CURVE, METRICS
from shoal.training.returns import smooth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from shoal.training.result import TrainResult

Metrics = Sequence[Mapping[str, Any]]
Values = NDArray[np.float64]
GROUP, AGENT = "return/group/", "return/agent/"
SIDES = {"adversary": "predator", "agent": "prey"}
"""Groups of predator-prey by the names of their agents, which are PettingZoo's."""
MOST_AGENTS = 12
"""More agents have no curves of their own: nobody could tell them apart."""
LINE = 0.042
"""Height of a line of small text, as a share of the axes."""
VISIBLE = 0.025
"""Share of the height by which two curves must differ for both to be drawn."""
EVALUATION = "evaluation, 95 %"


@drawing()
def draw_curve(
    metrics: Metrics | str | Path,
    path: str | Path,
    title: str = "",
    random_return: float | None = None,
    evaluations: Metrics | None = None,
    random_groups: Mapping[str, float | None] | None = None,
) -> Path:
    """Write the learning curve of one run as a PNG, with its shares of time per phase below where it has them.

    Where agents are in several groups each group has its own curve, and there is none of the mean over all. Up to 12
    agents whose curves visibly differ from their group's have thin ones with their names.

    Args:
        metrics: the lines of a `metrics.jsonl`, or its path.
        path: where to write.
        title: heading; a caption with episodes, steps and seconds goes under it.
        random_return: return of a random team, drawn as a dashed line.
        evaluations: evaluations besides those among the metrics (`evaluate/return_mean`), each with `episode`,
            `return_mean` and perhaps `return_ci95` (both ends of the interval, or its half width); where groups are,
            with `return/group/NAME` and `return_ci95/group/NAME`.
        random_groups: return of a random team by group, drawn instead where groups are.

    """
    lines = _lines(metrics)
    latest = {key: value for line in lines for key, value in line.items()}
    phases = _phase_seconds(latest)
    figure, curve, bar = _figure(with_phases=bool(phases))
    groups = [key.removeprefix(GROUP) for key in latest if key.startswith(GROUP)]
    colours = _group_colours(groups)
    marks = [*_evaluations(lines), *(evaluations or [])]
    levels: list[tuple[str, float | None, str]] = [("random team", random_return, FAINT_INK)]
    if len(groups) > 1:
        for name in groups:
            _plot_returns(curve, *_series(lines, GROUP + name), name, colours[name])
            label = EVALUATION if name == groups[0] else ""  # one entry in the legend is enough
            _plot_evaluations(curve, marks, f"/group/{name}", colours[name], label)
        levels = [(f"random {name}", (random_groups or {}).get(name), colours[name]) for name in groups]
    else:
        _plot_returns(curve, *_series(lines, "return_mean"), "training", COLOURS[0])
        _plot_evaluations(curve, marks, "", INK, EVALUATION)
    _finish_curve(curve, levels)
    if curve.has_data():
        _mark_first_update(curve, *_series(lines, "updates"))
        _plot_agents(curve, _own_curves(lines, latest, groups, curve.get_ylim()), colours)
    _head(figure, curve, title, _caption(latest))
    if bar:
        _plot_phases(bar, phases)
    return _write(figure, path)


def draw_run_curve(result: "TrainResult") -> Path:
    """Write the learning curve of a finished run into its folder."""
    run = Path(result.run)
    name = os.fsencode(run.resolve().name).decode(errors="replace")  # a name may hold what is no text
    config = read_config(run)
    title = f"{config.algorithm.upper()} in {config.env}: {name}"
    groups = {group: values.get("random") for group, values in result.groups.items()}
    picture = run / CURVE
    return draw_curve(run / METRICS, picture, title=title, random_return=result.return_random, random_groups=groups)


def lacks_curve(run: Path) -> bool:
    """Whether a finished run has no learning curve."""
    return not (run / CURVE).exists()


@drawing()
def draw_curves(
    runs: Sequence[tuple[str, Metrics | str | Path]],
    path: str | Path,
    title: str = "",
    random_return: float | None = None,
) -> Path:
    """Write the learning curves of several runs, given as (label, metrics or path), into one PNG."""
    figure, curve, _ = _figure(with_phases=False)
    for number, (label, metrics) in enumerate(runs):
        episodes, returns = _series(_lines(metrics), "return_mean")
        _plot_returns(curve, episodes, returns, label, COLOURS[number % len(COLOURS)])
    _finish_curve(curve, [("random team", random_return, FAINT_INK)], many=True)
    _head(figure, curve, title, "")
    return _write(figure, path)


# From lines to numbers ------------------------------------------------------------------------------------------------


def _lines(metrics: Metrics | str | Path) -> Metrics:
    return read_metrics(metrics) if isinstance(metrics, str | Path) else metrics


def _series(lines: Metrics, key: str) -> tuple[Values, Values]:
    """Episodes and finite values of `key`, in order; for the same episode (after a resume) the last line counts."""
    pairs = ((_number(line.get("episode")), _number(line.get(key))) for line in lines)
    points = {episode: value for episode, value in pairs if math.isfinite(episode + value)}
    table = np.array(sorted(points.items()), float).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _evaluations(lines: Metrics) -> list[dict[str, Any]]:
    """Evaluations along the way, whose keys in the metrics start with `evaluate/`."""
    found = []
    for line in lines:
        entry = {key.removeprefix("evaluate/"): value for key, value in line.items() if key.startswith("evaluate/")}
        if "return_mean" in entry:
            found.append({"episode": line.get("episode"), **entry})
    return found


def _own_curves(
    lines: Metrics, latest: Mapping[str, Any], groups: Sequence[str], limits: tuple[float, float]
) -> dict[str, tuple[Values, Values]]:
    """Curves of the agents that visibly differ from their group's within these limits, unless there are many agents."""
    names = [key.removeprefix(AGENT) for key in latest if key.startswith(AGENT)]
    if len(names) > MOST_AGENTS:
        return {}
    own = {name: _curve(lines, AGENT + name) for name in names}
    visible = VISIBLE * np.ptp(np.concatenate([limits, *(returns for _, returns in own.values())]))

    def differs(name: str) -> bool:
        key = GROUP + _side(name, groups) if len(groups) > 1 else "return_mean"
        (episodes, returns), (shared_episodes, shared) = own[name], _curve(lines, key)
        return not np.array_equal(episodes, shared_episodes) or bool(np.abs(returns - shared).max() > visible)

    return {name: curve for name, curve in own.items() if len(curve[0]) > 1 and differs(name)}


def _curve(lines: Metrics, key: str) -> tuple[Values, Values]:
    """Episodes and smoothed values of `key`."""
    episodes, values = _series(lines, key)
    return episodes, smooth(values)


def _side(agent: str, groups: Sequence[str]) -> str:
    """The agent's group among these."""
    group = group_of(agent)
    return group if group in groups else SIDES.get(group, "")


def _number(value: Any) -> float:
    return float(value) if isinstance(value, Real) else math.nan


def _group_colours(groups: Sequence[str]) -> dict[str, str]:
    """A colour for each group; predators and prey have those of the pictures of an episode."""
    order = ["prey", "predator"] if set(groups) == {"prey", "predator"} else groups
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(order)}


def _phase_seconds(latest: Mapping[str, Any]) -> dict[str, float]:
    """Seconds per phase so far; empty if no phase took any."""
    seconds = {key.removeprefix("time/"): _number(value) for key, value in latest.items() if key.startswith("time/")}
    finite = {phase: value for phase, value in seconds.items() if math.isfinite(value)}
    return finite if sum(finite.values()) > 0 else {}


def _caption(latest: Mapping[str, Any]) -> str:
    """A caption with episodes, steps and seconds."""
    episodes, steps, seconds = (_number(latest.get(key)) for key in ("episode", "env_steps", "seconds"))
    parts = []
    if math.isfinite(episodes):
        parts.append(counted(round(episodes), "episode"))
    if math.isfinite(steps):
        parts.append(counted(round(steps), "step"))
    if math.isfinite(seconds):
        parts.append(f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.1f} s")
    if seconds > 0 and math.isfinite(steps):
        parts.append(f"{steps / seconds:,.0f} steps/s")
    return "  ·  ".join(parts)


# From numbers to the picture ------------------------------------------------------------------------------------------


def _figure(with_phases: bool) -> "tuple[Figure, Axes, Axes | None]":
    """A figure with axes for the curve and, if asked for, narrow ones for the bar of phases below."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 5.6 if with_phases else 4.6), dpi=120)
    figure.set_layout_engine("constrained", h_pad=0.1, w_pad=0.1)
    heights = [12, 1] if with_phases else [12]
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    curve = axes[0]
    curve.set_xlabel("episodes", color=INK)
    curve.set_ylabel("return per agent, sum over an episode", color=INK)
    curve.margins(x=0.01)
    curve.grid(color="#E8EBF0", linewidth=0.8)
    curve.spines[["top", "right"]].set_visible(False)
    curve.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1))
    curve.xaxis.set_major_formatter("{x:,.0f}")
    curve.yaxis.set_major_formatter("{x:,.5g}")
    return figure, curve, axes[1] if with_phases else None


def _plot_returns(axes: "Axes", episodes: Values, returns: Values, label: str, colour: str) -> None:
    """Every value as a light point, and the smoothed curve as a solid line."""
    if len(returns) == 0:
        return
    axes.plot(episodes, returns, ".", color=colour, alpha=0.35, markersize=5, markeredgewidth=0)
    marker = "o" if len(returns) == 1 else ""
    axes.plot(episodes, smooth(returns), color=colour, linewidth=2, marker=marker, label=plain(label))


def _plot_evaluations(axes: "Axes", evaluations: Metrics, ending: str, colour: str, label: str) -> None:
    """Diamonds with their 95 % intervals; `ending` is that of a group's keys."""
    marks = []
    for entry in evaluations:
        episode, mean = _number(entry.get("episode")), _number(entry.get(f"return{ending or '_mean'}"))
        if math.isfinite(episode + mean):
            ci95 = np.ravel([] if (found := entry.get(f"return_ci95{ending}")) is None else found).astype(float)
            low, high = ci95 if len(ci95) == 2 else (mean - ci95.sum(), mean + ci95.sum())
            marks.append((episode, mean, max(0.0, mean - low), max(0.0, high - mean)))
    if marks:
        episodes, means, *halves = np.array(marks).T
        axes.errorbar(
            episodes, means, halves, fmt="D", color=colour, markeredgecolor=INK, markersize=5, capsize=3,
            linewidth=1.2, zorder=3, label=label,
        )  # fmt: skip


def _plot_agents(axes: "Axes", agents: Mapping[str, tuple[Values, Values]], colours: Mapping[str, str]) -> None:
    """Thin curves in the colours of their groups, with the agents' names to the right of where they end."""
    own_colours = {name: colours.get(_side(name, list(colours)), FAINT_INK) for name in agents}
    for name, (episodes, returns) in agents.items():
        axes.plot(episodes, returns, color=own_colours[name], linewidth=0.9, alpha=0.8)
    low, high = axes.get_ylim()
    ends = sorted(((returns[-1] - low) / (high - low), name) for name, (_, returns) in agents.items())
    for (_, name), height in zip(ends, _apart([end for end, _ in ends]), strict=True):
        axes.annotate(
            plain(name), (1.01, height), xycoords="axes fraction", va="center", fontsize=8, color=own_colours[name],
            annotation_clip=False,
        )  # fmt: skip


def _mark_first_update(axes: "Axes", episodes: Values, updates: Values) -> None:
    """A line where learning begins, after the last point of the warm-up; a note where nothing was learned."""
    if len(updates) == 0:  # a log that does not tell
        return
    learned = np.flatnonzero(updates > 0)
    if not len(learned):
        _note_at_top(axes, 0.0, "axes fraction", "no updates: nothing was learned")
        return
    begins = episodes[learned[0] - 1] if learned[0] else 0.0
    axes.axvline(begins, color=FAINT_INK, linestyle=":", linewidth=1.3)
    _note_at_top(axes, begins, "data", "learning begins")


def _note_at_top(axes: "Axes", x: float, unit: str, text: str) -> None:
    """Small text at the upper edge of the axes, on the side of x that has more room."""
    left, right = axes.get_xlim()
    to_the_left = unit == "data" and x > (left + right) / 2
    axes.annotate(
        text, (x, 1), (-4 if to_the_left else 4, -4), (unit, "axes fraction"), "offset points", color=FAINT_INK,
        ha="right" if to_the_left else "left", va="top", fontsize=8,
    )  # fmt: skip


def _apart(heights: Sequence[float]) -> list[float]:
    """Heights (ascending, shares of the axes) moved as little as it takes to have a line's room for each.

    Less k lines, the k-th one must not be below the one before: an isotonic regression, by its min-max formula.
    """
    count = len(heights)
    free = np.array(heights) - LINE * np.arange(count)
    moved = [max(min(free[i : j + 1].mean() for j in range(k, count)) for i in range(k + 1)) for k in range(count)]
    lowest, highest = LINE / 2, 1 - LINE * (count - 1 / 2)
    return [float(min(max(height, lowest), highest)) + LINE * k for k, height in enumerate(moved)]


def _finish_curve(axes: "Axes", levels: Sequence[tuple[str, float | None, str]], many: bool = False) -> None:
    """Levels of random teams (label, return, colour) and the legend, or a note if there is nothing to show."""
    if not axes.has_data():
        axes.set(xticks=[], yticks=[])
        axes.annotate("no episodes yet", (0.5, 0.5), xycoords="axes fraction", ha="center", color=FAINT_INK)
        return
    for name, level, colour in levels:
        if level is not None and math.isfinite(level):
            label = f"{plain(name)} " + f"{level:z.1f}".replace("-", "−")
            axes.axhline(level, color=colour, linestyle=(0, (5, 3)), linewidth=1.3, label=label)
    if many:
        if axes.get_legend_handles_labels()[1]:
            axes.figure.legend(loc="outside right upper", frameon=False, fontsize=9)
        return
    _legend(axes, *_rows(axes, len(levels)), loc="lower left", bbox_to_anchor=(0, 1), fontsize=9)


def _rows(axes: "Axes", groups: int) -> tuple[int, list[Any], list[str]]:
    """Columns, handles and labels of a legend in one row or, where that is too long, with a row for each group.

    Legends are filled by column, and evenly: empty entries at the end keep a group's entries in its row.
    """
    from matplotlib.lines import Line2D

    handles, labels = axes.get_legend_handles_labels()
    if len(labels) <= 4:
        return 4, handles, labels
    columns = math.ceil(len(labels) / groups)
    empty = columns * groups - len(labels)
    return columns, handles + [Line2D([], [], alpha=0)] * empty, labels + [""] * empty


def _room(axes: "Axes") -> float:
    """Pixels beside each other that a title or a legend may take."""
    return 0.86 * axes.figure.get_window_extent().width


def _legend(axes: "Axes", most: int, handles: list[Any], labels: list[str], **style: Any) -> None:
    """A legend in as many columns as fit, at most so many."""
    for columns in range(most, 0, -1):
        legend = axes.legend(handles, labels, ncols=columns, borderpad=0.1, frameon=False, **style)
        if legend.get_window_extent().width <= _room(axes):
            return


def _head(figure: "Figure", axes: "Axes", title: str, caption: str) -> None:
    """The title, as large as fits, and the caption, both above the legend; a high one makes the picture higher."""
    legend = axes.get_legend()
    top = 8.0 if legend is None else 72 * legend.get_window_extent().height / figure.dpi + 12  # in points
    figure.set_figheight(figure.get_figheight() + max(0.0, top - 48) / 72)
    if caption:
        axes.annotate(caption, (0, 1), (0, top), "axes fraction", "offset points", color=FAINT_INK, fontsize=9)
        top += 16
    for points in range(12, 5, -1):
        heading = axes.set_title(plain(title), loc="left", fontsize=points, fontweight="bold", color=INK, pad=top)
        if heading.get_window_extent().width <= _room(axes):
            break


def _plot_phases(axes: "Axes", seconds: Mapping[str, float]) -> None:
    """One bar of the total time by phase; narrow shares are labelled in the legend only."""
    total, left = sum(seconds.values()), 0.0
    for number, (phase, spent) in enumerate(seconds.items()):  # fixed colours, even if some phases took no time
        if spent <= 0:
            continue
        share = spent / total
        label = f"{phase} {100 * share:.0f} %" if share >= 0.01 else f"{phase} < 1 %"
        axes.barh(0, share, left=left, color=COLOURS[number % len(COLOURS)], edgecolor="white", label=plain(label))
        if share >= 0.06:
            axes.text(left + share / 2, 0, f"{100 * share:.0f} %", ha="center", va="center", color="white", fontsize=9)
        left += share
    axes.set(xlim=(0, 1), ylim=(-0.4, 0.4))
    axes.set_axis_off()
    axes.set_title("time per phase", loc="left", fontsize=9, color=FAINT_INK, pad=3)
    _legend(
        axes, 5, *axes.get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(0, 0), fontsize=8, handlelength=1
    )


def _write(figure: "Figure", path: str | Path) -> Path:
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return write_whole(path, content.getvalue())
