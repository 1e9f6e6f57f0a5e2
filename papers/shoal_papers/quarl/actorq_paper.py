"""What the simulation of quantized actors says about the paper's machine and beyond it, for `actorq-model`.

With the policies of the paper's 11 tasks (three layers of 2048 units), whose service times are measured on this
machine, and its GPU learner, for which 3 ms per update are assumed: what four actors give, where more of them stop
helping, and what a thousand of them across regions need in bandwidth.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from shoal.actorq.simulation import ServiceTimes, Settings, simulate
from shoal.actorq.sweep import enough, sweep
from shoal.errors import counted
from shoal.results import Column, Panel, Series, Table, Value
from shoal_papers.cells import StudyCell

LEARNER_MS = 3.0  # an update of the paper's learner on its GPU: assumed, the paper does not say
ACTORS, RATIO = 4, 16.0  # the paper's actors and samples per insert
LAYERS = {"hidden": (2048, 2048, 2048)}
CRITIC = {"critic_hidden": (512, 512, 256), "layer_norm": True}
KINDS = (("torch", "float32"), ("onnx", "float32"), ("auto", "int8"))
"""Actors: PyTorch in float32 as in the paper, and engines of ours in both precisions."""
MANY = (1, 2, 4, 8, 16, 32, 64, 128)
FLEET, FLEET_LATENCY_MS, FLEET_LINK = 1_000, 50.0, 1_000.0
"""Actors across regions, their latency to the learner one way, and a link in Mbit/s to try."""


@dataclass(frozen=True)
class PaperTask:
    """A row of the paper's Tables 3 and 4."""

    env: str
    algorithm: str
    steps: int
    """Learner steps, by the original code."""
    pull_every: int
    """Actor steps between two pulls."""
    reward: float
    seconds: tuple[float, float, float]
    """To 95 % of the reward with actors in float32, float16 and int8."""

    @property
    def float16(self) -> float:
        """Speed-up of float16 over float32."""
        return self.seconds[0] / self.seconds[1]

    @property
    def int8(self) -> float:
        """Speed-up of int8 over float32."""
        return self.seconds[0] / self.seconds[2]


PAPER = {
    "Cartpole Balance": PaperTask("dm:cartpole/balance", "d4pg", 40_000, 1000, 941.22, (870.91, 284.65, 279.00)),
    "Walker Stand": PaperTask("dm:walker/stand", "d4pg", 40_000, 1000, 947.74, (871.32, 625.00, 534.37)),
    "Hopper Stand": PaperTask("dm:hopper/stand", "d4pg", 100_000, 1000, 836.41, (2660.41, 2406.14, 1699.17)),
    "Reacher Hard": PaperTask("dm:reacher/hard", "d4pg", 70_000, 1000, 948.12, (1597.00, 1122.24, 875.34)),
    "Cheetah Run": PaperTask("dm:cheetah/run", "d4pg", 200_000, 1000, 732.31, (2517.30, 3012.00, 891.84)),
    "Finger Spin": PaperTask("dm:finger/spin", "d4pg", 200_000, 1000, 810.32, (3256.56, 1527.76, 1065.52)),
    "Humanoid Stand": PaperTask("dm:humanoid/stand", "d4pg", 500_000, 100, 884.89, (13964.92, 14371.84, 9302.82)),
    "Humanoid Walk": PaperTask("dm:humanoid/walk", "d4pg", 700_000, 100, 649.91, (17990.66, 19106.88, 6223.35)),
    "Cartpole (Gym)": PaperTask("gym:CartPole-v1", "dqn", 60_000, 1000, 198.22, (963.67, 535.09, 260.10)),
    "MountainCar (Gym)": PaperTask("gym:MountainCar-v0", "dqn", 200_000, 1000, -120.62, (2861.80, 2159.26, 1284.32)),
    "Acrobot (Gym)": PaperTask("gym:Acrobot-v1", "dqn", 100_000, 1000, -107.45, (912.24, 1148.90, 168.44)),
}
SECONDS = 6.0  # of a measurement of service times
STARTING = 10.0  # seconds before it
LARGEST = "Humanoid Stand"  # the task for more actors than the paper's


def cells(quick: bool, seconds: float = SECONDS, tasks: Iterable[str] = ()) -> list[StudyCell]:
    """Service times of every kind of actor in these tasks, by default in all; the quick form has one task."""
    cells = []
    for name in tuple(tasks) or ((LARGEST,) if quick else PAPER):
        task = PAPER[name]
        critic = CRITIC if task.algorithm == "d4pg" else {}
        learner = {"env": task.env, "algorithm": task.algorithm, **LAYERS, **critic}
        for engine, precision in KINDS:
            if not quick or engine != "onnx":
                config = {**learner, "actor_engine": engine, "actor_precision": precision, "copies": 1, "actors": 1}
                settings = {"config": config, "ratio": 0.5, "seconds": seconds}
                cells.append(StudyCell(paper_cell(name, engine, precision), settings, STARTING + seconds))
    return cells


def measure_service(settings: Mapping[str, Any]) -> dict[str, float]:
    """The work of such a cell."""
    from shoal.actorq.service_times import measure
    from shoal.training.config import TrainConfig

    return asdict(measure(TrainConfig(**settings["config"]), settings["seconds"], settings["ratio"]))


def paper_cell(task: str, engine: str, precision: str) -> str:
    """The name of the cell with the service times of a task of the paper."""
    return f"paper {task} {engine} {precision}"


Record = Mapping[str, Any]
Simulated = Mapping[str, Any]
"""Everything that the simulation says: records of the paper's tasks, of more actors, and of actors across regions."""


def simulated(results: Mapping[str, Mapping[str, Any]]) -> Simulated:
    """What follows from the service times in these cells."""
    paper = [row for name in PAPER if (row := paper_row(name, results)) is not None]
    if (times := paper_times(LARGEST, results)) is None:
        return {"paper": paper, "actors": [], "fleet": []}
    both = {"float32": times["torch float32"], "int8": times["auto int8"]}  # the paper's actors and ours
    more = sweep(both, paper_settings(LARGEST, both["float32"]), MANY)
    return {"paper": paper, "actors": more, "fleet": fleet_rows(both)}


def paper_times(task: str, results: Mapping[str, Mapping[str, Any]]) -> dict[str, ServiceTimes] | None:
    """Service times of a task of the paper beside its learner, by kind of actor; None where one is missing."""
    times = {}
    for engine, precision in KINDS:
        if (result := results.get(paper_cell(task, engine, precision))) is not None:
            times[f"{engine} {precision}"] = replace(ServiceTimes(**result), learner_ms=LEARNER_MS)
    return times if {"torch float32", "auto int8"} <= set(times) else None


def paper_settings(task: str, times: ServiceTimes) -> Settings:
    """The paper's system: four actors beside a learner on a GPU, with a core for each process."""
    return Settings(times, actors=ACTORS, samples_per_insert=RATIO, pull_every=PAPER[task].pull_every)


def paper_row(task: str, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """What the paper's machine would give for a task; None where its service times are missing."""
    times = paper_times(task, results)
    if times is None:
        return None
    outcomes = {kind: simulate(paper_settings(task, of_kind)) for kind, of_kind in times.items()}
    rates = {kind: outcome.env_steps_per_second for kind, outcome in outcomes.items()}
    same = rates.get("onnx float32")
    return {
        "task": task,
        "step_ms": {kind: of_kind.step_ms for kind, of_kind in times.items()},
        "steps_per_second": rates,
        "speed_up": rates["auto int8"] / rates["torch float32"],  # as in the paper
        "same_engine": rates["auto int8"] / same if same else None,
        "paper": PAPER[task].int8,
        "bottleneck": outcomes["auto int8"].bottleneck,
    }


def fleet_rows(times: Mapping[str, ServiceTimes]) -> list[dict[str, Any]]:
    """A thousand actors across regions: what they ask of the learner's link, and what they do with a given one."""
    rows = []
    fleet: dict[str, Any] = {"actors": FLEET, "samples_per_insert": RATIO, "latency_ms": FLEET_LATENCY_MS}
    for bits, own in zip((32, 8), times.values(), strict=True):
        for every in (100, 1000):
            settings = Settings(own, **fleet, pull_every=every)
            free, tied = simulate(settings), simulate(replace(settings, network_mbit=FLEET_LINK))
            rows.append(
                {
                    "bits": bits,
                    "pull_every": every,
                    "down_mbit": 8e-6 * free.down_bytes_per_second,
                    "up_mbit": 8e-6 * free.up_bytes_per_second,
                    "steps_per_second": free.env_steps_per_second,
                    "lag_mean": free.lag_mean,
                    "tied_steps_per_second": tied.env_steps_per_second,
                }
            )
    return rows


ACTOR_COLUMNS = {
    "actors": Column("actors"),
    "precision": Column("precision"),
    "env_steps_per_second": Column("env", "steps/s"),
    "speed_up": Column("over float32", format=".2f"),
    "lag_mean": Column("lag", "updates"),
    "bottleneck": Column("bottleneck"),
}
FLEET_COLUMNS = {
    "bits": Column("bits"),
    "pull_every": Column("pull every", "steps"),
    "down_mbit": Column("versions", "Mbit/s"),
    "up_mbit": Column("experience", "Mbit/s"),
    "steps_per_second": Column("env", "steps/s"),
    "lag_mean": Column("lag", "updates"),
    "tied_steps_per_second": Column(f"env with {FLEET_LINK:,.0f} Mbit/s", "steps/s"),
}


def tables(view: Simulated) -> list[Table]:
    """Those for which there is anything."""
    actors, fleet = (
        [{column: row[name] for name, column in columns.items()} for row in view[part]]
        for part, columns in (("actors", ACTOR_COLUMNS), ("fleet", FLEET_COLUMNS))
    )
    tables = [
        Table.of("The paper's four actors and GPU learner, simulated", list(map(_paper_shown, view["paper"]))),
        Table.of(f"{LARGEST} beside the paper's learner: more actors, simulated", actors),
        Table.of(f"{FLEET:,} actors across regions, {FLEET_LATENCY_MS:g} ms away, simulated", fleet),
    ]
    return [table for table in tables if table.rows]


def findings(view: Simulated) -> Iterable[str]:
    """What it says, in sentences."""
    if paper := view["paper"]:
        ratio = statistics.geometric_mean(row["speed_up"] for row in paper)
        theirs = statistics.geometric_mean(row["paper"] for row in paper)
        bound = sum(row["bottleneck"] == "learner" for row in paper)
        yield (
            f"Four actors and a learner with {LEARNER_MS:g} ms per update: int8 gives {ratio:.2f} times the env "
            f"steps/s of float32 in PyTorch (geometric mean of {counted(len(paper), 'task')}); the paper's time to "
            f"95 % of the reward: {theirs:.2f}. With int8 the learner limits in {bound} of {len(paper)}."
        )
    for bits, precision in ((32, "float32"), (8, "int8")):
        if (most := enough(view["actors"], precision)) is not None:
            yield f"At {bits} bits more actors hardly help beyond {most[0]} ({most[1]:,.0f} env steps/s)."
    if fleet := view["fleet"]:
        parts = [
            f"{row['down_mbit']:,.0f} Mbit/s at {row['bits']} bits and pulls every {row['pull_every']}" for row in fleet
        ]
        yield f"{FLEET:,} actors across regions need a link of {', '.join(parts)} steps."


def panels(view: Simulated) -> Iterable[Panel]:
    """The same as pictures."""
    both = ((32, "float32"), (8, "int8"))
    if paper := view["paper"]:
        ratios, theirs = ([row[name] for row in paper] for name in ("speed_up", "paper"))
        bars = Series("int8 over float32", ratios, "bars", paper=theirs)
        ticks = [row["task"].replace(" ", "\n", 1) for row in paper]
        yield Panel("The paper's four actors and GPU learner", "speed-up", [bars], ticks=ticks, level=1.0)
    if actors := view["actors"]:
        series = [
            Series(f"{bits} bits", [row["env_steps_per_second"] for row in actors if row["precision"] == precision])
            for bits, precision in both
        ]
        ticks = list(dict.fromkeys(str(row["actors"]) for row in actors))
        yield Panel(f"{LARGEST}: more actors", "env steps/s", series, "actors", ticks)
    if fleet := view["fleet"]:
        series = [
            Series(f"{bits} bits", [row["down_mbit"] for row in fleet if row["bits"] == bits], "bars")
            for bits, _ in both
        ]
        ticks = [f"{row['pull_every']} steps" for row in fleet if row["bits"] == 32]
        title, y = f"{FLEET:,} actors across regions", "Mbit/s from the learner"
        yield Panel(title, y, series, "pull every", ticks, log=True)


def _paper_shown(row: Record) -> dict[Column, Value]:
    """A row for people."""
    steps, rates = row["step_ms"], row["steps_per_second"]
    return {
        Column("task"): row["task"],
        Column("step float32", "ms"): steps["torch float32"],
        Column("step int8", "ms"): steps["auto int8"],
        Column("float32", "steps/s"): rates["torch float32"],
        Column("int8", "steps/s"): rates["auto int8"],
        Column("int8 over float32 in PyTorch", format=".2f"): row["speed_up"],
        Column("over float32 in ONNX Runtime", format=".2f"): row["same_engine"],
        Column("paper, time to 95 %", format=".2f"): row["paper"],
        Column("bottleneck with int8"): row["bottleneck"],
    }
