"""The simulation of `shoal simulate actorq`, checked against real runs and then asked about machines we do not have.

Every prediction is compared with a real run on this machine. Its service times are measured right before and after that
run, with one actor and a ratio of samples per insert that is not among those predicted. The paper's tasks and larger
systems follow in `actorq_paper`.
"""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from shoal.actorq.simulation import ServiceTimes, Settings, simulate
from shoal.actorq.system import SLOTS
from shoal.errors import counted
from shoal.results import Column, Panel, Result, Series, Table, Value
from shoal.system.processors import usable_processors
from shoal.waiting import Advance
from shoal_papers.cells import Cells, StudyCell, total_seconds
from shoal_papers.quarl import actorq_paper
from shoal_papers.study import Options, panel_result

WITHIN = 0.15
"""Goal: predictions are at most this far from what is measured."""
TASKS: dict[str, dict[str, Any]] = {
    "walker": {"env": "dm:walker/stand", "algorithm": "d4pg", "hidden": (256, 256)},
    "gym-cartpole": {"env": "gym:CartPole-v1", "algorithm": "dqn", "hidden": (256, 256)},
}
"""Tasks that two cores can train."""
ENGINE, PRECISIONS = "onnx", ("float32", "int8")
RATIOS, MEASURED_RATIO = (0.5, 16.0), 2.0
"""Samples per insert: of the predicted runs, in which the actors or the learner limit; and for the service times."""
SAME = ("actor_engine", "actor_precision", "copies")
"""Settings of a run with which its service times are measured."""
RUN = {"pull_every": 200, "warmup": 512, "threads": 1, "episodes": 10**7, "capacity": 20_000, "copies": 1}
"""Settings of all real runs."""
DISTURBED = 0.1
"""Share of the processors that other programs may use before a real run says little."""
SIMULATIONS = 20.0
"""Approximate seconds of all simulations."""


def cells(quick: bool) -> list[StudyCell]:
    """The real runs, then the policies of the paper's tasks."""
    seconds = 2.5 if quick else actorq_paper.SECONDS
    tasks = ("walker",) if quick else tuple(TASKS)
    found = []
    for task, precision in ((task, precision) for task in tasks for precision in PRECISIONS):
        for ratio in RATIOS:
            for actors in (1, 2) if quick else (1, 2, 4):
                if quick and (ratio, actors) == (RATIOS[1], 2):
                    continue  # as with one actor: the learner limits
                own = {"actor_engine": ENGINE, "actor_precision": precision, "actors": actors}
                config = {**TASKS[task], **RUN, **own, "samples_per_insert": ratio}
                name = f"{task} {precision} {ratio:g} per insert {counted(actors, 'actor')}"
                settings = {"task": task, "config": config, "ratio": MEASURED_RATIO, "seconds": seconds}
                found.append(StudyCell(name, settings, 9.0 + 2 * seconds))
    return found + actorq_paper.cells(quick, seconds)


def length(quick: bool, options: Options) -> float:
    """Approximate seconds."""
    return total_seconds(cells(quick)) + SIMULATIONS


def work(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Service times, or a real run with those before and after it."""
    return _real_run(settings) if "task" in settings else actorq_paper.measure_service(settings)


def _real_run(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A run, and service times of its task: a shared machine is now faster and now slower, so these lie around it."""
    from shoal.actorq.service_times import observe
    from shoal.training.config import TrainConfig

    config = TrainConfig(**settings["config"]).checked()
    model = model_of(settings["config"], ServiceTimes(1, 1))
    limiter = model.limiter()
    ahead = limiter.min_size + (limiter.high - limiter.low) / limiter.ratio  # when the limiter's band is used up
    first = round(ahead / config.actors) + (SLOTS + 1) * model.chunk_steps
    before = _service(settings)
    found = observe(config, settings["seconds"], first, updates=2)
    after = _service(settings)
    return {
        "service": {name: statistics.fmean((before[name], after[name])) for name in before},
        "env_steps_per_second": found.samples / found.seconds,
        "lag_mean": statistics.fmean(found.lags),
        "bottleneck": found.bottleneck,
        "cores": usable_processors(),
        "others": found.others,
    }


def _service(settings: Mapping[str, Any]) -> dict[str, float]:
    """Service times of a run's task with one actor that nobody limits, in half the time."""
    config = {**TASKS[settings["task"]], **{name: settings["config"][name] for name in SAME}, "actors": 1}
    return actorq_paper.measure_service(
        {"config": config, "ratio": settings["ratio"], "seconds": settings["seconds"] / 2}
    )


def model_of(config: Mapping[str, Any], times: ServiceTimes, cores: int | None = None) -> Settings:
    """The simulation of a real run."""
    same = {name: config[name] for name in ("actors", "samples_per_insert", "pull_every", "warmup", "copies")}
    return Settings(times, cores=cores, **same)


class CheckRow(TypedDict):
    """A prediction and what was measured."""

    task: str
    precision: str
    samples_per_insert: float
    actors: int
    predicted: float
    measured: float
    error: float
    predicted_lag: float
    measured_lag: float
    predicted_bottleneck: str
    measured_bottleneck: str
    others: float
    """Share of the processors that other programs used."""


class Found(actorq_paper.Simulated):
    """The data of the study."""

    checks: list[CheckRow]
    failed: list[str]
    interrupted: NotRequired[bool]


def measured(quick: bool, advance: Advance, options: Options) -> Found:
    """Run all cells, and simulate from their service times."""
    done = Cells("actorq-model", quick, options, advance)
    todo = cells(quick)
    results = done.run(todo, work, workers=1)  # a real run takes all cores
    checks = [row for cell in todo if "task" in cell.settings and (row := check(cell, results)) is not None]
    beyond = actorq_paper.simulated(results)
    advance(SIMULATIONS, "simulations")
    return {"checks": checks, **beyond, "failed": done.failed, "interrupted": done.interrupted}


def check(cell: StudyCell, results: Mapping[str, Mapping[str, Any]]) -> CheckRow | None:
    """A real run and its prediction; None where it is missing."""
    config, task = cell.settings["config"], cell.settings["task"]
    precision = config["actor_precision"]
    ran = results.get(cell.name)
    if ran is None:
        return None
    model = simulate(model_of(config, ServiceTimes(**ran["service"]), ran["cores"]))
    rate = ran["env_steps_per_second"]
    return {
        "task": task,
        "precision": precision,
        "samples_per_insert": config["samples_per_insert"],
        "actors": config["actors"],
        "predicted": model.env_steps_per_second,
        "measured": rate,
        "error": model.env_steps_per_second / rate - 1,
        "predicted_lag": model.lag_mean,
        "measured_lag": ran["lag_mean"],
        "predicted_bottleneck": model.bottleneck,
        "measured_bottleneck": ran["bottleneck"],
        "others": ran["others"],
    }


def study(found: Found) -> Result:
    """Predictions beside real runs; the paper's tasks, more actors, and a thousand across regions."""
    checks = found["checks"]
    tables = [Table.of("Predicted and measured on this machine", list(map(_shown, checks)))] if checks else []
    tables += actorq_paper.tables(found)
    said = [*findings(checks), *actorq_paper.findings(found), *found["failed"]]
    panels = [*_panels(checks), *actorq_paper.panels(found)]
    title = "A simulation of quantized actors, checked against real runs"
    return panel_result("actorq-model", title, tables, said, panels, found)


def _shown(row: CheckRow) -> dict[Column, Value]:
    """A row for people."""
    return {
        Column("task"): row["task"],
        Column("precision"): row["precision"],
        Column("samples per insert"): row["samples_per_insert"],
        Column("actors"): row["actors"],
        Column("predicted", "env steps/s"): row["predicted"],
        Column("measured", "env steps/s"): row["measured"],
        Column("error", "%", "+.1f"): 100 * row["error"],
        Column("lag predicted", "updates"): row["predicted_lag"],
        Column("lag measured", "updates"): row["measured_lag"],
        Column("bottleneck predicted"): row["predicted_bottleneck"],
        Column("bottleneck measured"): row["measured_bottleneck"],
    }


def findings(rows: list[CheckRow]) -> list[str]:
    """How many predictions are within the goal."""
    if not rows:
        return []
    near = sum(abs(row["error"]) <= WITHIN for row in rows)
    worst = max(rows, key=lambda row: abs(row["error"]))
    same = sum(row["predicted_bottleneck"] == row["measured_bottleneck"] for row in rows)
    which = (
        f"{worst['task']}, {worst['precision']}, {worst['samples_per_insert']:g} samples per insert, "
        f"{counted(worst['actors'], 'actor')}"
    )
    said = [
        f"{near} of {len(rows)} predictions of env steps/s are within {WITHIN:.0%} of real runs (goal: all of at least "
        f"six); the largest error is {worst['error']:+.1%} ({which}).",
        f"The bottleneck is the predicted one in {same} of {len(rows)} runs.",
    ]
    if disturbed := [row["others"] for row in rows if row["others"] > DISTURBED]:
        said.append(
            f"Other programs used up to {max(disturbed):.0%} of the processors in {len(disturbed)} of the runs, whose "
            "figures therefore mean little."
        )
    return said


def _panels(rows: list[CheckRow]) -> list[Panel]:
    """Predicted and measured rates side by side, one panel per task."""
    found = []
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        bits = {"float32": 32, "int8": 8}
        ticks = [f"{bits[row['precision']]}, {row['samples_per_insert']:g}, {row['actors']}" for row in own]
        series = [
            Series("predicted", [row["predicted"] for row in own], "bars"),
            Series("measured", [row["measured"] for row in own], "bars"),
        ]
        found.append(Panel(task, "env steps/s", series, "bits, samples per insert, actors", ticks))
    return found
