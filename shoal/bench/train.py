"""`shoal bench train`: whole training under the papers' schedule, beside the reference and the bare products."""

import time
from typing import Annotated, TypedDict

from shoal.bench.bare import BareProducts
from shoal.profiling.rounds import Cell, Timing, one_round
from shoal.profiling.rows import time_row
from shoal.profiling.subjects import Subject, changed
from shoal.results import Column
from shoal.training.config import TrainConfig

RING = 25_600


class Row(TypedDict):
    """Whole training with one number of agents."""

    agents: int
    algorithm: str
    steps_per_second: Annotated[float, Column("engine", "steps/s")]
    reference_steps_per_second: Annotated[float, Column("reference", "steps/s")]
    ratio: float
    ratio_without_environment: float
    ceiling_steps_per_second: Annotated[float, Column("ceiling", "steps/s")]
    ceiling_ratio: float


def run(agents: tuple[int, ...] = (3, 12), seconds: float = 20.0, algorithm: str = "maddpg") -> list[Row]:
    """A row for each number of agents: steps/s of both implementations and of the products alone, taken in turns.

    A round is 100 samples and one update. The reference has one round for as many of the engine's as fit into its time.
    """
    rows: list[Row] = []
    for n in agents:
        config = changed(TrainConfig(episodes=10**7), env="predator-prey", agents=n)
        names = ("engine", "reference")
        subjects = {name: Subject(changed(config, implementation=name), (algorithm,), RING) for name in names}
        timings = {name: Timing(Cell("predator-prey", n, algorithm, "uniform", name), RING) for name in names}
        training = subjects["engine"].training
        spec, every = training.env.spec, training.config.update_every
        bare = BareProducts(spec.agents, spec.observation_size, spec.action_size, training.config.batch)
        products: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or min(len(timing.rounds) for timing in timings.values()) < 3:
            start = time.perf_counter()
            one_round(subjects["reference"], timings["reference"], seconds * 100)
            took = time.perf_counter() - start
            turn_ends = time.perf_counter() + took
            while time.perf_counter() < turn_ends:
                one_round(subjects["engine"], timings["engine"], seconds)
                start = time.perf_counter()
                bare()
                products.append(time.perf_counter() - start)
        for timing in timings.values():
            del timing.rounds[0], timing.scaled[0]  # it warmed up
        rows.append(_row(n, algorithm, every, timings, sorted(products)[len(products) // 2]))
    return rows


def _row(agents: int, algorithm: str, every: int, timings: dict[str, Timing], products: float) -> Row:
    engine, reference = (time_row(timings[name]) for name in ("engine", "reference"))
    without = [row["round_ms"] - row["phases_ms"]["environment"] for row in (reference, engine)]
    return {
        "agents": agents,
        "algorithm": algorithm,
        "steps_per_second": 1e3 * every / engine["round_ms"],
        "reference_steps_per_second": 1e3 * every / reference["round_ms"],
        "ratio": reference["round_ms"] / engine["round_ms"],
        "ratio_without_environment": without[0] / without[1],
        "ceiling_steps_per_second": every / products,
        "ceiling_ratio": 1e3 * products / engine["round_ms"],
    }
