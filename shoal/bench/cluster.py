"""`shoal bench cluster`: actors on a local Ray over actors in processes with shared memory, in a running system.

The same task, learner and actor twice, few samples per insert so that the actor is what limits: the ratio is what Ray's
calls leave of the speed on one machine. Over shared memory the actor has a processor of its own; Ray assigns none.
"""

from typing import Any

from shoal.bench import Record
from shoal.bench.actorq import LARGE, SECONDS, measured, one_actor
from shoal.results import Column

TASKS: dict[str, dict[str, Any]] = {
    "walker": {"env": "dm:walker/stand", "algorithm": "d4pg", "pull_every": 200, **LARGE},
    "gym-cartpole": {"env": "gym:CartPole-v1", "algorithm": "dqn", "hidden": (64, 64)},
}
"""A large policy, whose versions are megabytes, and a small one, whose steps are quick."""
KIND = {"actor_engine": "native", "actor_precision": "int8"}
FIRST = 500  # steps before the clock starts: more than the calls that are made before the first one is answered
TRANSPORTS = {"shared memory": None, "ray local": "local"}
COLUMNS = {
    "env_steps_per_second": Column("env", "steps/s"),
    "pull_ms": Column("pull", "ms"),
    "load_ms": Column("load", "ms"),
    "bytes_per_pull": Column("pull", "bytes"),
    "ratio": Column("over shared memory"),
}
PARTS = tuple(TASKS)
NAMES = (
    "task", "network", "transport", "engine", "precision", "env_steps_per_second", "pull_ms", "load_ms",
    "bytes_per_pull", "bottleneck",
)  # fmt: skip


def run(task: str, seconds: float = SECONDS) -> list[Record]:
    """The same over both transports."""
    rows: list[Record] = []
    for transport, cluster in TRANSPORTS.items():
        config = one_actor(TASKS[task], cluster=cluster, **KIND)
        row = measured(task, config, seconds, FIRST) | {"transport": transport}
        rows.append({name: row[name] for name in NAMES})
        rows[-1]["ratio"] = rows[-1]["env_steps_per_second"] / rows[0]["env_steps_per_second"]
    return rows
