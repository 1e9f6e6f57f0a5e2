"""The table and the picture of a sweep: mean and 95 % interval over the seeds of each configuration."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.errors import UserError, counted
from shoal.report.curve import points
from shoal.results import ADVICE, Column, Figure, Panel, Result, Series, Table, estimate_text
from shoal.runs.folder import METRICS
from shoal.runs.metrics import read_metrics
from shoal.sweeps.side_by_side import Outcome
from shoal.training.result import TrainResult
from shoal.training.returns import confidence95, smooth

POINTS = 200  # most points of a curve


def summarize(outcomes: Sequence[Outcome], title: str) -> Result:
    """One record and one curve per configuration; also returns by group where all runs have the same several groups."""
    by_label: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_label.setdefault(outcome.run.label, []).append(outcome)
    groups = _groups(outcomes)
    configurations = [_configuration(label, seeds, groups) for label, seeds in by_label.items()]
    unread: list[str] = []
    panels = _panels(list(by_label.values()), unread)
    failed = [f"{outcome.run.name} failed: {outcome.error}" for outcome in outcomes if outcome.error]
    stopped = sum(outcome.result is None and not outcome.error for outcome in outcomes)
    findings = [*failed, *([f"{counted(stopped, 'run')} not finished."] if stopped else [])]
    if untrained := sum(means["untrained"] for means in configurations):
        findings.append(f"{counted(untrained, 'run')} ended before the warm-up, without a single update: untrained.")
    findings += _no_better(configurations) if not groups else []
    findings += [f"One run is missing from the curve: {sentence}" for sentence in unread]
    every_evaluated = all(outcome.run.config.evaluate_episodes for outcome in outcomes)
    evaluated = "final evaluation" if every_evaluated else "training return of the last 1,000 episodes"
    heading = f"Return per agent ({evaluated}), mean over seeds"
    if any(len(seeds) > 1 for seeds in by_label.values()):
        heading += " ± half of the 95 % interval"
    # where prey learns as well, the team's return is that of the predators
    team = "predator" if all(outcome.run.config.prey == "learned" for outcome in outcomes) else None
    if team in groups:
        findings.insert(0, f"The return is that of group {team}.")
    only = f"seed {outcomes[0].run.config.seed}" if len(outcomes) == 1 else "all settings the same"
    records = _table(configurations, [group for group in groups if group != team], bool(failed), only)
    return Result(
        "sweep",
        title,
        [Table.of(heading, records)],
        findings,
        [Figure("curves", f"{title}: mean and 95 % interval over seeds", panels)] if panels else [],
        {"configurations": configurations, "runs": [_record(outcome, groups) for outcome in outcomes]},
    )


def final_return(result: TrainResult, group: str = "") -> float | None:
    """The final evaluation's return, or the training's where there was no evaluation."""
    if group:
        return result.groups[group].get("deterministic", result.groups[group]["training"])
    return result.return_mean if result.return_deterministic is None else result.return_deterministic


def _groups(outcomes: Sequence[Outcome]) -> list[str]:
    """The groups of agents, if all finished runs have the same, and more than one."""
    every = [list(outcome.result.groups) for outcome in outcomes if outcome.result is not None]
    return every[0] if every and len(every[0]) > 1 and all(groups == every[0] for groups in every) else []


def _configuration(label: str, outcomes: Sequence[Outcome], groups: Sequence[str]) -> dict[str, Any]:
    """A configuration for --json: means over its finished runs, and half-widths of their 95 % intervals."""
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    means = {
        "configuration": label,
        "seeds": len(results),
        "untrained": sum(not result.updates for result in results),
        "failed": sum(bool(outcome.error) for outcome in outcomes),
        "seconds": _mean(result.seconds for result in results),
        "return_random": _mean(result.return_random for result in results),
    }
    for group in ("", *groups):
        returns = [value for result in results if (value := final_return(result, group)) is not None]
        mean, half = _mean(returns), confidence95(np.array(returns))
        ending = f"/group/{group}" if group else ""
        means |= {f"return{ending}": mean, f"return_ci95{ending}": half if math.isfinite(half) else None}
    return means


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the known values."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _table(
    configurations: Sequence[Mapping[str, Any]], groups: Sequence[str], with_failed: bool, only: str
) -> list[Mapping[Any, Any]]:
    """The configurations in the table; the random team's return shows whether anything was learned.

    `only` is what the configuration is called where there is no grid.
    """
    with_random = any(means["return_random"] is not None for means in configurations)
    records: list[Mapping[Any, Any]] = []
    for means in configurations:
        record: dict[Any, Any] = {"configuration": means["configuration"] or only, "seeds": means["seeds"]}
        if with_failed:
            record["failed"] = means["failed"]
        untrained = ", untrained" if means["seeds"] and means["untrained"] == means["seeds"] else ""
        record["return"] = estimate_text(means["return"], means["return_ci95"]) + untrained
        if with_random:
            record["random team"] = estimate_text(means["return_random"], None)
        for group in groups:
            mean, half = means[f"return/group/{group}"], means[f"return_ci95/group/{group}"]
            record[f"group {group}"] = estimate_text(mean, half)
        record[Column("time per run", "s", ",.1f")] = means["seconds"]
        records.append(record)
    return records


def _no_better(configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence if trained teams are not clearly better than the random one."""
    returns = [
        (means["return"] + means["return_ci95"], means["return"] - means["return_ci95"], means["return_random"])
        for means in configurations
        if not means["untrained"] and None not in (means["return"], means["return_ci95"], means["return_random"])
    ]
    among = f" of {counted(len(configurations), 'configuration')}" if len(configurations) > 1 else ""
    number_with = {
        "95 % interval over seeds includes the random team's return": sum(
            low <= at <= high for high, low, at in returns
        ),
        "trained team does worse than the random one": sum(high < random for high, _, random in returns),
    }
    return [
        f"{f'{number:,}{among}: the' if among else 'The'} {what}: {ADVICE}"
        for what, number in number_with.items()
        if number
    ]


def _record(outcome: Outcome, groups: Sequence[str]) -> dict[str, Any]:
    """A run for --json."""
    result = outcome.result
    return {
        "run": str(outcome.run.folder),
        "configuration": outcome.run.label,
        "seed": outcome.run.config.seed,
        "finished": result is not None,
        "kept": outcome.kept,
        "return": result and final_return(result),
        "return_random": result and result.return_random,
        "updates": result and result.updates,
        "seconds": result and result.seconds,
        "error": outcome.error or None,
        **{f"return/group/{name}": result and final_return(result, name) for name in groups},
    }


def _panels(configurations: Sequence[Sequence[Outcome]], unread: list[str]) -> list[Panel]:
    """A panel per world, or per group of agents in it, with a curve per configuration."""
    by_world: dict[str, list[Sequence[Outcome]]] = {}
    for seeds in configurations:
        by_world.setdefault(seeds[0].run.config.env, []).append(seeds)
    panels = []
    for world, here in by_world.items():
        logs = [(seeds[0].run.label_in_world, _logs(seeds, unread)) for seeds in here]
        for group in _groups([outcome for seeds in here for outcome in seeds]) or [""]:
            title = ", ".join(name for name in (world if len(by_world) > 1 else "", group) if name)
            curves = [curve for label, runs in logs if (curve := _curve(label, runs, group)) is not None]
            if curves:
                panels.append(Panel(title, "return per agent, sum over an episode", curves, x="episodes"))
    return panels


def _logs(outcomes: Sequence[Outcome], unread: list[str]) -> list[list[dict[str, Any]]]:
    """The logs of finished runs; why one cannot be read is added to `unread`."""
    logs = []
    for outcome in outcomes:
        if outcome.result is not None:
            try:
                logs.append(read_metrics(outcome.run.folder / METRICS))
            except UserError as error:
                unread.append(str(error))
    return logs


def _curve(label: str, logs: Sequence[list[dict[str, Any]]], group: str) -> Series | None:
    """The mean of the seeds' smoothed learning curves, over the episodes that all of them have."""
    key = f"return/group/{group}" if group else "return_mean"
    runs = [curve for lines in logs if len((curve := points(lines, key))[0])]
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
