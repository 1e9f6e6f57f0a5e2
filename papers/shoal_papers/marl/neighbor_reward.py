"""Figure 6: neighbour sampling does not lower the rewards. The same is tested for 16-bit rows in the ring."""

import json
import math
import tempfile
from collections.abc import Iterable
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from shoal.errors import counted
from shoal.results import Column, Figure, Panel, Result, Series, Table, Value
from shoal.system.calls import ChildPool
from shoal.system.child import Ended
from shoal.system.processors import usable_processors
from shoal.training.config import TrainConfig
from shoal.training.returns import confidence95, smooth
from shoal.waiting import Advance

VARIANTS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "neighbor": {"sampler": "neighbor"},
    "neighbor, centre included": {"sampler": "neighbor", "include_center": True},
    "neighbor, 1 on either side": {"sampler": "neighbor", "neighbors": 1},
    "uniform, float16 rows": {"storage": "float16"},
}
WORLDS: dict[str, dict[str, Any]] = {
    "cooperative-navigation": {"env": "cooperative-navigation", "rules": "openai"},
    "predator-prey": {"env": "predator-prey"},
}


@dataclass(frozen=True)
class Case:
    """A world, a number of agents, and the samplers to compare."""

    world: str
    agents: int
    variants: tuple[str, ...]
    seeds: int
    episodes: int


class CurvePoint(TypedDict):
    """A point of a learning curve."""

    episode: float
    return_mean: float


class CurveRow(TypedDict):
    """The learning curve of one run."""

    world: str
    agents: int
    variant: str
    seed: int
    curve: list[CurvePoint]


class VariantRow(TypedDict):
    """A sampler compared with uniform sampling."""

    world: str
    agents: int
    variant: str
    seeds: int
    episodes: int
    return_mean: float
    returns: list[float]
    difference: float
    difference_ci95: float | None


class Found(TypedDict):
    """The data of the study."""

    rows: list[VariantRow]
    curves: list[CurveRow]
    failed: list[str]
    interrupted: NotRequired[bool]


Curves = dict[tuple[Case, str, int], list[CurvePoint]]
"""The learning curve of each case, variant and seed."""


def cases(quick: bool) -> list[Case]:
    """The cases to train: all, or one world in the quick form."""
    if quick:
        return [Case("cooperative-navigation", 3, ("uniform", "neighbor"), 2, 2_000)]
    few = ("uniform", "neighbor", "uniform, float16 rows")
    return [
        Case(world, agents, tuple(VARIANTS) if agents == 3 else few, 3, 10_000) for world in WORLDS for agents in (3, 6)
    ]


def length(quick: bool) -> float:
    """Episodes times agents, roughly proportional to the run time."""
    return float(sum(case.agents * case.episodes * case.seeds * len(case.variants) for case in cases(quick)))


def measured(quick: bool, advance: Advance) -> Found:
    """Train every variant of every case with every seed, as many at a time as there are CPUs.

    When interrupted, it keeps finished runs.
    """
    todo = [(case, variant, seed) for case in cases(quick) for variant in case.variants for seed in range(case.seeds)]
    curves: Curves = {}
    failed: list[str] = []
    interrupted = False
    advance(0.0, f"{len(todo)} runs")
    with tempfile.TemporaryDirectory() as folder, ChildPool(usable_processors()) as pool:
        waiting = {
            pool.submit(train_one, settings_of(*one), str(Path(folder) / str(number))): one
            for number, one in enumerate(todo)
        }
        try:
            for done in as_completed(waiting):
                one = waiting[done]
                curves[one] = done.result()
                advance(one[0].agents * one[0].episodes, f"{len(curves)} of {len(todo)} runs")
        except (KeyboardInterrupt, Ended) as stop:
            pool.kill()
            if not curves:
                raise
            interrupted = isinstance(stop, KeyboardInterrupt)
            why = "Interrupted" if interrupted else "A run was killed by the system"
            failed.append(f"{why}: {len(curves)} of {len(todo)} runs are finished.")
    points: list[CurveRow] = [
        {"world": one[0].world, "agents": one[0].agents, "variant": one[1], "seed": one[2], "curve": curves[one]}
        for one in todo
        if one in curves
    ]
    rows = [row for case in cases(quick) for row in compare(case, curves)]
    return {"rows": rows, "curves": points, "failed": failed, "interrupted": interrupted}


def study(found: Found) -> Result:
    """Compare each sampler with uniform sampling."""
    rows = found["rows"]
    claim = "Papers: no significant loss of mean episode reward at 3, 6 and 12 agents."
    findings = [claim, *map(sentence, rows), *found.get("failed", [])]
    title = "Rewards with and without neighbour sampling (Figure 6)"
    table = Table.of("Training return per agent, last 1,000 episodes, mean over seeds", list(map(table_row, rows)))
    drawn = "Training return per agent: mean over seeds, band from the worst to the best seed"
    figures = [Figure("neighbor-reward", drawn, panels(found["curves"]))]
    return Result("neighbor-reward", title, [table] if rows else [], findings, figures, {**found})


def panels(curves: list[CurveRow]) -> list[Panel]:
    """One panel per world and number of agents."""
    groups: dict[tuple[str, int], dict[str, list[CurveRow]]] = {}
    for one in curves:
        groups.setdefault((one["world"], one["agents"]), {}).setdefault(one["variant"], []).append(one)
    return [
        Panel(
            f"{world}, {counted(agents, 'agent')}",
            "return per agent",
            [band(variant, [one["curve"] for one in own]) for variant, own in variants.items()],
            "episode",
        )
        for (world, agents), variants in groups.items()
    ]


def band(variant: str, curves: list[list[CurvePoint]]) -> Series:
    """The mean over seeds, and from the worst to the best seed."""
    shortest = min(map(len, curves))
    returns = np.array([smooth(np.array([point["return_mean"] for point in curve[:shortest]])) for curve in curves])
    low, mean, high = returns.min(0), returns.mean(0), returns.max(0)  # (seeds, points) to (points,)
    episodes = [point["episode"] for point in curves[0][:shortest]]
    return Series(variant, mean.tolist(), at=episodes, low=low.tolist(), high=high.tolist())


def settings_of(case: Case, variant: str, seed: int) -> dict[str, Any]:
    """The settings of one run."""
    common = {"agents": case.agents, "episodes": case.episodes, "seed": seed, "threads": 1}
    quiet = {"tensorboard": False, "checkpoint_every": 0, "evaluate_episodes": 0}
    return {**WORLDS[case.world], **VARIANTS[variant], **common, **quiet}


def train_one(settings: dict[str, Any], folder: str) -> list[CurvePoint]:
    """Train in a separate process; returns the learning curve."""
    from shoal.api import train

    if train(TrainConfig(**settings, out=folder)).signal is not None:
        raise KeyboardInterrupt
    lines = (json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines())
    return [{"episode": line["episode"], "return_mean": line["return_mean"]} for line in lines]


def last_return(curve: list[CurvePoint]) -> float:
    """The mean return of the last 1,000 episodes, or of the last half of a shorter run."""
    end = curve[-1]["episode"]
    start = max(end - 1_000, end / 2)
    late = [line["return_mean"] for line in curve if line["episode"] > start]
    return sum(late) / len(late)


def compare(case: Case, curves: Curves) -> Iterable[VariantRow]:
    """One row per variant: its return, and its difference from uniform sampling with a 95 % interval over seeds.

    Only seeds that both were trained with count.
    """
    for variant in case.variants:
        both = [(curves.get((case, variant, k)), curves.get((case, "uniform", k))) for k in range(case.seeds)]
        pairs = [(last_return(own), last_return(uniform)) for own, uniform in both if own and uniform]
        if not pairs:
            continue
        values = [value for value, _ in pairs]
        differences = [value - other for value, other in pairs]
        yield {
            "world": case.world,
            "agents": case.agents,
            "variant": variant,
            "seeds": len(pairs),
            "episodes": case.episodes,
            "return_mean": sum(values) / len(values),
            "returns": values,
            "difference": sum(differences) / len(differences),
            "difference_ci95": confidence95(np.array(differences)),
        }


def sentence(row: VariantRow) -> str:
    """Whether a variant differs from uniform sampling."""
    where = f"{row['world']}, {counted(row['agents'], 'agent')}, {row['variant']}: {row['return_mean']:.2f}"
    if row["variant"] == "uniform":
        return f"{where} per agent."
    gap, ci = row["difference"], row["difference_ci95"]
    if ci is None or not math.isfinite(ci):
        verdict = "one seed is not enough to tell"
    elif abs(gap) <= ci:
        verdict = "no significant difference with these seeds"
    else:
        verdict = "worse" if gap < 0 else "better"
    return f"{where}, {gap:+.2f}{margin(ci)} against uniform: {verdict}."


def margin(ci: float | None) -> str:
    """The interval, if there are enough seeds for one."""
    return "" if ci is None or not math.isfinite(ci) else f" ± {ci:.2f}"


def table_row(row: VariantRow) -> dict[Column, Value]:
    """The row in the printed table."""
    uniform = row["variant"] == "uniform"
    return {
        Column("world"): row["world"],
        Column("agents"): row["agents"],
        Column("sampling"): row["variant"],
        Column("seeds"): row["seeds"],
        Column("return per agent", format=".2f"): row["return_mean"],
        Column("difference from uniform", format="+.2f"): None if uniform else row["difference"],
        Column("95 %"): "" if uniform else margin(row["difference_ci95"]).strip(),
    }
