"""A sampler that draws no transition more often than a number of times: Reverb's max_times_sampled.

A transition that was drawn that often stays in the ring until it is overwritten, but is drawn no more.
Shape letters: E copies, C transitions per copy, M mini-batches, B batch.
"""

import numpy as np
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.replay.samplers import History, Indices

TRIES = 16
"""Draws per wanted transition before those that are left are listed one by one."""


class Limited:
    """Uniform over all live transitions that were drawn fewer than `most` times."""

    needs = 1

    def __init__(self, most: int, copies: int, capacity_per_copy: int) -> None:
        self.most = most
        self.times = np.zeros((copies, capacity_per_copy), np.uint16)  # (E, C)  draws of the transition kept there
        self._oldest, self._added = np.zeros((2, copies), np.int64)  # (E,)  the live transitions at the last look
        self._left = 0  # draws that those allow

    def __str__(self) -> str:
        return f"a sampler that draws each transition at most {self.most} times"

    def left(self, history: History) -> int:
        """How many more draws the live transitions allow."""
        self._notice(history)
        return self._left

    def draw(self, history: History, minibatches: int, batch: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
        """Copies (M, B) and transition numbers (M, B); as many draws must be left."""
        self._notice(history)
        copies, transitions = np.empty(minibatches * batch, np.int64), np.empty(minibatches * batch, np.int64)
        numbers = rng.integers((self._added - self._oldest).sum(), size=TRIES * copies.size)
        filled = _draw(numbers, self._oldest, self._added, self.times, self.most, copies, transitions)
        if filled < copies.size:  # few are left: choose among them alone
            *live, draws = self._draws_left()
            chosen = rng.permutation(np.repeat(np.stack(live, axis=1), draws, axis=0))[: copies.size - filled]
            copies[filled:], transitions[filled:] = chosen[:, 0], chosen[:, 1]
            np.add.at(self.times, (chosen[:, 0], chosen[:, 1] % self.times.shape[1]), np.uint16(1))
        self._left -= copies.size
        return copies.reshape(minibatches, batch), transitions.reshape(minibatches, batch)

    def state(self, history: History) -> NDArray[np.uint16]:
        """(E, C) how often the transition in each place was drawn, for a checkpoint."""
        self._notice(history)
        return self.times.copy()

    def load_state(self, times: NDArray[np.uint16], history: History) -> None:
        """Continue from what `state` returned, with the same history."""
        self.times[:] = times
        self._oldest[:], self._added[:] = history.oldest, history.added
        self._left = int(self._draws_left()[2].sum())

    def _draws_left(self) -> tuple[Indices, Indices, Indices]:
        """Copy and number of every live transition, and how often it may still be drawn."""
        live = self._added - self._oldest
        copies = np.repeat(np.arange(live.size), live)
        numbers = np.arange(live.sum()) + np.repeat(self._added - np.cumsum(live), live)
        return copies, numbers, self.most - self.times[copies, numbers % self.times.shape[1]].astype(np.int64)

    def _notice(self, history: History) -> None:
        """Take out what is no longer live since the last look, and put in what came: that has not been drawn yet."""
        oldest, added = np.asarray(history.oldest), np.asarray(history.added)
        self._left += int(_change(self.times, self._oldest, self._added, oldest, added, self.most))
        self._oldest[:], self._added[:] = oldest, added


@njit(cache=True)
def _change(
    times: NDArray[np.uint16], was_oldest: Indices, was_added: Indices, oldest: Indices, added: Indices, most: int
) -> int:
    """Set the counts of new transitions to 0; returns how many more draws the live ones allow than before."""
    capacity, more = times.shape[1], 0
    for e in range(oldest.size):
        for t in range(was_oldest[e], min(oldest[e], was_added[e])):  # first: a new one may be kept in its place
            more -= most - times[e, t % capacity]
        for t in range(max(oldest[e], was_added[e]), added[e]):
            times[e, t % capacity] = 0
            more += most
    return more


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
