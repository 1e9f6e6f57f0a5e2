"""`shoal bench update`: one update of all trainers over its bare matrix products."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypedDict

from shoal.bench.bare import BareProducts
from shoal.bench.timing import interleaved
from shoal.results import Column
from shoal.training.config import TrainConfig
from shoal.training.loop import Training

Algorithm = Literal["maddpg", "masac"]


class Row(TypedDict):
    """One update with one number of agents."""

    agents: int
    algorithm: str
    observation: int
    update_ms: Annotated[float, Column("update", "ms")]
    bare_products_ms: Annotated[float, Column("bare products", "ms")]
    ratio: float
    turned_products_ms: Annotated[float, Column("turned products", "ms")]
    turned_ratio: float


def run(
    agents: tuple[int, ...] = (3, 6, 12, 24, 48), seconds: float = 5.0, algorithm: Algorithm = "maddpg"
) -> list[Row]:
    """A row for each number of agents: both times and their ratio, measured in turns.

    `turned`: the same products with the narrow ones the other way round, the quickest way known to us.
    """
    rows: list[Row] = []
    for n in agents:
        training = filled_training(n, algorithm)
        spec = training.env.spec
        shape = (spec.agents, spec.observation_size, spec.action_size, training.config.batch)
        sides: list[Callable[[], None]] = [training.update, BareProducts(*shape), BareProducts(*shape, turned=True)]
        update, products, turned = interleaved(sides, seconds)
        rows.append(
            {
                "agents": n,
                "algorithm": algorithm,
                "observation": spec.observation_size,
                "update_ms": 1e3 * update,
                "bare_products_ms": 1e3 * products,
                "ratio": update / products,
                "turned_products_ms": 1e3 * turned,
                "turned_ratio": update / turned,
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
    config = TrainConfig(env=env, agents=agents, algorithm=algorithm, capacity=transitions, episodes=10**6, **settings)
    training = Training(config)
    while len(training.ring) < transitions:
        training.step()
    return training
