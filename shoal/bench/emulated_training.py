"""`shoal bench emulated-training`: a training step through a MAC unit compared with the same step in float32.

The emulated step's time is split into its products, the rounding of its operands, and everything else. Both sides use
two threads.
"""

import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from shoal.bench import Record
from shoal.bench.timing import interleaved, torch_threads
from shoal.bench.update import filled_training
from shoal.classifiers.models import make_model
from shoal.numerics import low_precision
from shoal.numerics.emulation.emulate import Emulation
from shoal.numerics.schemes.casting import SchemeCasts
from shoal.results import Column

THREADS = 2
UNIT = "E5M2:5+E6M5"
IMAGES = {"resnet20": (64, 28), "resnet8": (64, 8)}  # mini-batch and side of the images, with one channel
AGENTS = 3
GOALS = {"resnet20": 7.0, "resnet8": 6.0}  # times the float32 step
MPTORCH = 0.016
"""GMAC/s of MPTorch's emulated product (E6M5, to nearest) on a two-core AVX2 CPU, measured in 2026; it is not installed
here, so its row is computed from this rate."""
COLUMNS = {
    "step_ms": Column("step", "ms"),
    "float32_ms": Column("float32", "ms"),
    "products_share": Column("products", format=".0%"),
    "rounding_share": Column("rounding", format=".0%"),
    "other_share": Column("other", format=".0%"),
    "statistics_share": Column("statistics", format=".0%"),
    "gmac_per_second": Column("GMAC/s"),
}
PARTS = ("resnet20", "resnet8", "maddpg")


@torch_threads(THREADS)
def run(model: str, seconds: float = 12.0) -> list[Record]:
    """A model's step, and the products of the same step at MPTorch's rate, without anything else."""
    make = _team if model == "maddpg" else _classifier
    (narrow, macs), (quiet, _), (plain, _) = make(model, UNIT, True), make(model, UNIT, False), make(model, None, True)
    step, uncounted, float32 = interleaved([narrow, quiet, plain], seconds, least=3)
    before = macs()
    with timed(Emulation, "multiply") as products, timed(SchemeCasts, "_quantized", "_count") as rounding:
        whole = timeit.timeit(narrow, number=3)
    shares = products[0] / whole, rounding[0] / whole
    row = {
        "model": f"maddpg, {AGENTS} agents" if model == "maddpg" else model,
        "scheme": UNIT,
        "step_ms": 1e3 * step,
        "float32_ms": 1e3 * float32,
        "ratio": step / float32,
        "goal": GOALS.get(model),
        "products_share": shares[0],
        "rounding_share": shares[1],
        "other_share": 1 - sum(shares),
        "statistics_share": 1 - uncounted / step,  # for counting events; it is part of the other three
        "gmac_per_second": (macs() - before) / 3 / step / 1e9,  # over the whole step
    }
    peer = (macs() - before) / 3 / MPTORCH / 1e9
    times = {"scheme": "at MPTorch's rate", "step_ms": 1e3 * peer, "ratio": peer / float32, "goal": None}
    nothing_else = {"products_share": 1.0, "rounding_share": 0.0, "other_share": 0.0, "statistics_share": 0.0}
    return [row, {**row, **times, **nothing_else, "gmac_per_second": MPTORCH}]


def _classifier(name: str, scheme: str | None, stats: bool) -> tuple[Callable[[], object], Callable[[], int]]:
    """A training step of a classifier, and the MACs so far."""
    batch, side = IMAGES[name]
    draw = torch.Generator().manual_seed(0)
    images, labels = torch.randn(batch, 1, side, side, generator=draw), torch.randint(10, (batch,), generator=draw)
    model = make_model(name, 1, side, 10, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    training = low_precision(model, optimizer, scheme or "float32", loss_scale=1024, stats=stats)

    def step() -> None:
        with training:
            loss = F.cross_entropy(model(images), labels)
        training.step(loss)

    return step, lambda: training.run.emulation.macs


def _team(_: str, scheme: str | None, stats: bool) -> tuple[Callable[[], object], Callable[[], int]]:
    """An update of a team, and the MACs so far."""
    settings: dict[str, Any] = {"first_layer": "dense"} if scheme is None else {"scheme": scheme, "loss_scale": "1024"}
    training = filled_training(
        AGENTS, transitions=2_000, env="cooperative-navigation", rules="openai", threads=THREADS, **settings
    )
    if scheme is None:
        return training.update, lambda: 0
    own = training.learner.precision.run  # type: ignore[attr-defined]
    own.emulation.stats = own.casts.count = stats
    return training.update, lambda: own.emulation.macs


@contextmanager
def timed(owner: type, *methods: str) -> Iterator[list[float]]:
    """Seconds spent in these methods, as a list of one number."""
    spent, plain = [0.0], {name: getattr(owner, name) for name in methods}

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[0] += time.perf_counter() - start

        return call

    for name, function in plain.items():
        setattr(owner, name, watched(function))
    try:
        yield spent
    finally:
        for name, function in plain.items():
            setattr(owner, name, function)
