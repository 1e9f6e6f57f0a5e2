"""`shoal bench cluster`: actors on a local Ray over actors in processes with shared memory, in a running system.

The same task, learner and actor twice, few samples per insert so that the actor is what limits: the ratio is what Ray's
calls leave of the speed on one machine. Over shared memory the actor has a processor of its own; Ray assigns none.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from shoal.bench.actorq import LARGE, SECONDS, measured, one_actor
from shoal.results import Column

TASKS: dict[str, dict[str, Any]] = {
    "walker": {"env": "dm:walker/stand", "algorithm": "d4pg", "pull_every": 200, **LARGE},
    "gym-cartpole": {"env": "gym:CartPole-v1", "algorithm": "dqn", "hidden": (64, 64)},
}
"""A large policy, whose versions are megabytes, and a small one, whose steps are quick."""
KIND = {"actor_engine": "native", "actor_precision": "int8"}
FIRST = 500
"""Steps before the clock starts: more than the calls that are made before the first one is answered."""
TRANSPORTS = {"shared memory": None, "ray local": "local"}


class Row(TypedDict):
    """One task over one transport."""

    task: str
    network: str
    transport: str
    engine: str
    precision: str
    env_steps_per_second: Annotated[float, Column("env", "steps/s")]
    pull_ms: Annotated[float | None, Column("pull", "ms")]
    load_ms: Annotated[float | None, Column("load", "ms")]
    bytes_per_pull: Annotated[float | None, Column("pull", "bytes")]
    bottleneck: str
    ratio: Annotated[float, Column("over shared memory")]


def run(tasks: Sequence[str] = tuple(TASKS), seconds: float = SECONDS) -> list[Row]:
    """Two rows for each task."""
    return [row for task in tasks for row in _rows(task, seconds)]


def _rows(task: str, seconds: float) -> list[Row]:
    rows: list[Row] = []
    for transport, cluster in TRANSPORTS.items():
        found = {
            **measured(task, one_actor(TASKS[task], cluster=cluster, **KIND), seconds, FIRST),
            "transport": transport,
        }
        rows.append({name: found[name] for name in Row.__annotations__})  # type: ignore[arg-type]
        rows[-1]["ratio"] = rows[-1]["env_steps_per_second"] / rows[0]["env_steps_per_second"]
    return rows
