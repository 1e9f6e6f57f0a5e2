"""States that a policy visits: exports are checked, and ranges calibrated, on them.

Shape letters: E copies, B rows, N agents, O observation.
"""

from pathlib import Path

import numpy as np

from shoal.envs.base import EnvSpec, VectorEnv
from shoal.policies.trained import Array
from shoal.replay.layout import RowLayout
from shoal.runs.checkpoint import newest_segment
from shoal.runs.folder import CHECKPOINTS
from shoal.training.evaluation import Act

STATES = 512
"""Number of states for checking and calibrating an export."""


def meet(env: VectorEnv, act: Act, rng: np.random.Generator, steps: int, count: int = STATES) -> Array:
    """(B, N, O): states of `env` while `act` plays this many steps; closes the world."""
    observation = env.reset()
    seen = [observation.copy()]
    try:
        for _ in range(steps):
            observation = env.step(act(observation)).observation
            seen.append(observation.copy())
    finally:
        env.close()
    met = np.concatenate(seen)
    return met[rng.choice(len(met), min(count, len(met)), replace=False)]


def replayed(folder: Path, spec: EnvSpec, storage: str, rng: np.random.Generator, count: int = STATES) -> Array | None:
    """(B, N, O): observations from the newest part of a run's replay; None if that is not on disk."""
    held = newest_segment(folder / CHECKPOINTS)
    if held is None:
        return None
    rows = held["rows"][rng.integers(len(held["rows"]), size=count)]
    return RowLayout.of(spec, storage).observations(rows)


class Thinned:
    """Collects states, at most this many: whenever it is full, every second one is dropped and the stride doubles."""

    def __init__(self, most: int) -> None:
        self.most, self.rows = most, list[Array]()  # each (N, O)
        self.stride, self.met = 1, 0

    def add(self, observation: Array) -> None:
        """Collect from (E, N, O) what the stride selects."""
        for row in observation:
            if self.met % self.stride == 0:
                self.rows.append(row.copy())
                if len(self.rows) > self.most:
                    self.rows, self.stride = self.rows[::2], 2 * self.stride
            self.met += 1

    def array(self) -> Array:
        """(B, N, O)."""
        return np.stack(self.rows)
