"""Which transitions make a mini-batch: drawn evenly, also with a limit, or the neighbours in time of drawn ones.

Samplers are values; they see only how much history there is, never the data. `t` counts the transitions of a copy
from the start of the run; the live ones are oldest <= t < added. Copies may hold unequal numbers of them: all live
transitions of all copies are numbered through, copy by copy, and numbers are what is drawn.

Shape letters: E copies, C transitions per copy, M mini-batches, B batch.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.errors import UserError, check_choice, check_range
from shoal.plugins import load_class

SAMPLERS = ("uniform", "neighbor")

TRIES = 16  # draws of `Limited` per wanted transition before those that are left are listed one by one

Indices = NDArray[np.int64]


class History(Protocol):
    """What a sampler needs to know of a ring."""

    @property
    def oldest(self) -> Indices:
        """(E,) the oldest live transition of each copy."""

    @property
    def added(self) -> Indices:
        """(E,) one more than the newest transition of each copy."""


class Sampler(Protocol):
    """Draws the transitions of mini-batches."""

    @property
    def needs(self) -> int:
        """Live transitions that at least one copy must hold before anything can be drawn."""

    def draw(self, history: History, minibatches: int, batch: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
        """Copies (M, B) and transition numbers (M, B) of M mini-batches that are independent of each other."""


@dataclass(frozen=True)
class Uniform:
    """Every live transition of every copy is equally likely, with replacement."""

    @property
    def needs(self) -> int:
        return 1

    def draw(self, history: History, minibatches: int, batch: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
        words = rng.bit_generator.random_raw(minibatches * batch).reshape(minibatches, batch)
        return split(words, history.oldest, history.added - history.oldest)


@njit(cache=True)
def split(words: NDArray[np.uint64], oldest: Indices, live: Indices) -> tuple[Indices, Indices]:
    """Copies and transition numbers of random 64-bit words; a quarter of the time of a generator's bounded integers.

    Word w draws number floor(w · count / 2^64) of all copies' live transitions, of which there are fewer than 2^32.
    """
    ends, _, each = numbering(live)
    half, low, count = np.uint64(32), np.uint64(2**32 - 1), np.uint64(ends[-1])
    drawn = (((words >> half) * count + (((words & low) * count) >> half)) >> half).astype(np.int64)
    copies, transitions = np.empty_like(drawn), np.empty_like(drawn)
    for m in range(drawn.shape[0]):
        for b in range(drawn.shape[1]):
            copies[m, b], age = place(drawn[m, b], ends, each)
            transitions[m, b] = oldest[copies[m, b]] + age
    return copies, transitions


@njit(cache=True)
def numbering(live: Indices) -> tuple[Indices, int, int]:
    """(E,) where each copy's numbers end, the most that a copy holds, and what every copy holds, 0 if that differs."""
    ends, most, least, total = np.empty_like(live), live[0], live[0], 0
    for e in range(live.size):
        total += live[e]
        ends[e], most, least = total, max(most, live[e]), min(least, live[e])
    return ends, most, most if most == least else 0


@njit(cache=True)
def place(number: int, ends: Indices, each: int) -> tuple[int, int]:
    """The copy of a live transition, given by its number, and its age there; no search where all hold as many."""
    if each:
        return number // each, number % each
    copy = np.searchsorted(ends, number, side="right")
    return copy, number - (ends[copy - 1] if copy else 0)  # type: ignore[return-value]


@dataclass(frozen=True)
class Neighbor:
    """Centres are drawn evenly; the mini-batch is made of the transitions around them in their own copy.

    A neighbourhood is t - neighbors … t + neighbors in ascending order without t itself, clipped at the oldest and the
    newest live transition; neighbourhoods follow each other and the last one is cut, so that there are exactly B.
    """

    neighbors: int = 3
    """Half the width: up to 2 · neighbors transitions come from one centre."""
    include_center: bool = False
    """Take the drawn transition too."""

    def __post_init__(self) -> None:
        """Refuse a neighbourhood that is always empty."""
        check_range("neighbors", self.neighbors, 1)

    @property
    def needs(self) -> int:
        """Two transitions, unless the centre itself is taken: else the only one has no neighbour."""
        return 1 if self.include_center else 2

    def draw(self, history: History, minibatches: int, batch: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
        oldest, live = history.oldest, history.added - history.oldest
        ends, most, each = numbering(live)
        widest = min(2 * self.neighbors, most - 1) + self.include_center
        copies = np.empty((minibatches, batch), np.int64)
        transitions = np.empty((minibatches, batch), np.int64)
        for m in range(minibatches):
            filled = 0
            while filled < batch:  # again only where neighbourhoods were clipped
                centers = rng.integers(ends[-1], size=-((filled - batch) // widest))
                filled = _append_neighborhoods(
                    centers, oldest, live, ends, each, self.neighbors, self.include_center, copies[m], transitions[m],
                    filled,
                )  # fmt: skip
        return copies, transitions


@njit(cache=True)
def _append_neighborhoods(  # type: ignore[no-untyped-def]
    centers, oldest, live, ends, each, neighbors, include_center, copies, transitions, filled
):  # fmt: skip
    """Write the neighbourhoods of these live transitions from position `filled` on; return where they end."""
    for center in centers:
        copy, age = place(center, ends, each)
        for near in range(max(0, age - neighbors), min(live[copy], age + neighbors + 1)):
            if filled == copies.size:
                return filled
            if near != age or include_center:
                copies[filled] = copy
                transitions[filled] = oldest[copy] + near
                filled += 1
    return filled


class Limited:
    """Uniform over all live transitions that were drawn fewer than `most` times: Reverb's max_times_sampled.

    A transition that was drawn that often stays in the ring until it is overwritten, but is drawn no more.
    """

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
        """Continue from what `state` returned, with the same history; the ring may have had another capacity."""
        self._oldest[:], self._added[:] = history.oldest, history.added
        copies, numbers, _ = self._draws_left()
        self.times[copies, numbers % self.times.shape[1]] = times[copies, numbers % times.shape[1]]
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
    numbers: Indices, oldest: Indices, added: Indices, times: NDArray[np.uint16], most: int, copies: Indices,
    transitions: Indices,
) -> int:  # fmt: skip
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


class Checked:
    """A third-party sampler whose draws are checked, because the ring reads memory there without bounds checks."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name, self.sampler = name, load_class("sampler", name)(**options)
        if not callable(getattr(self.sampler, "draw", None)) or not isinstance(
            getattr(self.sampler, "needs", None), int
        ):
            raise UserError(f"`sampler` is {name}, but must be a class with `needs`, a whole number, and `draw`.")

    @property
    def needs(self) -> int:
        return max(1, self.sampler.needs)

    def draw(self, history: History, minibatches: int, batch: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
        """Copies (M, B) and transition numbers (M, B), refused unless all of them are live."""
        copies, transitions = (np.asarray(drawn) for drawn in self.sampler.draw(history, minibatches, batch, rng))
        shape, kinds = (minibatches, batch), {copies.dtype.kind, transitions.dtype.kind}
        if copies.shape != shape or transitions.shape != shape or not kinds <= set("iu"):
            raise UserError(
                f"draw() of {self.name} must return two arrays of whole numbers of shape {shape}, but returned "
                f"{copies.dtype} of {copies.shape} and {transitions.dtype} of {transitions.shape}."
            )
        oldest, added = np.asarray(history.oldest), np.asarray(history.added)
        if copies.min() < 0 or copies.max() >= oldest.size:
            raise UserError(f"draw() of {self.name} returned copies that are not from 0 to {oldest.size - 1}.")
        if (transitions < oldest[copies]).any() or (transitions >= added[copies]).any():
            raise UserError(f"draw() of {self.name} returned transitions that are not from oldest to added - 1.")
        return copies.astype(np.int64, copy=False), transitions.astype(np.int64, copy=False)


def make_sampler(
    name: str, neighbors: int = 3, include_center: bool = False, options: dict[str, Any] | None = None
) -> Sampler:
    """The sampler called `uniform` or `neighbor`, which has the next two arguments, or a third-party one with options.

    `name` may also be `MODULE:CLASS`.
    """
    if ":" in name:
        return Checked(name, options or {})
    check_choice("sampler", name, SAMPLERS)
    return Uniform() if name == "uniform" else Neighbor(neighbors, include_center)


def can_sample(history: History, sampler: Sampler) -> bool:
    """Whether the ring holds enough for this sampler."""
    return bool((history.added - history.oldest).max() >= sampler.needs)
