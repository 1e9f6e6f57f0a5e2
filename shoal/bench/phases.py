"""`shoal bench phases`: the shares of sampling and acting in the time, and the time saved by neighbour sampling."""

from typing import Annotated, TypedDict

from shoal.profiling.cells import Cell
from shoal.profiling.records import saving_records, time_record
from shoal.profiling.rounds import Subject, changed, measure, rows_that_fit, transition_bytes
from shoal.results import Column
from shoal.training.config import TrainConfig
from shoal.training.evaluation import build_env

RING_BYTES = 400_000_000  # far larger than any last-level cache


class Row(TypedDict):
    """Shares of the phases for one number of agents."""

    agents: int
    algorithm: str
    ring: int
    update_ms: Annotated[float, Column("update", "ms")]
    sampling_ms: Annotated[float, Column("sampling", "ms")]
    ratio: float
    acting_share: float
    outside_share: Annotated[float, Column("acting, world, insertion, sampling")]
    neighbor_sampling_ms: Annotated[float, Column("neighbor sampling", "ms")]
    neighbor_reduction: float


def run(agents: tuple[int, ...] = (3, 6, 12, 24, 48), seconds: float = 5.0, algorithm: str = "maddpg") -> list[Row]:
    """One row per number of agents, for the engine only, with a ring far larger than the last-level cache."""
    rows: list[Row] = []
    for n in agents:
        config = changed(TrainConfig(episodes=10**7), env="predator-prey", agents=n)
        ring = rows_that_fit(min(1_000_000, ring_rows(config)), config, (algorithm,), ("engine",))
        subject = Subject(config, (algorithm,), ring)
        cells = [Cell("predator-prey", n, algorithm, sampler, "engine") for sampler in ("uniform", "neighbor")]
        timed = [time_record(one) for one in measure(cells, {"engine": subject}, ring, seconds, lambda used: None)]
        uniform, neighbor = timed[0], saving_records(timed)[0]
        phases = uniform["phases_ms"]
        acting = phases["action selection"] + phases["environment"] + phases["replay insertion"]
        rows.append(
            {
                "agents": n,
                "algorithm": algorithm,
                "ring": ring,
                "update_ms": uniform["update_ms"],
                "sampling_ms": phases["mini-batch sampling"],
                "ratio": uniform["shares_of_update"]["mini-batch sampling"],
                "acting_share": acting / uniform["round_ms"],
                "outside_share": (acting + phases["mini-batch sampling"]) / uniform["round_ms"],
                "neighbor_sampling_ms": neighbor["sampling_ms"],
                "neighbor_reduction": neighbor["sampling_reduction"],
            }
        )
    return rows


def ring_rows(config: TrainConfig) -> int:
    """Transitions that take RING_BYTES."""
    spec = build_env(config, 1, 0, stagger=False).spec
    return max(25_600, RING_BYTES // transition_bytes("engine", spec, config.copies))
