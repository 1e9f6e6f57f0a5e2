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
        self.children = children
        self.memory = memory or SharedMemory(LINE * (1 + 2 * children))
        self._flags = self.memory.array(np.int64, (LINE // 8,))
        self._counts = self.memory.array(np.int64, (children, 8), LINE)
        self._seconds = self.memory.array(np.float64, (children, 8), LINE * (1 + children))

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

    def count(self, child: int, name: str) -> int:
        """One of a child's COUNTS."""
        return int(self._counts[child, COUNTS.index(name)])

    def add(self, child: int, name: str, amount: int = 1) -> None:
        """Add to one of a child's COUNTS."""
        self._counts[child, COUNTS.index(name)] += amount

    def set(self, child: int, name: str, value: int) -> None:
        """Set one of a child's COUNTS."""
        self._counts[child, COUNTS.index(name)] = value

    def seconds(self, child: int, name: str) -> float:
        """One of a child's SECONDS."""
        return float(self._seconds[child, SECONDS.index(name)])

    def spend(self, child: int, name: str, seconds: float) -> None:
        """Add to one of a child's SECONDS."""
        self._seconds[child, SECONDS.index(name)] += seconds

    def numbers(self, child: int) -> tuple[dict[str, int], dict[str, float]]:
        """All of a child's COUNTS and SECONDS by name."""
        return {name: self.count(child, name) for name in COUNTS}, {name: self.seconds(child, name) for name in SECONDS}

    def take(self, child: int) -> NDArray[np.uint8]:
        """A child's counts and seconds as bytes, for a board elsewhere; here they start again at 0."""
        lines = np.concatenate([self._counts[child].view(np.uint8), self._seconds[child].view(np.uint8)])
        self._counts[child], self._seconds[child] = 0, 0
        return lines

    def give(self, child: int, lines: NDArray[np.uint8]) -> None:
        """Add what `take` took from another board."""
        counts, seconds = lines.reshape(2, LINE)
        self._counts[child] += np.frombuffer(counts.tobytes(), np.int64)
        self._seconds[child] += np.frombuffer(seconds.tobytes(), np.float64)
