"""A sampler that draws no transition more often than a number of times: Reverb's max_times_sampled.

A transition that was drawn that often stays in the ring until it is overwritten, but is drawn no more.
Shape letters: E copies, C transitions per copy, M mini-batches, B batch.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from shoal.replay.samplers import History, Indices

TRIES = 16
"""Draws per wanted transition before those that are left are listed one by one."""


class Limited:
    """Uniform over all live transitions that were drawn fewer than `most` times."""

    needs = 1

    def __init__(self, most: int, copies: int, capacity_per_copy: int) -> None:
        self.most = most
        self.times = np.zeros((copies, capacity_per_copy), np.uint16)  # (E, C)  draws of the transition kept there
        self._seen = np.zeros(copies, np.int64)  # (E,)  transitions up to these numbers have their counts

    def __str__(self) -> str:
        return f"a sampler that draws each transition at most {self.most} times"

    def left(self, history: History) -> int:
        """How many more draws the live transitions allow."""
        self._notice(history)
        return int(_left(self.times, history.oldest, history.added, self.most))

    def draw(self, history: History, minibatches: int, batch: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
        """Copies (M, B) and transition numbers (M, B); as many draws must be left."""
        self._notice(history)
        copies, transitions = np.empty(minibatches * batch, np.int64), np.empty(minibatches * batch, np.int64)
        oldest, added = np.asarray(history.oldest), np.asarray(history.added)
        total = int((added - oldest).sum())
        filled = _draw(rng.integers(total, size=TRIES * copies.size), oldest, added, self.times, self.most, copies,
                       transitions)  # fmt: skip
        if filled < copies.size:  # few are left: choose among them alone
            eligible = _eligible(self.times, oldest, added, self.most)
            chosen = rng.permutation(eligible)[: copies.size - filled]
            copies[filled:], transitions[filled:] = chosen[:, 0], chosen[:, 1]
            np.add.at(self.times, (chosen[:, 0], chosen[:, 1] % self.times.shape[1]), np.uint16(1))
        return copies.reshape(minibatches, batch), transitions.reshape(minibatches, batch)

    def state(self, history: History) -> NDArray[np.uint16]:
        """(E, C) how often the transition in each place was drawn, for a checkpoint."""
        self._notice(history)
        return self.times.copy()

    def load_state(self, times: NDArray[np.uint16], history: History) -> None:
        """Continue from what `state` returned, with the same history."""
        self.times[:] = times
        self._seen[:] = history.added

    def _notice(self, history: History) -> None:
        """Transitions that came since the last look have not been drawn yet."""
        _forget(self.times, self._seen, np.asarray(history.added))


@njit(cache=True)
def _forget(times: NDArray[np.uint16], seen: Indices, added: Indices) -> None:
    capacity = times.shape[1]
    for e in range(seen.size):
        for t in range(max(seen[e], added[e] - capacity), added[e]):
            times[e, t % capacity] = 0
        seen[e] = added[e]


@njit(cache=True)
def _left(times: NDArray[np.uint16], oldest: Indices, added: Indices, most: int) -> int:
    total = 0
    for e in range(oldest.size):
        for t in range(oldest[e], added[e]):
            total += most - times[e, t % times.shape[1]]
    return total


@njit(cache=True)
def _draw(
    numbers: Indices,
    oldest: Indices,
    added: Indices,
    times: NDArray[np.uint16],
    most: int,
    copies: Indices,
    transitions: Indices,
) -> int:
    """Take from these numbers of live transitions those that may still be drawn; returns how many there were."""
    ends = np.cumsum(added - oldest)
    filled = 0
    for number in numbers:
        if filled == copies.size:
            break
        e = np.searchsorted(ends, number, side="right")
        t = added[e] - ends[e] + number
        if times[e, t % times.shape[1]] < most:
            times[e, t % times.shape[1]] += 1
            copies[filled], transitions[filled] = e, t
            filled += 1
    return filled


@njit(cache=True)
def _eligible(times: NDArray[np.uint16], oldest: Indices, added: Indices, most: int) -> Indices:
    """(draws left, 2): copy and number of every live transition, as often as it may still be drawn."""
    found = np.empty((_left(times, oldest, added, most), 2), np.int64)
    filled = 0
    for e in range(oldest.size):
        for t in range(oldest[e], added[e]):
            for _ in range(most - times[e, t % times.shape[1]]):
                found[filled, 0], found[filled, 1] = e, t
                filled += 1
    return found
