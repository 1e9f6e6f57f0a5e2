"""Returns: sums of an agent's rewards over a whole episode, never discounted; and the world's metrics of an episode.

The return of an episode is the mean over the agents of the team (the predators, where the prey learns too);
the other side's is kept separately. Episodes cut short by a staggered start are not counted.
"""

import math
import warnings
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.envs.base import EnvSpec, Step

LONG = 10_000  # steps after which an episode without a limit is worth a warning


class Episode(NamedTuple):
    """The returns of one finished episode."""

    team: float  # mean over the agents of the team
    prey: float | None  # mean over the learning prey
    agents: tuple[float, ...] = ()  # each agent's
    metrics: tuple[float, ...] = ()  # what the world reports of it, in the order of the spec's names


class Estimate(NamedTuple):
    """A mean over episodes, and the half-width of its 95 % confidence interval."""

    mean: float
    ci95: float

    @classmethod
    def of(cls, values: NDArray[np.floating]) -> "Estimate":
        """The estimate from one value per episode."""
        return cls(float(values.mean()), confidence95(values))


Named = dict[str, NDArray[np.float64]]  # one value per episode (n,), by name


def columns(spec: EnvSpec, episodes: Collection[Episode]) -> dict[str, Named]:
    """What is reported of episodes beside the team's return: the fields of a result that have values by name.

    Returns of "agents" and of "groups" (the mean over a group's agents), and as "figures" what the world reports.
    """
    returns = np.array([episode.agents for episode in episodes]).reshape(-1, spec.agents)  # (n, N)
    metrics = np.array([episode.metrics for episode in episodes]).reshape(len(returns), len(spec.metrics))  # (n, F)
    return {
        "agents": {name: returns[:, i] for i, name in enumerate(spec.agent_names)},
        "groups": {name: returns[:, members].mean(1) for name, members in spec.groups.items()},
        "figures": {name: metrics[:, f] for f, name in enumerate(spec.metrics)},
    }


def means(named: Named) -> dict[str, float | None]:
    """The mean of each; None without episodes."""
    return {name: float(values.mean()) if len(values) else None for name, values in named.items()}


class ReturnTracker:
    """Sums rewards per copy and returns those of finished episodes."""

    def __init__(self, spec: EnvSpec, fresh: NDArray[np.bool_]) -> None:
        """`fresh` (E,): copies at the start of an episode; partial first episodes of the others are not counted."""
        self.team = spec.team or spec.agents
        self.sums = np.zeros((len(fresh), spec.agents))  # (E, N)
        self.counts = fresh.copy()  # (E,)
        self._unlimited = spec.name if spec.episode_length is None else None
        self._steps = np.zeros(len(fresh), np.int64)  # (E,)

    def add(self, step: Step) -> list[Episode]:
        """Add one step; returns the episodes that ended with it."""
        self.sums += step.reward
        if self._unlimited is not None:  # say why nothing seems to happen if agents do not end one, either
            self._steps = np.where(step.ended, 0, self._steps + 1)
            if LONG in self._steps:
                warnings.warn(
                    f"An episode of {self._unlimited} has taken {LONG:,} steps and there is no limit; "
                    "set `episode_length`.",
                    stacklevel=1,
                )
        if not step.ended.any():
            return []
        ended = []
        for copy in np.flatnonzero(step.ended):
            if self.counts[copy]:
                sums = self.sums[copy]
                prey = float(sums[self.team :].mean()) if self.team < len(sums) else None
                metrics = () if step.metrics is None else tuple(step.metrics[copy].tolist())
                ended.append(Episode(float(sums[: self.team].mean()), prey, tuple(sums.tolist()), metrics))
            self.sums[copy] = 0.0
            self.counts[copy] = True
        return ended

    def state(self) -> dict[str, NDArray]:
        return {"sums": self.sums, "counts": self.counts}

    def load_state(self, state: dict[str, NDArray]) -> None:
        self.sums[:] = state["sums"]
        self.counts[:] = state["counts"]


def confidence95(values: NDArray[np.floating]) -> float:
    """Half-width of the 95 % confidence interval of the mean (Student's t); NaN for fewer than two values."""
    n = len(values)
    if n < 2:
        return math.nan
    z, v = 1.959964, n - 1
    few = {1: 12.7062, 2: 4.30265, 3: 3.18245}  # Student's t quantile; the expansion is within 0.3 % from 4 on
    t = z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    return few.get(v, t) * float(np.std(values, ddof=1)) / math.sqrt(n)


def smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Moving average over a fortieth of all values on either side, fewer at the ends."""
    reach = len(values) // 40
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    first, end = np.maximum(index - reach, 0), np.minimum(index + reach + 1, len(values))
    return (sums[end] - sums[first]) / (end - first)
