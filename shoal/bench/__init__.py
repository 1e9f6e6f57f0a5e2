"""The project's ratios against peers and limits; both sides of each are measured in one run."""

import importlib
from typing import Any

from shoal.errors import UserError

BENCHES = {
    "env": "steps/s of our worlds over mpe2's",
    "update": "time of one update of all trainers over its bare matrix products",
    "replay": "bytes/s of the samplers over a contiguous copy",
    "train": "steps/s of whole training over the ceiling of its bare matrix products",
}


def run_bench(name: str, agents: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """The rows of one bench, for these numbers of agents or its own."""
    if any(not 1 <= n <= 1024 for n in agents):
        raise UserError(f"--agents is {agents}, but each must be from 1 to 1024.")
    module = importlib.import_module(f"shoal.bench.{name}")
    rows: list[dict[str, Any]] = module.run(agents=agents) if agents else module.run()
    return rows
