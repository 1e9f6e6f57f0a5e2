"""Benchmarks against other implementations and hardware limits; both sides are measured in the same run."""

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from shoal.errors import UserError
from shoal.results import Result, Table

BENCHES = {
    "env": "steps/s of Shoal's worlds relative to mpe2's, and to JaxMARL's where it is installed",
    "workers": "steps/s of a slow environment in worker processes relative to one process",
    "update": "time of one update of all trainers, native and in torch, relative to its bare matrix products",
    "replay": "bytes/s of the samplers relative to a contiguous copy",
    "phases": "share of sampling in an update and of acting in training; time saved by neighbour sampling",
    "checkpoint": "time of a checkpoint relative to the training between two of them",
    "train": "steps/s of whole training relative to torch's, to the reference's and to the limit of its bare products",
    "steady": "steps/s of whole training under other load relative to an idle machine",
    "startup": "start-up: CPU time of short commands relative to that of `import torch` alone",
    "gemm": "emulated matrix products compared with float32 ones of the same shape",
    "emulated-training": "a training step through a MAC unit compared with the same step in float32",
    "quantize": "ns per element compared with a copy",
    "qat": "quantization-aware training compared with plain training",
    "inference": "engines and precisions compared with PyTorch: latency, memory, loading weights",
    "actorq": "env steps/s of a running system with quantized actors relative to float32 actors in PyTorch",
    "cluster": "env steps/s of a running system on a local Ray relative to shared memory",
}

OF_AGENTS = ("checkpoint", "env", "phases", "replay", "steady", "train", "update")
"""Benches whose parts are numbers of agents."""
Record = dict[str, Any]  # what was measured: both sides' numbers, their ratio, and the goal if there is one


def parts(name: str, agents: tuple[int, ...] = (), alone: bool = True) -> tuple[Any, ...]:
    """The parts of a bench: the given numbers of agents, or its own parts.

    A bench that takes no numbers of agents refuses them, unless it runs together with others.
    """
    given = ",".join(map(str, agents))
    if any(not 1 <= n <= 1024 for n in agents):
        raise UserError(f"`agents` is {given}, but each must be from 1 to 1024.")
    if agents and alone and name not in OF_AGENTS:  # before the module, which imports torch
        raise UserError(f"`agents` is {given}, but bench {name} takes no numbers of agents; leave it out.")
    return agents if agents and name in OF_AGENTS else tuple(_module(name).PARTS)


def run_benches(names: Sequence[str], agents: tuple[int, ...], advance: Callable[[], None]) -> Result:
    """One table per bench; `advance` is called at the end of every part."""
    work = {name: parts(name, agents, alone=len(names) == 1) for name in names}
    tables, data = [], []
    for name, parts_of in work.items():
        records: list[Record] = []
        for part in parts_of:
            records += _module(name).run(part)
            advance()
        tables.append(Table.of(f"shoal bench {name}: {BENCHES[name]}", records, _module(name).COLUMNS))
        data += [{"bench": name, **record} for record in records]
    return Result("bench", "Benches", tables, data={"rows": data})


def _module(name: str) -> ModuleType:
    """A bench: its `PARTS`, what `run` measures of one of them, and `COLUMNS` with units or other headings."""
    return importlib.import_module(f"shoal.bench.{name.replace('-', '_')}")
