"""The project's ratios against peers and limits; both sides of each are measured in one run."""

import importlib
import inspect
from types import ModuleType
from typing import Any

from shoal.errors import UserError

BENCHES = {
    "env": "steps/s of our worlds over mpe2's",
    "update": "time of one update of all trainers over its bare matrix products",
    "replay": "bytes/s of the samplers over a contiguous copy",
    "phases": "share of sampling in an update, of acting in training; what neighbour sampling saves",
    "checkpoint": "time of a checkpoint over the training between two of them",
    "train": "steps/s of whole training over the reference's, and over the ceiling of its bare products",
}


def sizes(name: str, agents: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The numbers of agents that a bench goes through: the ones asked for, or its own."""
    if any(not 1 <= n <= 1024 for n in agents):
        raise UserError(f"--agents is {agents}, but each must be from 1 to 1024.")
    own: tuple[int, ...] = inspect.signature(_module(name).run).parameters["agents"].default
    return agents or own


def run_bench(name: str, agents: int) -> list[dict[str, Any]]:
    """The rows of one bench for one number of agents."""
    rows: list[dict[str, Any]] = _module(name).run(agents=(agents,))
    return rows


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"shoal.bench.{name}")
