"""Recent states that the learner hands to the quantizer behind the policy's numbers, to correct biases on.

Shape letters: S states, N agents, O observation.
"""

import numpy as np
from numpy.typing import NDArray

from shoal.envs.base import EnvSpec
from shoal.inference.layers import Array
from shoal.inference.policy import Policy

MOST = 256
"""States, as far as a version's correction takes no more than so many multiplications: large networks get fewer."""
MULTIPLICATIONS = 2**28
THIN = 4
"""One of so many successive states is kept: neighbours are alike."""


def states_for(policy: Policy) -> int:
    """How many states a policy of this size is corrected on."""
    return max(8, min(MOST, MULTIPLICATIONS // policy.parameters))


class RecentStates:
    """The last states that came in, as one row of numbers: how many there are, and the states."""

    def __init__(self, most: int, spec: EnvSpec) -> None:
        self.shape = most, spec.agents, spec.observation_size
        self.row = np.zeros((2 + most * spec.agents * spec.observation_size + 1) // 2 * 2 if most else 0, np.float32)
        self._states = self.row[2 : 2 + int(np.prod(self.shape))].reshape(self.shape) if most else None
        self._met = 0

    def behind(self, numbers: Array) -> Array:
        """A copy of the policy's numbers, with the states behind them."""
        return np.concatenate([numbers, self.row])

    def add(self, observation: NDArray[np.float32]) -> None:
        """Keep some of these observations (…, N, O)."""
        if self._states is None:
            return
        most, *seen = self.shape
        rows = observation.reshape(-1, *seen)[::THIN][-most:]
        self._states[(self._met + np.arange(len(rows))) % most] = rows
        self._met += len(rows)
        self.row[0] = min(self._met, most)


def states_in(row: Array, seen: tuple[int, int]) -> Array:
    """(S, N, O): the states in such a row; observations are `seen` (N, O)."""
    count = int(row[0]) if len(row) else 0
    return row[2 : 2 + count * seen[0] * seen[1]].reshape(count, *seen)
