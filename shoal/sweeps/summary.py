"""The table and the picture of a sweep: mean and 95 % interval over the seeds of each configuration."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import counted
from shoal.results import Column, Figure, Panel, Result, Series, Table
from shoal.sweeps.side_by_side import Outcome
from shoal.training.early import METRICS
from shoal.training.metrics import read_metrics
from shoal.training.result import TrainResult
from shoal.training.returns import confidence95, smooth

POINTS = 200
"""Most points of a curve."""
CURVES = "curves"
Values = NDArray[np.float64]


def summarize(outcomes: Sequence[Outcome], title: str) -> Result:
    """One row and one curve per configuration."""
    by_label: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_label.setdefault(outcome.run.label, []).append(outcome)
    rows = [_row(label, own) for label, own in by_label.items()]
    curves = [curve for label, own in by_label.items() if (curve := _curve(label, own)) is not None]
    panel = Panel("", "return per agent, sum over an episode", curves, x="episodes")
    failed = [f"{outcome.run.name} failed: {outcome.error}" for outcome in outcomes if outcome.error]
    stopped = sum(outcome.result is None and not outcome.error for outcome in outcomes)
    findings = [*failed, *([f"{counted(stopped, 'run')} not finished."] if stopped else [])]
    evaluated = "final evaluation" if _evaluated(outcomes) else "training return of the last 1,000 episodes"
    heading = f"Return per agent ({evaluated}), mean over seeds"
    return Result(
        "sweep",
        title,
        [Table.of(heading, rows)],
        findings,
        [Figure(CURVES, f"{title}: mean and 95 % interval over seeds", [panel])] if curves else [],
        {"runs": [_record(outcome) for outcome in outcomes]},
    )


def final_return(result: TrainResult) -> float | None:
    """The final evaluation's return, or the training's where there was no evaluation."""
    return result.return_mean if result.return_deterministic is None else result.return_deterministic


def _evaluated(outcomes: Sequence[Outcome]) -> bool:
    return all(outcome.run.config.evaluate_episodes for outcome in outcomes)


def _row(label: str, outcomes: Sequence[Outcome]) -> Mapping[Any, Any]:
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    returns = np.array([value for result in results if (value := final_return(result)) is not None])
    mean, half = (float(returns.mean()) if len(returns) else None), confidence95(returns)
    interval = "–" if mean is None or not math.isfinite(half) else f"{mean - half:,.2f} to {mean + half:,.2f}"
    return {
        "configuration": label or "all settings the same",
        "seeds": len(results),
        "failed": sum(bool(outcome.error) for outcome in outcomes),
        Column("return", format=",.2f"): mean,
        "95 % interval": interval,
        Column("time per run", "s", ",.1f"): float(np.mean([result.seconds for result in results]))
        if results
        else None,
    }


def _record(outcome: Outcome) -> dict[str, Any]:
    """A run for --json."""
    result = outcome.result
    return {
        "run": str(outcome.run.folder),
        "configuration": outcome.run.label,
        "seed": outcome.run.config.seed,
        "finished": result is not None,
        "kept": outcome.kept,
        "return": None if result is None else final_return(result),
        "return_random": None if result is None else result.return_random,
        "seconds": None if result is None else result.seconds,
        "error": outcome.error or None,
    }


def _curve(label: str, outcomes: Sequence[Outcome]) -> Series | None:
    """The mean of the seeds' smoothed learning curves, over the episodes that all of them have."""
    runs = [found for outcome in outcomes if outcome.result is not None and (found := _returns(outcome)) is not None]
    if not runs:
        return None
    first, last = max(run[0][0] for run in runs), min(run[0][-1] for run in runs)
    count = min(POINTS, *(len(run[0]) for run in runs)) if first < last else 1
    at = np.linspace(first, last, count)
    returns = np.array([np.interp(at, episodes, smooth(values)) for episodes, values in runs])
    mean = returns.mean(0)
    name = label or counted(len(runs), "seed")
    if len(runs) < 2:
        return Series(name, mean.tolist(), at=at.tolist())
    half = np.array([confidence95(column) for column in returns.T])
    return Series(name, mean.tolist(), at=at.tolist(), low=(mean - half).tolist(), high=(mean + half).tolist())


def _returns(outcome: Outcome) -> tuple[Values, Values] | None:
    """Episodes and training returns of a run's log; None if it has none."""
    lines = read_metrics(outcome.run.folder / METRICS)
    pairs = {line["episode"]: line["return_mean"] for line in lines if line.get("return_mean") is not None}
    table = np.array(sorted(pairs.items()), float).reshape(-1, 2)
    return (table[:, 0], table[:, 1]) if len(table) else None
