"""`shoal bench actorq`: a running system of one actor and a learner, over actors in PyTorch float32.

The actor has one processor and the learner the other; few samples per insert, so that the actor is what limits. Each
row is a run of its own.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

from shoal.actorq import board as boards
from shoal.actorq.collector import ActorCollector
from shoal.actorq.simulation import ServiceTimes
from shoal.actorq.system import QUANTIZER, Post
from shoal.errors import UserError
from shoal.results import Column
from shoal.training.config import TrainConfig
from shoal.training.loop import Training, implementation

LARGE = {"hidden": (2048, 2048, 2048), "critic_hidden": (512, 512, 256), "layer_norm": True}
TASKS: dict[str, dict[str, Any]] = {
    "humanoid": {"env": "dm:humanoid/stand", "algorithm": "d4pg", "pull_every": 100, **LARGE},
    "walker": {"env": "dm:walker/stand", "algorithm": "d4pg", **LARGE},
    "cartpole": {"env": "dm:cartpole/balance", "algorithm": "d4pg", **LARGE},
    "gym-cartpole": {"env": "gym:CartPole-v1", "algorithm": "dqn", "hidden": (64, 64)},
}
"""The paper's policy and critic in three tasks of the control suite, and a small network."""
KINDS = (("torch", "float32"), ("onnx", "float32"), ("onnx", "int8"), ("native", "int8"))
SMALL_KINDS = (*KINDS, ("auto", "int8"), ("numba", "float32"))
SAMPLES_PER_INSERT = 0.25
SECONDS = 4.0
FIRST = 100
"""Steps before the clock starts."""
MEASURED_RATIO, MEASURED_PULLS = 0.5, 100
"""Samples per insert and steps between pulls where service times are measured: either side has enough to do."""
PATIENCE = 90.0
"""Seconds to wait for updates and pulls that are to be measured."""


class Row(TypedDict):
    """One task with one kind of actor."""

    task: str
    network: str
    engine: str
    precision: str
    actors: int
    env_steps_per_second: Annotated[float, Column("env", "steps/s")]
    learner_updates_per_second: Annotated[float, Column("learner", "updates/s")]
    bottleneck: str
    pull_ms: Annotated[float | None, Column("pull", "ms")]
    load_ms: Annotated[float | None, Column("load", "ms")]
    step_us: Annotated[float, Column("step", "µs")]
    bytes_per_pull: Annotated[float | None, Column("pull", "bytes")]
    ratio: Annotated[float, Column("over torch")]
    ratio_same_engine: Annotated[float | None, Column("over float32 of its engine")]


def run(tasks: Sequence[str] = tuple(TASKS), seconds: float = SECONDS) -> list[Row]:
    """Rows of each task: every engine and precision that is for networks of its size."""
    return [row for task in tasks for row in _rows(task, seconds)]


def _rows(task: str, seconds: float) -> list[Row]:
    kinds = KINDS if "critic_hidden" in TASKS[task] else SMALL_KINDS
    rows = [_measured(task, engine, precision, seconds) for engine, precision in kinds]
    base = rows[0]["env_steps_per_second"]
    own = {row["engine"]: row["env_steps_per_second"] for row in rows if row["precision"] == "float32"}
    for row in rows:
        row["ratio"] = row["env_steps_per_second"] / base
        same = own.get(row["engine"])
        row["ratio_same_engine"] = None if same is None else row["env_steps_per_second"] / same
    return rows


def _measured(task: str, engine: str, precision: str, seconds: float) -> Row:
    """Run one kind of actor for some seconds."""
    settings = {"copies": 1, "warmup": 300, "episodes": 10**7, "threads": 1, "capacity": 100_000, **TASKS[task]}
    config = TrainConfig(
        actors=1,
        actor_engine=engine,  # type: ignore[arg-type]
        actor_precision=precision,  # type: ignore[arg-type]
        samples_per_insert=SAMPLES_PER_INSERT,
        **settings,
    ).checked()
    found = observe(config, seconds)
    pulls = found.pulls
    return {
        "task": task,
        "network": "×".join(map(str, config.hidden)),
        "engine": found.engine,
        "precision": precision,
        "actors": 1,
        "env_steps_per_second": found.steps / found.seconds,
        "learner_updates_per_second": found.updates / found.seconds,
        "bottleneck": found.bottleneck,
        "pull_ms": 1e3 * found.pull / pulls if pulls else None,
        "load_ms": 1e3 * found.load / pulls if pulls else None,
        "step_us": 1e6 * found.act / max(found.steps, 1),
        "bytes_per_pull": found.pulled_bytes / pulls if pulls else None,
        "ratio": 0.0,
        "ratio_same_engine": None,
    }


@dataclass(frozen=True)
class Observed:
    """What a running system did in some seconds; seconds of actors are sums over all of them."""

    actors: int
    seconds: float
    samples: float
    """Transitions that were taken in."""
    updates: float
    lags: list[int]
    """In updates, of the last transitions."""
    steps: float
    """That the actors played."""
    act: float
    environment: float
    pull: float
    load: float
    wait: float
    pulls: float
    pulled_bytes: float
    quantized: float
    """Versions that were broadcast."""
    quantize: float
    update_cpu: float
    """Seconds of a processor that updates took; `insert_cpu`: that taking chunks in took."""
    insert_cpu: float
    learner_wait: float
    actors_cpu: float | None
    """Seconds of a processor that all actors used; None: this system does not tell."""
    quantizer_cpu: float | None
    engine: str
    bottleneck: str
    transition_bytes: float


def observe(config: TrainConfig, seconds: float, first: int = FIRST, updates: int = 0, pulls: int = 0) -> Observed:
    """Run a system, and count for some seconds what it does.

    Args:
        first: steps that every actor plays before the clock starts.
        updates, pulls: to be seen at least, however long it takes (up to `PATIENCE`); the very first ones, which
            compile and allocate, are not counted then.
    """
    training = Training(config)
    collector = training.collector
    assert isinstance(collector, ActorCollector)
    board, actors = collector.system.board, range(1, 1 + config.actors)
    spent = {"update_cpu": 0.0, "insert_cpu": 0.0}
    training.learner.publish()
    collector.begin()
    try:

        def begun() -> bool:
            return training.updates >= min(updates, 2) and all(board.count(k, "steps") >= first for k in actors)

        _play(training, begun, spent)
        before = _counts(training) | spent
        start = time.perf_counter()

        def done() -> bool:
            now = time.perf_counter() - start
            if now < seconds:
                return False
            found = _counts(training)
            seen = found["updates"] - before["updates"] >= updates and found["pulls"] - before["pulls"] >= pulls
            if not seen and now > PATIENCE:
                raise UserError(f"In {PATIENCE:.0f} s there were too few updates and pulls to measure them.")
            return seen

        _play(training, done, spent)
        after = _counts(training) | spent
        bottleneck, lags = collector.bottleneck()[0], list(collector.lags)
    finally:
        collector.close()
        training.env.close()
    layout = collector.system.queues[0].layout
    counted: dict[str, Any] = {name: None if new is None else new - before[name] for name, new in after.items()}
    return Observed(
        **counted,
        actors=config.actors,
        engine=collector.system.play.engine,
        bottleneck=bottleneck,
        lags=lags,
        transition_bytes=layout.nbytes / (layout.steps * layout.copies),
    )


def service_times(found: Observed) -> ServiceTimes:
    """The service times of a simulation, per process with a core of its own, from what was observed.

    The board's seconds are wall time, in which a process may have waited for a processor: they count by the share of
    its time in which the process really ran, where the system tells it.
    """
    busy = found.seconds * found.actors - found.wait
    ran = 1.0 if found.actors_cpu is None else min(1.0, found.actors_cpu / busy)
    quantize = found.quantize if found.quantizer_cpu is None else min(found.quantize, found.quantizer_cpu)
    return ServiceTimes(
        learner_ms=1e3 * found.update_cpu / found.updates,
        step_ms=1e3 * ran * (busy - found.pull - found.load) / found.steps,
        insert_ms=1e3 * found.insert_cpu / found.samples,
        pull_ms=1e3 * ran * found.pull / found.pulls,
        load_ms=1e3 * ran * found.load / found.pulls,
        quantize_ms=1e3 * quantize / max(found.quantized, 1),
        pull_bytes=found.pulled_bytes / found.pulls,
        transition_bytes=found.transition_bytes,
    )


def measure(config: TrainConfig, seconds: float, samples_per_insert: float = MEASURED_RATIO) -> ServiceTimes:
    """The service times of a task and a kind of actor, from a run of one actor with frequent pulls."""
    held: dict[str, Any] = {"actors": 1, "warmup": max(300, config.batch), "pull_every": MEASURED_PULLS, "threads": 1}
    held |= {"samples_per_insert": samples_per_insert, "update_every": None, "capacity": 20_000, "episodes": 10**7}
    config = replace(config, **held).checked()
    implementation(config).compile_loops(config)  # now, not in the middle of an update
    return service_times(observe(config, seconds, updates=3, pulls=3))


def _play(training: Training, done: Callable[[], bool], spent: dict[str, float]) -> None:
    """The loop of training without log and checkpoints; adds up the learner's processor time."""
    while not done():
        while training.owes_update() and not done():
            start = time.thread_time()
            training.update()
            spent["update_cpu"] += time.thread_time() - start
        start, samples = time.thread_time(), training.samples
        training.step()
        if training.samples > samples:  # else it waited
            spent["insert_cpu"] += time.thread_time() - start


def _counts(training: Training) -> dict[str, Any]:
    """What has happened so far, under the names of `Observed`."""
    collector = training.collector
    assert isinstance(collector, ActorCollector)
    system, actors = collector.system, range(1, 1 + collector.config.actors)
    board = system.board
    counts = {"steps": "steps", "pulls": "pulls", "bytes": "pulled_bytes"}
    times = [_processor_seconds(post) for post in system.posts]
    return {
        "seconds": time.perf_counter(),
        "samples": training.samples,
        "updates": training.updates,
        **{own: sum(board.count(k, name) for k in actors) for name, own in counts.items()},
        **{name: sum(board.seconds(k, name) for k in actors) for name in boards.SECONDS},
        "quantized": board.count(QUANTIZER, "steps"),
        "quantize": board.seconds(QUANTIZER, "act"),
        "learner_wait": collector.waited,
        "quantizer_cpu": times[QUANTIZER],
        "actors_cpu": None if None in times else sum(times[1:]),
    }


def _processor_seconds(post: Post) -> float | None:
    """Processor time of a process so far; None where /proc does not tell."""
    assert post.child is not None
    try:
        told = Path(f"/proc/{post.child.process.pid}/stat").read_text()
    except OSError:
        return None
    user, system = told.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
