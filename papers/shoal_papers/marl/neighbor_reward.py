"""Figure 6: neighbour sampling does not lower the rewards. The same is tested for 16-bit rows in the ring."""

import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import counted
from shoal.results import Column, Panel, Series, Table, Value
from shoal.training.config import TrainConfig
from shoal.training.returns import confidence95, smooth
from shoal_papers.cells import Cells, Options, StudyCell
from shoal_papers.seeds import mean, spread
from shoal_papers.study import CellStudy, Data

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
QUIET: dict[str, Any] = {"tensorboard": False, "checkpoint_every": 0, "evaluate_episodes": 0, "threads": 1}
EPISODE_SECONDS = 1e-3  # approximate seconds of an episode, per agent


@dataclass(frozen=True)
class Case:
    """A world, a number of agents, and the samplers to compare."""

    world: str
    agents: int
    variants: tuple[str, ...]
    seeds: int
    episodes: int


def cases(quick: bool) -> list[Case]:
    """The cases to train: all, or one world in the quick form."""
    if quick:
        return [Case("cooperative-navigation", 3, ("uniform", "neighbor"), 2, 2_000)]
    few = ("uniform", "neighbor", "uniform, float16 rows")
    return [
        Case(world, agents, tuple(VARIANTS) if agents == 3 else few, 3, 10_000) for world in WORLDS for agents in (3, 6)
    ]


def train_curve(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A cell: train; returns the learning curve."""
    from shoal.api import train
    from shoal.runs.observer import Observer

    with tempfile.TemporaryDirectory() as run:
        config = TrainConfig(**settings["train"], **QUIET, out=run)
        if train(config, observer=Observer(), pictures=False).signal is not None:
            raise KeyboardInterrupt
        lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    return {"curve": [{name: line[name] for name in ("episode", "return_mean")} for line in lines]}


class NeighborReward(CellStudy, name="neighbor-reward"):
    """Every variant of every case with every seed."""

    title = "Rewards with and without neighbour sampling (Figure 6)"
    caption = "Training return per agent: mean over seeds, band from the worst to the best seed"
    work = staticmethod(train_curve)

    def cells(self, quick: bool, options: Options) -> list[StudyCell]:
        return [
            _cell(case, variant, seed)
            for case in cases(quick)
            for variant in case.variants
            for seed in range(case.seeds)
        ]

    def record(self, cell: StudyCell, result: dict[str, Any]) -> dict[str, Any]:
        return {name: cell.settings[name] for name in ("world", "agents", "variant", "seed")} | result

    def computed(self, done: Cells, quick: bool, options: Options) -> dict[str, Any]:
        """The learning curves, and the samplers compared."""
        curves = super().computed(done, quick, options)["rows"]
        return {"rows": [row for case in cases(quick) for row in compare(case, curves)], "curves": curves}

    def view(self, data: Data) -> Data:
        return data

    def tables(self, view: Data) -> list[Table]:
        title = "Training return per agent, last 1,000 episodes, mean over seeds"
        return [Table.of(title, list(map(table_row, view["rows"])))] if view["rows"] else []

    def findings(self, view: Data) -> Iterable[str]:
        claim = "Papers: no significant loss of mean episode reward at 3, 6 and 12 agents."
        return [claim, *map(sentence, view["rows"])]

    def panels(self, view: Data) -> list[Panel]:
        groups: dict[tuple[str, int], dict[str, list[Any]]] = {}
        for run in view["curves"]:
            variants = groups.setdefault((run["world"], run["agents"]), {})
            variants.setdefault(run["variant"], []).append(run["curve"])
        series = {where: [*starmap(smoothed, variants.items())] for where, variants in groups.items()}
        return [
            Panel(f"{world}, {counted(agents, 'agent')}", "return per agent", curves, "episode")
            for (world, agents), curves in series.items()
        ]


def _cell(case: Case, variant: str, seed: int) -> StudyCell:
    about = {"world": case.world, "agents": case.agents, "variant": variant, "seed": seed}
    train = {"agents": case.agents, "episodes": case.episodes, "seed": seed, **WORLDS[case.world], **VARIANTS[variant]}
    name = f"{case.world} {case.agents} agents {variant.replace(',', '')} seed {seed}"
    return StudyCell(name, {**about, "train": train}, EPISODE_SECONDS * case.agents * case.episodes)


def smoothed(variant: str, curves: Sequence[Sequence[Mapping[str, float]]]) -> Series:
    """Smoothed curves of all seeds, up to the end of the shortest."""
    shortest = min(map(len, curves))
    returns = np.array([smooth(np.array([point["return_mean"] for point in curve[:shortest]])) for curve in curves])
    return spread(variant, [point["episode"] for point in curves[0][:shortest]], returns)


def last_return(curve: Sequence[Mapping[str, float]]) -> float:
    """The mean return of the last 1,000 episodes, or of the last half of a shorter run."""
    end = curve[-1]["episode"]
    start = max(end - 1_000, end / 2)
    return mean([point["return_mean"] for point in curve if point["episode"] > start])


def compare(case: Case, runs: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """One record per variant: its return, and its difference from uniform sampling with a 95 % interval over seeds.

    Only seeds that both were trained with count.
    """
    returns: dict[str, dict[int, float]] = {variant: {} for variant in ("uniform", *case.variants)}
    for run in runs:
        if (run["world"], run["agents"]) == (case.world, case.agents):
            returns[run["variant"]][run["seed"]] = last_return(run["curve"])
    for variant in case.variants:
        seeds = [seed for seed in returns[variant] if seed in returns["uniform"]]
        if not seeds:
            continue
        values = [returns[variant][seed] for seed in seeds]
        differences = [returns[variant][seed] - returns["uniform"][seed] for seed in seeds]
        yield {
            "world": case.world,
            "agents": case.agents,
            "variant": variant,
            "seeds": len(seeds),
            "episodes": case.episodes,
            "return_mean": mean(values),
            "returns": values,
            "difference": mean(differences),
            "difference_ci95": confidence95(np.array(differences)),
        }


def sentence(row: Mapping[str, Any]) -> str:
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


def table_row(row: Mapping[str, Any]) -> dict[Column, Value]:
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
