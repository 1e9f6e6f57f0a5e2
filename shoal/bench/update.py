"""`shoal bench update`: one update of all trainers, native and in torch, relative to its bare matrix products."""

import dataclasses
import statistics
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypedDict

from shoal.bench.bare import BareProducts
from shoal.bench.peak import peak
from shoal.bench.timing import blocks, torch_threads
from shoal.results import Column
from shoal.system.processors import usable_processors
from shoal.training.config import TrainConfig
from shoal.training.loop import Training

Algorithm = Literal["maddpg", "masac"]
TURN = 0.3  # seconds of each side: torch's threads spin for a while after its turn, which must not count


class Row(TypedDict):
    """One update for one number of agents."""

    agents: int
    algorithm: str
    update: str
    threads: int
    update_ms: Annotated[float, Column("update", "ms")]
    bare_products_ms: Annotated[float, Column("bare products", "ms")]
    ratio: float
    turned_products_ms: Annotated[float, Column("turned products", "ms")]
    turned_ratio: float
    peak_share: Annotated[float, Column("of the processors' peak")]


def run(
    agents: tuple[int, ...] = (3, 6, 12, 24, 48), seconds: float = 6.0, algorithm: Algorithm = "maddpg"
) -> list[Row]:
    """A row per number of agents and update: its time, that of its products alone, and their ratio, in turns.

    `turned`: the same products with the narrow ones transposed, the fastest way known to us in torch. The peak is that
    of multiply-adds in registers, and what is counted are the multiply-adds of the products.
    """
    threads = usable_processors()
    most = threads * peak()
    rows: list[Row] = []
    for n in agents:
        trainings = {name: filled_training(n, algorithm, update=name, threads=threads) for name in ("native", "torch")}
        spec, batch = trainings["torch"].env.spec, trainings["torch"].config.batch
        shape = (spec.agents, spec.observation_size, spec.action_size, batch)
        bare, turned = BareProducts(*shape), BareProducts(*shape, turned=True)
        sides: list[Callable[[], None]] = [*(one.update for one in trainings.values()), bare, turned]
        with torch_threads(threads):
            times = [statistics.median(own) for own in blocks(sides, seconds, TURN)]
        for name, took in zip(trainings, times, strict=False):
            rows.append(
                {
                    "agents": n,
                    "algorithm": algorithm,
                    "update": name,
                    "threads": threads,
                    "update_ms": 1e3 * took,
                    "bare_products_ms": 1e3 * times[-2],
                    "ratio": took / times[-2],
                    "turned_products_ms": 1e3 * times[-1],
                    "turned_ratio": took / times[-1],
                    "peak_share": bare.multiply_adds / took / most,
                }
            )
    return rows


def filled_training(
    agents: int,
    algorithm: Algorithm = "maddpg",
    transitions: int = 25_600,
    env: str = "predator-prey",
    **settings: Any,
) -> Training:
    """A training with the papers' settings and a ring that holds the warm-up, ready to update."""
    config = TrainConfig(env=env, agents=agents, algorithm=algorithm, capacity=transitions, episodes=10**6)
    training = Training(dataclasses.replace(config, **settings))
    while len(training.ring) < transitions:
        training.step()
    return training
