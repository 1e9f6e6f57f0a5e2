"""Learning curves of one or several runs: return over episodes, and time per phase."""

import math
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.config import algorithm_title
from shoal.envs.base import group_of
from shoal.errors import counted
from shoal.report.panels import draw_figure
from shoal.results.figure import COLOURS, FAINT_INK, INK, Figure, Panel, Series
from shoal.runs.folder import CURVE, METRICS
from shoal.runs.metrics import read_metrics
from shoal.training.config import read_config
from shoal.training.returns import smooth

if TYPE_CHECKING:
    from shoal.training.result import TrainResult

Metrics = Sequence[Mapping[str, Any]]
Values = NDArray[np.float64]
GROUP, AGENT = "return/group/", "return/agent/"
SIDES = {"adversary": "predator", "agent": "prey"}
"""Groups of predator-prey by the names of their agents, which are PettingZoo's."""
MOST_AGENTS = 12  # in larger teams agents have no curves of their own, which could not be told apart
VISIBLE = 0.025  # share of the height by which two curves must differ for both to be drawn
EVALUATION = "evaluation, 95 %"


def draw_curve(metrics: Metrics | str | Path, path: str | Path, *arguments: Any, **options: Any) -> Path:
    """Write the learning curve of one run as a PNG; the other arguments are those of `curve_figure`."""
    return draw_figure(curve_figure(metrics, *arguments, **options), path)


def curve_figure(
    metrics: Metrics | str | Path,
    title: str = "",
    random_return: float | None = None,
    evaluations: Metrics | None = None,
    random_groups: Mapping[str, float | None] | None = None,
) -> Figure:
    """The learning curve of one run, with its shares of time per phase below where it has them.

    Where agents are in several groups each group has its own curve, and there is none of the mean over all. Up to 12
    agents whose curves visibly differ from their group's have thin ones with their names.

    Args:
        metrics: the lines of a `metrics.jsonl`, or its path.
        title: heading; a caption with episodes, steps and seconds goes under it.
        random_return: return of a random team, drawn as a dashed line.
        evaluations: evaluations besides those among the metrics (`evaluate/return_mean`), each with `episode`,
            `return_mean` and perhaps `return_ci95` (both ends of the interval, or its half width); where groups are,
            with `return/group/NAME` and `return_ci95/group/NAME`.
        random_groups: return of a random team by group, drawn instead where groups are.

    """
    lines = lines_of(metrics)
    latest = {key: value for line in lines for key, value in line.items()}
    groups = [key.removeprefix(GROUP) for key in latest if key.startswith(GROUP)]
    # predators and prey have the colours of the pictures of an episode
    order = ["prey", "predator"] if set(groups) == {"prey", "predator"} else groups
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(order)}
    along_the_way = [
        {
            key.removeprefix("evaluate/"): value
            for key, value in line.items()
            if key.startswith(("episode", "evaluate/"))
        }
        for line in lines
        if "evaluate/return_mean" in line
    ]
    marks = [*along_the_way, *(evaluations or ())]
    if len(groups) > 1:
        series = [_returns(lines, GROUP + name, name, colours[name]) for name in groups]
        labels = [EVALUATION, *[""] * (len(groups) - 1)]  # one entry in the legend is enough
        series += [
            _marks(marks, f"/group/{name}", colours[name], label) for name, label in zip(groups, labels, strict=True)
        ]
        series += [_level(f"random {name}", (random_groups or {}).get(name), colours[name]) for name in groups]
    else:
        series = [_returns(lines, "return_mean", "training", COLOURS[0]), _marks(marks, "", INK, EVALUATION)]
        series.append(_level("random team", random_return, FAINT_INK))
    series = [one for one in series if one.values]
    if any(one.kind != "level" for one in series):
        series += [*_first_update(*points(lines, "updates")), *_agents(lines, latest, series, colours)]
    panels = [_panel(_caption(latest), series, "above")]
    seconds = {key.removeprefix("time/"): _number(value) for key, value in latest.items() if key.startswith("time/")}
    phases = {phase: value for phase, value in seconds.items() if math.isfinite(value)}
    if sum(phases.values()) > 0:
        shares = Series("", list(phases.values()), "shares", texts=list(phases))
        panels.append(Panel("time per phase", "", [shares], legend="below"))
    return Figure("curve", title, panels, columns=1)


def draw_run_curve(result: "TrainResult") -> Path:
    """Write the learning curve of a finished run into its folder."""
    run = Path(result.run)
    groups = {group: values.get("random") for group, values in result.groups.items()}
    return draw_curve(run / METRICS, run / CURVE, curve_title(run), result.return_random, random_groups=groups)


def curve_title(run: Path) -> str:
    """The heading of a run's pictures."""
    name = os.fsencode(run.resolve().name).decode(errors="replace")  # a name may hold what is no text
    config = read_config(run)
    return f"{algorithm_title(config.algorithm)} in {config.env}: {name}"


def draw_curves(
    runs: Sequence[tuple[str, Metrics | str | Path]],
    path: str | Path,
    title: str = "",
    random_return: float | None = None,
) -> Path:
    """Write the learning curves of several runs, given as (label, metrics or path), into one PNG."""
    series = [
        _returns(lines_of(metrics), "return_mean", label, COLOURS[number % len(COLOURS)])
        for number, (label, metrics) in enumerate(runs)
    ]
    series.append(_level("random team", random_return, FAINT_INK))
    return draw_figure(Figure("curves", title, [_panel("", [one for one in series if one.values])]), path)


# From lines to numbers ------------------------------------------------------------------------------------------------


def lines_of(metrics: Metrics | str | Path) -> Metrics:
    """The lines of a log, or of the one at a path."""
    return read_metrics(metrics) if isinstance(metrics, str | Path) else metrics


def points(lines: Metrics, key: str) -> tuple[Values, Values]:
    """Episodes and finite values of `key`, in order; for the same episode (after a resume) the last line counts."""
    pairs = ((_number(line.get("episode")), _number(line.get(key))) for line in lines)
    points = {episode: value for episode, value in pairs if math.isfinite(episode + value)}
    table = np.array(sorted(points.items()), float).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _panel(title: str, series: list[Series], legend: Literal["", "above"] = "") -> Panel:
    """The panel of returns, or of a note where there are none."""
    if all(one.kind == "level" for one in series):
        series = [Series("", [], "moment", texts=["no episodes yet"])]
    return Panel(title, "return per agent, sum over an episode", series, "episodes", legend=legend)


def _returns(lines: Metrics, key: str, label: str, colour: str) -> Series:
    episodes, returns = points(lines, key)
    return Series(label, returns.tolist(), "curve", episodes.tolist(), colour=colour)


def _marks(evaluations: Metrics, ending: str, colour: str, label: str) -> Series:
    """Evaluations with their intervals; `ending` is that of a group's keys."""
    marks = []
    for entry in evaluations:
        episode, mean = _number(entry.get("episode")), _number(entry.get(f"return{ending or '_mean'}"))
        if math.isfinite(episode + mean):
            interval = entry.get(f"return_ci95{ending}")
            ci95 = np.ravel([] if interval is None else interval).astype(float)
            low, high = ci95.tolist() if len(ci95) == 2 else (mean - ci95.sum(), mean + ci95.sum())
            marks.append((episode, mean, low, high))
    at, values, lows, highs = (list(column) for column in zip(*marks, strict=True)) if marks else ([], [], [], [])
    return Series(label, values, "marks", at, low=lows, high=highs, colour=colour)


def _level(label: str, level: float | None, colour: str) -> Series:
    if level is None or not math.isfinite(level):
        return Series(label, [], "level")
    return Series(f"{label} " + f"{level:z.1f}".replace("-", "−"), [level], "level", colour=colour)


def _first_update(episodes: Values, updates: Values) -> list[Series]:
    """A line where learning begins, after the last point of the warm-up; a note where nothing was learned."""
    if len(updates) == 0:  # a log that does not tell
        return []
    learned = np.flatnonzero(updates > 0)
    if not len(learned):
        return [Series("", [], "moment", texts=["no updates: nothing was learned"])]
    begins = float(episodes[learned[0] - 1]) if learned[0] else 0.0
    return [Series("", [], "moment", [begins], texts=["learning begins"])]


def _agents(
    lines: Metrics, latest: Mapping[str, Any], drawn: Sequence[Series], colours: Mapping[str, str]
) -> list[Series]:
    """Curves of the agents that visibly differ from their group's beside what is drawn, unless there are many."""
    names, groups = [key.removeprefix(AGENT) for key in latest if key.startswith(AGENT)], list(colours)
    if len(names) > MOST_AGENTS:
        return []
    curves = {name: _curve(lines, AGENT + name) for name in names}
    visible = VISIBLE * np.ptp(
        np.concatenate([*(one.values for one in drawn), *(values for _, values in curves.values())])
    )

    def differs(name: str) -> bool:
        key = GROUP + _side(name, groups) if len(groups) > 1 else "return_mean"
        (episodes, returns), (shared_episodes, shared) = curves[name], _curve(lines, key)
        return not np.array_equal(episodes, shared_episodes) or bool(np.abs(returns - shared).max() > visible)

    return [
        Series(name, returns.tolist(), "thin", episodes.tolist(), colour=colours.get(_side(name, groups), FAINT_INK))
        for name, (episodes, returns) in curves.items()
        if len(episodes) > 1 and differs(name)
    ]


def _curve(lines: Metrics, key: str) -> tuple[Values, Values]:
    """Episodes and smoothed values of `key`."""
    episodes, values = points(lines, key)
    return episodes, smooth(values)


def _side(agent: str, groups: Sequence[str]) -> str:
    """The agent's group among these."""
    group = group_of(agent)
    return group if group in groups else SIDES.get(group, "")


def _number(value: Any) -> float:
    return float(value) if isinstance(value, Real) else math.nan


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
