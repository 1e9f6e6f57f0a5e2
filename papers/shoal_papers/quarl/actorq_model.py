"""The simulation of `shoal simulate actorq`, checked against real runs and then asked about machines we do not have.

Every prediction is compared with a real run on this machine. Its service times are measured right before and after that
run, with one actor and a ratio of samples per insert that is not among those predicted. The paper's tasks and larger
systems follow in `actorq_paper`.
"""

import statistics
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from shoal.actorq.simulation import ServiceTimes, Settings, simulate
from shoal.actorq.system import SLOTS
from shoal.errors import counted
from shoal.results import Column, Panel, Series, Table, Value
from shoal.system.processors import usable_processors
from shoal_papers.cells import Cells, Options, StudyCell
from shoal_papers.quarl import actorq_paper
from shoal_papers.study import CellStudy, Data

WITHIN = 0.15  # goal: predictions are at most this far from what is measured
TASKS: dict[str, dict[str, Any]] = {
    "walker": {"env": "dm:walker/stand", "algorithm": "d4pg", "hidden": (256, 256)},
    "gym-cartpole": {"env": "gym:CartPole-v1", "algorithm": "dqn", "hidden": (256, 256)},
}
"""Tasks that two cores can train."""
ENGINE, PRECISIONS = "onnx", ("float32", "int8")
RATIOS, MEASURED_RATIO = (0.5, 16.0), 2.0
"""Samples per insert: of the predicted runs, in which the actors or the learner limit; and for the service times."""
SAME = ("actor_engine", "actor_precision", "copies")  # settings of a run with which its service times are measured
RUN = {"pull_every": 200, "warmup": 512, "threads": 1, "episodes": 10**7, "capacity": 20_000, "copies": 1}
"""Settings of all real runs."""
DISTURBED = 0.1  # share of the processors that other programs may use before a real run says little
SIMULATIONS = 20.0  # approximate seconds of all simulations

Check = Mapping[str, Any]  # a prediction and what was measured: see `check`


def run_or_measure(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A cell: service times, or a real run with those before and after it."""
    return _real_run(settings) if "task" in settings else actorq_paper.measure_service(settings)


class ActorqModel(CellStudy, name="actorq-model"):
    """Predictions beside real runs; the paper's tasks, more actors, and a thousand across regions."""

    title = "A simulation of quantized actors, checked against real runs"
    workers = 1  # a real run takes all cores
    work = staticmethod(run_or_measure)

    def cells(self, quick: bool, options: Options) -> list[StudyCell]:
        """The real runs, then the policies of the paper's tasks."""
        seconds = 2.5 if quick else actorq_paper.SECONDS
        tasks, numbers = (("walker",), (1, 2)) if quick else (TASKS, (1, 2, 4))
        runs = [
            _run_cell(task, precision, ratio, actors, seconds)
            for task, precision, ratio, actors in product(tasks, PRECISIONS, RATIOS, numbers)
            if not quick or (ratio, actors) != (RATIOS[1], 2)  # as with one actor: the learner limits
        ]
        return runs + actorq_paper.cells(quick, seconds)

    def length(self, quick: bool, options: Options) -> float:
        return super().length(quick, options) + SIMULATIONS

    def computed(self, done: Cells, quick: bool, options: Options) -> dict[str, Any]:
        """Run all cells, and simulate from their service times."""
        cells = self.cells(quick, options)
        results = done.run(cells, self.work, self.workers)
        checks = [check(cell, results[cell.name]) for cell in cells if "task" in cell.settings and cell.name in results]
        data = {"checks": checks, **actorq_paper.simulated(results)}
        done.advance(SIMULATIONS, "simulations")
        return data

    def view(self, data: Data) -> Data:
        return data

    def tables(self, view: Data) -> list[Table]:
        shown = list(map(_shown, view["checks"]))
        checks = [Table.of("Predicted and measured on this machine", shown)] if shown else []
        return checks + actorq_paper.tables(view)

    def findings(self, view: Data) -> list[str]:
        return [*findings(view["checks"]), *actorq_paper.findings(view)]

    def panels(self, view: Data) -> list[Panel]:
        return [*_panels(view["checks"]), *actorq_paper.panels(view)]


def _run_cell(task: str, precision: str, ratio: float, actors: int, seconds: float) -> StudyCell:
    actor = {"actor_engine": ENGINE, "actor_precision": precision, "actors": actors}
    config = {**TASKS[task], **RUN, **actor, "samples_per_insert": ratio}
    name = f"{task} {precision} {ratio:g} per insert {counted(actors, 'actor')}"
    settings = {"task": task, "config": config, "ratio": MEASURED_RATIO, "seconds": seconds}
    return StudyCell(name, settings, 9.0 + 2 * seconds)


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
    observed = observe(config, settings["seconds"], first, updates=2)
    after = _service(settings)
    return {
        "service": {name: statistics.fmean((before[name], after[name])) for name in before},
        "env_steps_per_second": observed.samples / observed.seconds,
        "lag_mean": statistics.fmean(observed.lags),
        "bottleneck": observed.bottleneck,
        "cores": usable_processors(),
        "others": observed.others,
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


def check(cell: StudyCell, ran: Mapping[str, Any]) -> Check:
    """A real run and its prediction."""
    config = cell.settings["config"]
    model = simulate(model_of(config, ServiceTimes(**ran["service"]), ran["cores"]))
    rate = ran["env_steps_per_second"]
    return {
        "task": cell.settings["task"],
        "precision": config["actor_precision"],
        "samples_per_insert": config["samples_per_insert"],
        "actors": config["actors"],
        "predicted": model.env_steps_per_second,
        "measured": rate,
        "error": model.env_steps_per_second / rate - 1,
        "predicted_lag": model.lag_mean,
        "measured_lag": ran["lag_mean"],
        "predicted_bottleneck": model.bottleneck,
        "measured_bottleneck": ran["bottleneck"],
        "others": ran["others"],  # share of the processors that other programs used
    }


def _shown(row: Check) -> dict[Column, Value]:
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


def findings(rows: list[Check]) -> list[str]:
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


def _panels(rows: list[Check]) -> list[Panel]:
    """Predicted and measured rates side by side, one panel per task."""
    panels = []
    for task in dict.fromkeys(row["task"] for row in rows):
        some = [row for row in rows if row["task"] == task]
        bits = {"float32": 32, "int8": 8}
        ticks = [f"{bits[row['precision']]}, {row['samples_per_insert']:g}, {row['actors']}" for row in some]
        series = [
            Series("predicted", [row["predicted"] for row in some], "bars"),
            Series("measured", [row["measured"] for row in some], "bars"),
        ]
        panels.append(Panel(task, "env steps/s", series, "bits, samples per insert, actors", ticks))
    return panels
