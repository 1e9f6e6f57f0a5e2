"""Returns: sums of an agent's rewards over a whole episode, never discounted.

The return of an episode is the mean over the agents of the team (the predators, where the prey learns too);
the other side's is kept apart. Episodes that a staggered start cut short count nowhere.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.envs.base import Step, VectorEnv


class Episode(NamedTuple):
    """The returns of one finished episode, per agent."""

    team: float
    prey: float | None


class ReturnTracker:
    """Adds up rewards copy by copy and hands out the returns of episodes that ended."""

    def __init__(self, env: VectorEnv) -> None:
        """To be made right after `env.reset()`: copies that are in the middle of an episode do not count at first."""
        agents = env.spec.agents
        self.team = env.spec.team or agents
        self.sums = np.zeros((env.copies, agents))  # (E, N)
        self.counts = env.episode_step == 0  # (E,)

    def add(self, step: Step) -> list[Episode]:
        """Take in one step; returns the episodes that ended with it."""
        self.sums += step.reward
        if not step.ended.any():
            return []
        ended = []
        for copy in np.flatnonzero(step.ended):
            if self.counts[copy]:
                sums = self.sums[copy]
                prey = float(sums[self.team :].mean()) if self.team < len(sums) else None
                ended.append(Episode(float(sums[: self.team].mean()), prey))
            self.sums[copy] = 0.0
            self.counts[copy] = True
        return ended

    def state(self) -> dict[str, NDArray]:
        """Running sums, as arrays."""
        return {"sums": self.sums, "counts": self.counts}

    def load_state(self, state: dict[str, NDArray]) -> None:
        """Continue from what `state` returned."""
        self.sums[:] = state["sums"]
        self.counts[:] = state["counts"]


def confidence95(values: NDArray[np.floating]) -> float:
    """Half-width of the 95 % confidence interval of the mean (Student's t); NaN for fewer than two values."""
    n = len(values)
    if n < 2:
        return math.nan
    z, v = 1.959964, n - 1
    few = {1: 12.7062, 2: 4.30265, 3: 3.18245}  # Student's quantile; from 4 on its expansion is good to 0.3 %
    t = z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    return few.get(v, t) * float(np.std(values, ddof=1)) / math.sqrt(n)


def smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each value averaged with a fortieth of all values on either side; at the ends, with those there are."""
    reach = len(values) // 40
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    first, end = np.maximum(index - reach, 0), np.minimum(index + reach + 1, len(values))
    return (sums[end] - sums[first]) / (end - first)
