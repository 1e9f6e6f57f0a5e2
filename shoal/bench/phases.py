"""`shoal bench phases`: the shares of sampling and acting in the time, and the time saved by neighbour sampling."""

from shoal.bench import Record
from shoal.profiling.cells import Cell
from shoal.profiling.records import saving_records, time_record
from shoal.profiling.rounds import Subject, measure, rows_that_fit, transition_bytes
from shoal.results import Column
from shoal.training.config import TrainConfig
from shoal.training.evaluation import build_env

RING_BYTES = 400_000_000  # far larger than any last-level cache
COLUMNS = {
    "update_ms": Column("update", "ms"),
    "sampling_ms": Column("sampling", "ms"),
    "outside_share": Column("acting, world, insertion, sampling"),
    "neighbor_sampling_ms": Column("neighbor sampling", "ms"),
}
PARTS = (3, 6, 12, 24, 48)


def run(agents: int, seconds: float = 5.0) -> list[Record]:
    """The engine only, with a ring far larger than the last-level cache."""
    config = TrainConfig(episodes=10**7, env="predator-prey", agents=agents)
    spec = build_env(config, 1, 0, stagger=False).spec
    rows = max(25_600, RING_BYTES // transition_bytes("engine", spec, config.copies))
    ring = rows_that_fit(min(1_000_000, rows), config, ("maddpg",), ("engine",))
    subject = Subject(config, ("maddpg",), ring)
    cells = [Cell("predator-prey", agents, "maddpg", sampler, "engine") for sampler in ("uniform", "neighbor")]
    timed = [time_record(one) for one in measure(cells, {"engine": subject}, ring, seconds, lambda used: None)]
    uniform, neighbor = timed[0], saving_records(timed)[0]
    phases = uniform["phases_ms"]
    acting = phases["action selection"] + phases["environment"] + phases["replay insertion"]
    return [
        {
            "agents": agents,
            "algorithm": "maddpg",
            "ring": ring,
            "update_ms": uniform["update_ms"],
            "sampling_ms": phases["mini-batch sampling"],
            "ratio": uniform["shares_of_update"]["mini-batch sampling"],
            "acting_share": acting / uniform["round_ms"],
            "outside_share": (acting + phases["mini-batch sampling"]) / uniform["round_ms"],
            "neighbor_sampling_ms": neighbor["sampling_ms"],
            "neighbor_reduction": neighbor["sampling_reduction"],
        }
    ]
