"""Teams with quantized actors, beyond the paper: MADDPG, MASAC and MAD4PG with 3 and 12 agents.

Compared with the loop that plays and learns in turn (`--actors 0`): return over env steps and over seconds. A second
part measures at which width of the networks int8 actors begin to pay.
"""

from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from shoal.results import Column, Figure, Panel, Series, Table, Value
from shoal_papers.cells import Cells, Options, StudyCell
from shoal_papers.quarl.actor_runs import (
    SCORE,
    SEEDS,
    Groups,
    Limit,
    Runs,
    RunStudy,
    curves_panel,
    faster,
    late_return,
    limited_run,
    loss_verdict,
    pairs,
    speed_verdict,
)
from shoal_papers.seeds import NOT_RUN, with_interval
from shoal_papers.study import Data

WORLDS: dict[int, dict[str, Any]] = {  # within minutes twelve agents in cooperative navigation only learn to collide
    3: {"env": "cooperative-navigation", "rules": "openai", "agents": 3, "v_min": -200.0, "v_max": 0.0},
    12: {"env": "predator-prey", "agents": 12, "v_min": -50.0, "v_max": 150.0},
}
"""Worlds by number of agents, with the range of discounted returns there."""
STEPS = {3: 75_000, 12: 20_000}  # env steps of a run
SECONDS = {3: 15.0, 12: 22.0}  # about how long a run takes
ALGORITHMS: dict[str, dict[str, Any]] = {
    "maddpg": {},
    "masac": {},
    "d4pg": {"hidden": (64, 64), "learning_rate": 1e-3, "discount": 0.95, "batch": 1024, "update_every": 100},
}
"""The multi-agent papers' settings, for D4PG as well: 2 × 64 units, mini-batches of 1024 every 100 samples."""
COMMON = {"warmup": 1_024, "log_every": 20, "capacity": 100_000}
"""The warm-up is a mini-batch: a run in turn makes up for the updates of its warm-up, one with actors does not."""
TURNS, FULL, INT8 = "in turn", "float32 actors", "int8 actors"
PULLED = 1_000  # env steps between two pulls, as in the paper; an actor plays many copies at once
KINDS: dict[str, dict[str, Any]] = {
    TURNS: {"copies": 25},
    FULL: {"actors": 1, "copies": 25, "pull_every": PULLED // 25},
    INT8: {"actors": 1, "copies": 25, "pull_every": PULLED // 25, "actor_precision": "int8"},
}
"""Engines are the fastest ones here."""
WIDTHS = (64, 128, 256, 512, 1024)
QUICK_WIDTHS = (64, 512)
COPIES = (1, 25)
PLAYED_SECONDS = 3.0
STARTING_SECONDS = 3.0
SLOW_LEARNER = {"batch": 64, "samples_per_insert": 0.02, "warmup": 500, "capacity": 20_000}
"""An update every 3,200 samples: the actor binds, and pulls new versions as in any run."""
EVALUATED = 200
WIDTH_ABOUT = ("agents", "copies", "width", "kind")


def team_settings(algorithm: str, agents: int) -> dict[str, Any]:
    """The world and the algorithm's settings; only D4PG takes a range of returns."""
    world = {name: value for name, value in WORLDS[agents].items() if algorithm == "d4pg" or name[:2] != "v_"}
    return {**world, **ALGORITHMS[algorithm], "algorithm": algorithm}


def width_cells(quick: bool) -> list[StudyCell]:
    """Actors that bind, over widths of two hidden layers, numbers of copies and agents."""
    cells = []
    chosen = ((3,), (1,), QUICK_WIDTHS) if quick else (WORLDS, COPIES, WIDTHS)
    for agents, copies, width, kind in product(*chosen, (FULL, INT8)):
        pace = {"copies": copies, "pull_every": PULLED // copies, **SLOW_LEARNER}
        layers = {"hidden": (width, width), "critic_hidden": (64, 64)}
        settings = {**team_settings("maddpg", agents), **KINDS[kind], **pace, **layers}
        about = {"agents": agents, "copies": copies, "width": width, "kind": kind}
        name = f"width {width} {agents} agents {copies} copies {kind}"
        cell = {**about, "train": settings, "seconds": PLAYED_SECONDS}
        cells.append(StudyCell(name, cell, PLAYED_SECONDS + STARTING_SECONDS))
    return cells


def throughput(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A cell: env steps per second of a run of some seconds, from the first transition on."""
    limit = Limit(seconds=settings["seconds"])
    limited_run(settings["train"], limit)
    training = limit.training
    assert training is not None
    return {
        "steps_per_second": training.samples / limit.passed,
        "bottleneck": limit.metrics["actors/bottleneck"],
        "act_us": limit.metrics["actors/step_us"],
        "environment_us": limit.metrics["actors/environment_us"],
    }


Speeds = Mapping[tuple[Any, ...], Mapping[str, Any]]  # what `throughput` returns by agents, copies, width and kind


class ActorqTeams(RunStudy, name="actorq-teams"):
    """Returns per env step and per second against the loop that plays and learns in turn; throughput over widths."""

    title = "Teams with quantized actors"
    about = ("algorithm", "agents", "kind")

    def cells(self, quick: bool, options: Options) -> list[StudyCell]:
        """One run per algorithm, number of agents, kind and seed; seed 0 of everything first."""
        shorter, *chosen = (4, range(1), (3,), ("maddpg",)) if quick else (1, range(SEEDS), WORLDS, ALGORITHMS)
        return [
            _cell(algorithm, agents, kind, seed, STEPS[agents] // shorter)
            for seed, agents, algorithm, kind in product(*chosen, KINDS)
        ]

    def length(self, quick: bool, options: Options) -> float:
        return super().length(quick, options) + sum(cell.seconds for cell in width_cells(quick))

    def computed(self, done: Cells, quick: bool, options: Options) -> dict[str, Any]:
        wide = {cell.name: cell.settings for cell in width_cells(quick)}
        widths = done.run(width_cells(quick), throughput, workers=1, optional=True)
        speeds = [{about: wide[name][about] for about in WIDTH_ABOUT} | widths[name] for name in widths]
        return {**super().computed(done, quick, options), "speeds": speeds}

    def view(self, data: Data) -> tuple[Groups, Speeds]:
        return super().view(data), {tuple(row[name] for name in WIDTH_ABOUT): row for row in data["speeds"]}

    def tables(self, view: tuple[Groups, Speeds]) -> list[Table]:
        groups, speeds = view
        worlds = ", ".join(f"{agents} agents: {world['env']}" for agents, world in WORLDS.items())
        return [
            Table.of(f"Teams of 2 × 64 networks ({worlds}), means over seeds", list(team_rows(groups))),
            Table.of("Actors that bind, over the width of two hidden layers", list(width_rows(speeds))),
        ]

    def findings(self, view: tuple[Groups, Speeds]) -> list[str]:
        groups, speeds = view
        return [
            "The paper has no teams. Claims: actors change neither the return per env step nor, in int8, the return of "
            "float32 actors; they give the return sooner.",
            SCORE,
            *claims(groups),
            *width_findings(speeds),
        ]

    def figures(self, view: tuple[Groups, Speeds]) -> list[Figure]:
        groups, speeds = view
        drawn = "Training return per agent: mean over seeds, band from the worst to the best"
        figures = [
            Figure("actorq-teams", f"{drawn}, over seconds", panels(groups, "seconds")),
            Figure("actorq-teams-steps", f"{drawn}, over env steps", panels(groups, "env_steps")),
            Figure("actorq-teams-widths", "Env steps per second of actors that bind", width_panels(speeds)),
        ]
        return [figure for figure in figures if figure.panels]


def _cell(algorithm: str, agents: int, kind: str, seed: int, steps: int) -> StudyCell:
    train = team_settings(algorithm, agents) | COMMON | KINDS[kind] | {"seed": seed}
    about = {"algorithm": algorithm, "agents": agents, "kind": kind}
    settings = {**about, "train": train, "steps": steps, "evaluate": EVALUATED}
    seconds = SECONDS[agents] * steps / STEPS[agents]
    return StudyCell(f"{algorithm} {agents} agents {kind} seed {seed}", settings, seconds)


def team_rows(groups: Groups) -> Iterable[dict[Column, Value]]:
    """One row per algorithm, number of agents and kind."""
    for algorithm, agents in product(ALGORITHMS, WORLDS):
        turns = groups[algorithm, agents, TURNS]
        for kind in KINDS:
            runs = groups[algorithm, agents, kind]
            yield {
                Column("algorithm"): algorithm.upper(),
                Column("agents"): agents,
                Column("how"): kind,
                Column("seeds"): len(runs),
                Column("return at the end"): with_interval([late_return(run) for run in runs]),
                Column("final return, float32"): with_interval([run["trained"] for run in runs]),
                Column("to 95 % of in turn's best", "s", ".1f"): reached(turns, runs),
                Column("env steps/s", format=",.0f"): runs.steps_per_second,
                Column("updates/s", format=",.1f"): runs.updates_per_second,
                Column("learner waits", "%", ".0f"): runs.waiting("learner"),
                Column("actors wait", "%", ".0f"): runs.waiting("actor"),
                Column("bottleneck"): runs.bottleneck or None,
                Column("lag", "updates", ".1f"): runs.metric("lag_mean"),
            }


def reached(base: Runs, runs: Runs) -> float | str | None:
    """Seconds until the mean curve reaches 95 % of the best score of `base`."""
    if not base or not runs:
        return None
    if base.best <= base.random:
        return "not learnt"
    seconds = runs.time_to(base.threshold)
    return "not reached" if seconds is None else seconds


def claims(groups: Groups) -> Iterable[str]:
    """Per algorithm and number of agents: the return that is kept, and the time that is won."""
    for algorithm, agents in product(ALGORITHMS, WORLDS):
        where = f"{algorithm.upper()}, {agents} agents"
        for kind, base in ((FULL, TURNS), (INT8, TURNS), (INT8, FULL)):
            own, other = (groups[algorithm, agents, one] for one in (kind, base))
            if both := pairs(own, other):
                span = other.best - other.random
                gaps = [late_return(one) - late_return(two) for one, two in both]
                yield (
                    f"{where}: {kind} keep the return of {base} over env steps ({with_interval(gaps)}): "
                    f"{loss_verdict(gaps, abs(span))}; they play the same env steps sooner: "
                    f"{speed_verdict(faster(both))}."
                )


def width_rows(speeds: Speeds) -> Iterable[dict[Column, Value]]:
    """One row per number of agents, copies and width."""
    for agents, copies, width in product(WORLDS, COPIES, WIDTHS):
        full, int8 = (speeds.get((agents, copies, width, kind)) for kind in (FULL, INT8))
        yield {
            Column("agents"): agents,
            Column("copies"): copies,
            Column("width"): width,
            Column("float32", "env steps/s", ",.0f"): full["steps_per_second"] if full else NOT_RUN,
            Column("int8", "env steps/s", ",.0f"): int8["steps_per_second"] if int8 else NOT_RUN,
            Column("int8 over float32", format=".2f"): ratio(full, int8),
            Column("float32 acting", "µs", ",.0f"): full["act_us"] if full else None,
            Column("int8 acting", "µs", ",.0f"): int8["act_us"] if int8 else None,
            Column("environment", "µs", ",.0f"): full["environment_us"] if full else None,
            Column("bottleneck"): " / ".join(speed["bottleneck"] for speed in (full, int8) if speed) or None,
        }


def ratio(full: Mapping[str, Any] | None, int8: Mapping[str, Any] | None) -> float | None:
    """How much faster int8 actors are."""
    return int8["steps_per_second"] / full["steps_per_second"] if full and int8 else None


PAYS = 1.1  # int8 counts as paying from this ratio on: single runs of seconds differ by several per cent


def width_findings(speeds: Speeds) -> Iterable[str]:
    """The smallest width from which on int8 actors are faster."""
    for agents, copies in product(WORLDS, COPIES):
        pairs = {width: [speeds.get((agents, copies, width, kind)) for kind in (FULL, INT8)] for width in WIDTHS}
        ratios = {width: faster for width, pair in pairs.items() if (faster := ratio(*pair)) is not None}
        if not ratios:
            continue
        pays = [width for width in ratios if all(ratios[w] >= PAYS for w in ratios if w >= width)]
        where = f"{agents} agents, {'1 copy' if copies == 1 else f'{copies} copies'} per actor"
        by_width = ", ".join(f"{faster:.2f} at {width}" for width, faster in ratios.items())
        start = f"pays from 2 × {pays[0]} on" if pays else "pays at no width"
        yield f"{where}: int8 {start} (over the fastest float32 engine: {by_width})."


def panels(groups: Groups, axis: str) -> list[Panel]:
    """One panel per algorithm and number of agents that was run."""
    return [
        curves_panel(
            f"{algorithm.upper()}, {agents} agents", {kind: groups[algorithm, agents, kind] for kind in KINDS}, axis
        )
        for algorithm, agents in product(ALGORITHMS, WORLDS)
        if any((algorithm, agents, kind) in groups for kind in KINDS)
    ]


def width_panels(speeds: Speeds) -> list[Panel]:
    """One panel per number of agents and copies."""
    panels = []
    for agents, copies in dict.fromkeys((agents, copies) for agents, copies, _, _ in speeds):
        widths = [width for width in WIDTHS if any((agents, copies, width, kind) in speeds for kind in KINDS)]
        series = []
        for kind in (FULL, INT8):
            measured = [speeds.get((agents, copies, width, kind)) for width in widths]
            series.append(Series(kind, [speed["steps_per_second"] if speed else None for speed in measured]))
        title = f"{agents} agents, {'1 copy' if copies == 1 else f'{copies} copies'}"
        panels.append(Panel(title, "env steps/s", series, "units per hidden layer", list(map(str, widths)), log=True))
    return panels
