"""`shoal bench update`: one update of all trainers, native and in torch, relative to its bare matrix products."""

import statistics
from collections.abc import Callable
from typing import Any

from shoal.bench import Record
from shoal.bench.ceiling import BareProducts, peak
from shoal.bench.timing import blocks, torch_threads
from shoal.profiling.rounds import Subject
from shoal.results import Column
from shoal.system.processors import usable_processors
from shoal.training.config import TrainConfig
from shoal.training.loop import Training

TURN = 0.3  # seconds of each side: torch's threads spin for a while after its turn, which must not count
COLUMNS = {
    "update_ms": Column("update", "ms"),
    "bare_products_ms": Column("bare products", "ms"),
    "turned_products_ms": Column("turned products", "ms"),
    "peak_share": Column("of the processors' peak"),
    "unshared_ratio": Column("times faster than unshared"),
}
PARTS = (3, 6, 12, 24, 48)
GOALS = {12: 5.0, 48: 20.0}  # of shared networks, relative to unshared ones


def run(agents: int, seconds: float = 6.0) -> list[Record]:
    """One record per update: its time, that of its products alone, and their ratio, in turns; and one with networks
    that all agents share, relative to the native update without.

    `turned`: the same products with the narrow ones transposed, the fastest way known to us in torch. The peak is that
    of multiply-adds in registers, and what is counted are the multiply-adds of the products.
    """
    threads = usable_processors()
    most = threads * peak()
    settings: dict[str, dict[str, Any]] = {"native": {}, "torch": {}, "native, shared": {"share": "all"}}
    trainings = {
        name: filled_training(agents, update=name.partition(",")[0], threads=threads, **own)
        for name, own in settings.items()
    }
    spec, batch = trainings["torch"].env.spec, trainings["torch"].config.batch
    shape = (spec.agents, spec.observation_size, spec.action_size, batch)
    bare, turned = BareProducts(*shape), BareProducts(*shape, turned=True)
    sides: list[Callable[[], None]] = [*(training.update for training in trainings.values()), bare, turned]
    with torch_threads(threads):
        *updates, products, fastest = (statistics.median(calls) for calls in blocks(sides, seconds, TURN))
    unshared = updates[0]
    return [
        {
            "agents": agents,
            "algorithm": "maddpg",
            "update": name,
            "threads": threads,
            "update_ms": 1e3 * took,
            "bare_products_ms": 1e3 * products,
            "ratio": took / products,
            "turned_products_ms": 1e3 * fastest,
            "turned_ratio": took / fastest,
            "peak_share": bare.multiply_adds / took / most if own == {} else None,
            "unshared_ratio": unshared / took if own else None,
            "goal": GOALS.get(agents) if own else None,
        }
        for (name, own), took in zip(settings.items(), updates, strict=True)
    ]


def filled_training(agents: int, transitions: int = 25_600, env: str = "predator-prey", **settings: Any) -> Training:
    """MADDPG with the papers' settings and a full ring, ready to update."""
    config = TrainConfig(env=env, agents=agents, episodes=10**6, **settings)
    return Subject(config, ("maddpg",), transitions).training
