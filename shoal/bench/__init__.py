"""The project's ratios against peers and limits; both sides of each are measured in one run."""

import importlib
import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from shoal.errors import UserError
from shoal.results import Result, Table

BENCHES = {
    "env": "steps/s of our worlds over mpe2's",
    "update": "time of one update of all trainers over its bare matrix products",
    "replay": "bytes/s of the samplers over a contiguous copy",
    "phases": "share of sampling in an update, of acting in training; what neighbour sampling saves",
    "checkpoint": "time of a checkpoint over the training between two of them",
    "train": "steps/s of whole training over the reference's, and over the ceiling of its bare products",
    "steady": "steps/s of whole training beside busy neighbours over those on a free machine",
    "gemm": "emulated matrix products beside float32 ones of the same shape",
    "quantize": "ns an element beside a copy",
    "qat": "quantization-aware training beside plain training",
    "actorq": "env steps/s of a running system with quantized actors over those of float32 actors in PyTorch",
    "inference": "engines and precisions beside PyTorch: latency, memory, loading of weights",
}


def parts(name: str, agents: tuple[int, ...] = (), alone: bool = True) -> tuple[Any, ...]:
    """What a bench is measured in: the numbers of agents asked for, or its own parts.

    A bench that takes no numbers of agents refuses to be given some, unless others run beside it.
    """
    if any(not 1 <= n <= 1024 for n in agents):
        raise UserError(f"--agents is {agents}, but each must be from 1 to 1024.")
    first = next(iter(inspect.signature(_module(name).run).parameters.values()))
    if first.name == "agents":
        return agents or tuple(first.default)
    if agents and alone:
        raise UserError(f"--agents is {agents}, but bench {name} takes no numbers of agents; leave it out.")
    return tuple(first.default)


def run_benches(names: Sequence[str], agents: tuple[int, ...], advance: Callable[[], None]) -> Result:
    """A table of each bench; `advance` is called at the end of every part."""
    work = {name: parts(name, agents, alone=len(names) == 1) for name in names}
    tables, every = [], []
    for name, own in work.items():
        rows = []
        for part in own:
            rows += _module(name).run((part,))
            advance()
        tables.append(Table.of(f"shoal bench {name}: {BENCHES[name]}", rows, _module(name).Row))
        every += [{"bench": name, **row} for row in rows]
    return Result("bench", "Benches", tables, data={"rows": every})


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"shoal.bench.{name}")
