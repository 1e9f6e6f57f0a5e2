"""The board: a few numbers of every process that all processes see. Each number has one writer."""

import numpy as np
from numpy.typing import NDArray

from shoal.system.shared_memory import LINE, SharedMemory

COUNTS = ("ticks", "steps", "pulls", "bytes", "refused", "number")
SECONDS = ("act", "environment", "pull", "load", "wait", "deserialize")
"""Deserializing, turning bytes into numbers, is a part of loading."""


class Board:
    """Flags of the learner, then two cache lines for each child process: its COUNTS and its SECONDS."""

    def __init__(self, children: int, memory: SharedMemory | None = None) -> None:
        self.memory = memory or SharedMemory(LINE * (1 + 2 * children))
        self._flags = self.memory.array(np.int64, (LINE // 8,))
        self._counts = self.memory.array(np.int64, (children, 8), LINE)
        self._seconds = self.memory.array(np.float64, (children, 8), LINE * (1 + children))
        self.counts: dict[str, NDArray[np.int64]] = dict(zip(COUNTS, self._counts.T, strict=False))
        """COUNTS by name, each an array with an entry for every child."""
        self.seconds: dict[str, NDArray[np.float64]] = dict(zip(SECONDS, self._seconds.T, strict=False))
        """SECONDS in the same way."""

    @property
    def stopping(self) -> bool:
        """Whether all children are to end."""
        return bool(self._flags[0])

    def stop(self) -> None:
        """Tell all children to end."""
        self._flags[0] = 1

    @property
    def round(self) -> int:
        """In lock-step: the round that actors may play."""
        return int(self._flags[1])

    @round.setter
    def round(self, number: int) -> None:
        self._flags[1] = number

    @property
    def exploration(self) -> float:
        """How much the actors explore, where that changes with the run."""
        return float(self._flags[2:3].view(np.float64)[0])

    @exploration.setter
    def exploration(self, value: float) -> None:
        self._flags[2:3].view(np.float64)[0] = value

    def take(self, child: int) -> NDArray[np.uint8]:
        """A child's numbers as bytes, for a board elsewhere; here they start again at 0."""
        numbers = np.concatenate([self._counts[child].view(np.uint8), self._seconds[child].view(np.uint8)])
        self._counts[child], self._seconds[child] = 0, 0
        return numbers

    def give(self, child: int, numbers: NDArray[np.uint8]) -> None:
        """Add what `take` took from another board."""
        counts, seconds = np.frombuffer(numbers.tobytes(), np.int64).reshape(2, -1)
        self._counts[child] += counts
        self._seconds[child] += seconds.view(np.float64)
