"""`shoal bench actorq`: a running system of one actor and a learner, over actors in PyTorch float32.

The actor has one processor and the learner the other; few samples per insert, so that the actor is what limits. Each
row is a run of its own.
"""

import time
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from shoal.actorq.collector import ActorCollector
from shoal.results import Column
from shoal.training.config import TrainConfig
from shoal.training.loop import Training

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
    rows = [measured(task, TASKS[task], engine, precision, seconds) for engine, precision in kinds]
    base = rows[0]["env_steps_per_second"]
    own = {row["engine"]: row["env_steps_per_second"] for row in rows if row["precision"] == "float32"}
    for row in rows:
        row["ratio"] = row["env_steps_per_second"] / base
        same = own.get(row["engine"])
        row["ratio_same_engine"] = None if same is None else row["env_steps_per_second"] / same
    return rows


def measured(
    task: str, settings: dict[str, Any], engine: str, precision: str, seconds: float, first: int = FIRST
) -> Row:
    """Run one kind of actor for some seconds, after its first steps."""
    settings = {"copies": 1, "warmup": 300, "episodes": 10**7, "threads": 1, "capacity": 100_000, **settings}
    config = TrainConfig(
        actors=1,
        actor_engine=engine,  # type: ignore[arg-type]
        actor_precision=precision,  # type: ignore[arg-type]
        samples_per_insert=SAMPLES_PER_INSERT,
        **settings,
    ).checked()
    training = Training(config)
    collector = training.collector
    assert isinstance(collector, ActorCollector)
    training.learner.publish()
    collector.begin()
    try:
        _play(training, lambda: collector.system.board.count(1, "steps") >= first)
        before = _counts(training)
        end = time.perf_counter() + seconds
        _play(training, lambda: time.perf_counter() >= end)
        after = _counts(training)
        bottleneck = collector.bottleneck()[0]
    finally:
        collector.close()
        training.env.close()
    steps, updates, passed, pulls, pull, load, act, sent = (new - old for old, new in zip(before, after, strict=True))
    return {
        "task": task,
        "network": "×".join(map(str, config.hidden)),
        "engine": collector.system.play.engine,
        "precision": precision,
        "actors": 1,
        "env_steps_per_second": steps / passed,
        "learner_updates_per_second": updates / passed,
        "bottleneck": bottleneck,
        "pull_ms": 1e3 * pull / pulls if pulls else None,
        "load_ms": 1e3 * load / pulls if pulls else None,
        "step_us": 1e6 * act / max(steps, 1),
        "bytes_per_pull": sent / pulls if pulls else None,
        "ratio": 0.0,
        "ratio_same_engine": None,
    }


def _play(training: Training, done: Any) -> None:
    """The loop of training without log and checkpoints."""
    while not done():
        while training.owes_update() and not done():
            training.update()
        training.step()


def _counts(training: Training) -> tuple[float, ...]:
    """What has happened so far: steps, updates, seconds, pulls, seconds of pulls, of loads and of acting, bytes."""
    board = training.collector.system.board  # type: ignore[attr-defined]
    seconds = (board.seconds(1, name) for name in ("pull", "load", "act"))
    return (
        board.count(1, "steps"),
        training.updates,
        time.perf_counter(),
        board.count(1, "pulls"),
        *seconds,
        board.count(1, "bytes"),
    )
