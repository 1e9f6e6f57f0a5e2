"""`shoal bench actorq`: a running system of one actor and a learner, over actors in PyTorch float32.

The actor has one processor and the learner the other; few samples per insert, so that the actor is what limits. Each
row is a run of its own.
"""

from collections.abc import Mapping
from typing import Any

from shoal.actorq.service_times import FIRST, observe
from shoal.bench import Record
from shoal.results import Column
from shoal.training.config import TrainConfig

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
COLUMNS = {
    "env_steps_per_second": Column("env", "steps/s"),
    "learner_updates_per_second": Column("learner", "updates/s"),
    "pull_ms": Column("pull", "ms"),
    "load_ms": Column("load", "ms"),
    "step_us": Column("step", "µs"),
    "bytes_per_pull": Column("pull", "bytes"),
    "ratio": Column("over torch"),
    "ratio_same_engine": Column("over float32 of its engine"),
}
PARTS = tuple(TASKS)


def run(task: str, seconds: float = SECONDS) -> list[Record]:
    """Every engine and precision that is for networks of the task's size."""
    kinds = KINDS if "critic_hidden" in TASKS[task] else SMALL_KINDS
    configs = [one_actor(TASKS[task], actor_engine=engine, actor_precision=precision) for engine, precision in kinds]
    rows = [measured(task, config, seconds) for config in configs]
    base = rows[0]["env_steps_per_second"]
    own = {row["engine"]: row["env_steps_per_second"] for row in rows if row["precision"] == "float32"}
    for row in rows:
        row["ratio"] = row["env_steps_per_second"] / base
        same = own.get(row["engine"])
        row["ratio_same_engine"] = None if same is None else row["env_steps_per_second"] / same
    return rows


def measured(task: str, config: TrainConfig, seconds: float, first: int = FIRST) -> Record:
    """Run a system with one actor for some seconds, after its first steps."""
    ran = observe(config, seconds, first, updates=0)
    pulls = ran.pulls
    return {
        "task": task,
        "network": "×".join(map(str, config.hidden)),
        "engine": ran.engine,
        "precision": config.actor_precision,
        "actors": 1,
        "env_steps_per_second": ran.steps / ran.seconds,
        "learner_updates_per_second": ran.updates / ran.seconds,
        "bottleneck": ran.bottleneck,
        "pull_ms": 1e3 * ran.pull / pulls if pulls else None,
        "load_ms": 1e3 * ran.load / pulls if pulls else None,
        "step_us": 1e6 * ran.act / max(ran.steps, 1),
        "bytes_per_pull": ran.pulled_bytes / pulls if pulls else None,
    }


def one_actor(task: Mapping[str, Any], **settings: Any) -> TrainConfig:
    """One actor and a learner with so few samples per insert that the actor is what limits."""
    common = {"copies": 1, "warmup": 300, "episodes": 10**7, "threads": 1, "capacity": 100_000}
    return TrainConfig(
        **{**common, "actors": 1, "samples_per_insert": SAMPLES_PER_INSERT, **task, **settings}
    ).checked()
