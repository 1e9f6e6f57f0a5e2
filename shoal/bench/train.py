"""`shoal bench train`: whole training with the papers' schedule, compared with the reference and the bare products."""

import time
import timeit

from shoal.bench import Record
from shoal.bench.ceiling import BareProducts
from shoal.profiling.cells import Cell
from shoal.profiling.records import time_record
from shoal.profiling.rounds import Subject, Timing, changed, one_round
from shoal.results import Column
from shoal.runs.threads import set_torch_threads
from shoal.system.processors import usable_processors
from shoal.training.config import TrainConfig

RING = 25_600
REFERENCE = {"implementation": "reference", "update": "auto"}
COLUMNS = {
    "steps_per_second": Column("native", "steps/s"),
    "torch_steps_per_second": Column("torch", "steps/s"),
    "torch_ratio": Column("native over torch"),
    "reference_steps_per_second": Column("reference", "steps/s"),
    "ratio": Column("native over reference"),
    "ceiling_steps_per_second": Column("ceiling", "steps/s"),
}
PARTS = (3, 12)


def run(agents: int, seconds: float = 20.0) -> list[Record]:
    """Steps/s with the native and the torch update, of the reference and of the products alone.

    A round is 100 samples and one update. Sides take turns: one round of the reference, then rounds of each of the
    others for as long as that took. All have as many threads as there are processors.
    """
    threads = usable_processors()
    config = TrainConfig(episodes=10**7, env="predator-prey", agents=agents, threads=threads)
    kinds = {"native": {"update": "native"}, "torch": {"update": "torch"}, "reference": REFERENCE}
    subjects = {name: Subject(changed(config, **kind), ("maddpg",), RING) for name, kind in kinds.items()}
    timings = {name: Timing(Cell("predator-prey", agents, "maddpg", "uniform", name), RING) for name in kinds}
    training = subjects["native"].training
    spec, every = training.env.spec, training.config.update_every
    bare = BareProducts(spec.agents, spec.observation_size, spec.action_size, training.config.batch)
    products: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(len(timing.rounds) for timing in timings.values()) < 3:
        start = time.perf_counter()
        one_round(subjects["reference"], timings["reference"], seconds * 100)
        took = time.perf_counter() - start
        for name in ("native", "torch"):
            set_torch_threads(1 if name == "native" else threads)
            turn_ends = time.perf_counter() + took
            while time.perf_counter() < turn_ends:
                one_round(subjects[name], timings[name], seconds)
        products.append(timeit.timeit(bare, number=1))
    for timing in timings.values():
        del timing.rounds[0], timing.scaled[0]  # warm-up
    bare_time = sorted(products)[len(products) // 2]
    native, torch, reference = (time_record(timings[name]) for name in kinds)
    without = [row["round_ms"] - row["phases_ms"]["environment"] for row in (reference, native)]
    return [
        {
            "agents": agents,
            "algorithm": "maddpg",
            "threads": threads,
            "steps_per_second": 1e3 * every / native["round_ms"],
            "torch_steps_per_second": 1e3 * every / torch["round_ms"],
            "torch_ratio": torch["round_ms"] / native["round_ms"],
            "reference_steps_per_second": 1e3 * every / reference["round_ms"],
            "ratio": reference["round_ms"] / native["round_ms"],
            "ratio_without_environment": without[0] / without[1],
            "ceiling_steps_per_second": every / bare_time,
            "ceiling_ratio": 1e3 * bare_time / native["round_ms"],
        }
    ]
