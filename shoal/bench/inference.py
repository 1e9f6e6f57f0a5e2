"""`shoal bench inference`: every engine in every precision compared with PyTorch, one thread, interleaved.

A turn is many consecutive calls, as an actor makes them, so that each engine has its own weights in the caches.
`ratio` is PyTorch's float32 time over this one's. `load_ms`: loading other weights into the engine. `memory_mb`:
memory of a process that does nothing else, imports included; exported files are run without torch, onnx and numba.
`goal` is the project's target for the ratio.
"""

import itertools
import math
import statistics
import tempfile
import timeit
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from shoal.bench import Record
from shoal.bench.networks import NETWORKS, bench_policy, memory_of
from shoal.bench.timing import blocks, torch_threads
from shoal.inference import Policy, make_engine
from shoal.inference.engine import Engine, runs_in_native, runs_in_numba
from shoal.inference.form import Form
from shoal.inference.graph import build
from shoal.inference.grid import safe_bits
from shoal.quantization.torch_engine import TorchEngine
from shoal.results import Column
from shoal.system.calls import call_in_child

BATCHES = (1, 64)
GOALS = {("3x64", 1, "auto"): 5.0, ("3x2048", 1, "int8"): 5.0}  # target ratios of engines and precisions
SLOWER = 1.03  # ratio to the float32 time from which a precision is reported as slower
LOADS = 3
COLUMNS = {
    "latency_us": Column("latency", "µs"),
    "p99_us": Column("p99", "µs"),
    "memory_mb": Column("memory", "MB"),
    "load_ms": Column("load", "ms"),
}
PARTS = tuple(NETWORKS)


@torch_threads(1)
def run(network: str, seconds: float = 4.0, memory: bool = True) -> list[Record]:
    """One record per batch, engine and precision; `seconds` for all batches."""
    policy = bench_policy(network)
    kinds = [("numba", "float32")] if runs_in_numba(policy) else []
    kinds += [("onnx", "float32"), ("onnx", "float16"), ("onnx", "int8")]
    kinds += [("native", "int8")] if runs_in_native(policy) else []
    held = _memory(network, policy, [("torch", "float32"), *kinds]) if memory else {}
    rows: list[Record] = []
    for batch in BATCHES:
        engines: list[Engine] = [TorchEngine(policy)]
        engines += [make_engine(policy, name, precision, 1, batch) for name, precision in kinds]  # type: ignore[arg-type]
        engines.append(make_engine(policy, "auto", "auto", 1, batch))
        observation = np.random.default_rng(1).standard_normal((batch, 1, policy.observation_size), np.float32)
        sides: list[Callable[[], object]] = [partial(engine.act, observation) for engine in engines]
        times = blocks(sides, seconds / len(BATCHES))
        loads = [_load_ms(engine, policy) for engine in engines]
        labels = [("torch", "float32"), *kinds, ("auto", engines[-1].precision)]
        rows += _table(network, batch, labels, times, loads, held, engines[-1].name)
    return rows


def _table(
    network: str,
    batch: int,
    labels: list[tuple[str, str]],
    times: list[list[float]],
    loads: list[float],
    held: dict[tuple[str, str, int], float],
    taken: str,
) -> list[Record]:
    medians = dict(zip(labels, map(statistics.median, times), strict=True))
    rows: list[Record] = []
    for label, own, load in zip(labels, times, loads, strict=True):
        engine, precision = label
        float32 = medians.get((engine, "float32"), math.inf)
        slower = engine != "auto" and precision != "float32" and medians[label] > SLOWER * float32
        note = f"took {taken}" if engine == "auto" else "slower than this engine's float32" if slower else ""
        goals = (GOALS.get((network, batch, kind)) for kind in label)
        rows.append(
            {
                "network": network,
                "engine": engine,
                "precision": precision,
                "batch": batch,
                "latency_us": 1e6 * medians[label],
                "p99_us": 1e6 * float(np.quantile(own, 0.99)),
                "memory_mb": held.get((taken if engine == "auto" else engine, precision, batch)),
                "load_ms": load,
                "ratio": medians[labels[0]] / medians[label],
                "goal": next((goal for goal in goals if goal), None),
                "note": note,
            }
        )
    return rows


def _load_ms(engine: Engine, policy: Policy) -> float:
    """Milliseconds to load other weights."""
    other = replace(policy, layers=tuple(replace(layer, weight=layer.weight * 0.5) for layer in policy.layers))
    turns = itertools.cycle((policy, other))
    return 1e3 * statistics.median(timeit.repeat(lambda: engine.load(next(turns)), number=1, repeat=LOADS))


def _memory(network: str, policy: Policy, kinds: list[tuple[str, str]]) -> dict[tuple[str, str, int], float]:
    """Megabytes of a process per engine, precision and batch."""
    held = {}
    with tempfile.TemporaryDirectory() as folder:
        for engine, precision in kinds:
            path = Path(folder) / f"{precision}.onnx"
            if engine == "onnx":
                path.write_bytes(build(policy, Form(precision, safe_bits())).SerializeToString())  # type: ignore[arg-type]
            for batch, megabytes in call_in_child(memory_of, engine, network, str(path)).items():
                held[engine, precision, int(batch)] = megabytes
    return held
