"""Addresses for the cache model: which bytes the engine's sampler touches in a ring, in the order it touches them.

Everything is a list of ranges (K, 2), address and length in bytes; a range of length 0 is one that did not happen.
What `gather.py` reads and writes, run by one thread: `locate` over all rows, then chunk by chunk the joint vectors and
the outcomes. A copied block is a read and then a write. The prefetches are left out: they bring a line sooner, not more
often. So is drawing the numbers: only the drawn ones are read.

Shape letters: E copies, R rows per copy, W words per row, C transitions per copy, M mini-batches, B batch, N agents,
K ranges.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.envs.base import EnvSpec, stagger_offsets
from shoal.errors import UserError, check_choice, counted
from shoal.replay import STORAGES
from shoal.replay.gather import CHUNK
from shoal.replay.layout import RowLayout, ring_bytes, rows_needed

Ints = NDArray[np.int64]

NOWHERE = 2**46  # where invented addresses begin: no allocator gets there
PAGE = 4096


def touches(*accesses: tuple[ArrayLike, ArrayLike]) -> Ints:
    """(rows, K, 2) of K addresses and lengths, each for all rows or one for each."""
    rows = np.broadcast_shapes(*(np.shape(value) for access in accesses for value in access))[0]
    ranges = np.empty((rows, len(accesses), 2), np.int64)
    for k, (address, length) in enumerate(accesses):
        ranges[:, k, 0] = address
        ranges[:, k, 1] = length
    return ranges


def laid_out(sizes: Iterable[int], first: int = NOWHERE) -> list[int]:
    """Invented addresses of arrays one after the other as the allocator puts large ones: 16 bytes into a page."""
    places = []
    for size in sizes:
        places.append(first + 16)
        first += -(-(size + 16) // PAGE) * PAGE
    return places


class Places(NamedTuple):
    """Addresses where the arrays of a ring and of a sample from it begin."""

    words: int  # (E, R, W)
    start: int  # (E, C)
    joint: int  # (M, B, J)
    next_joint: int  # (M, B, J)
    reward: int  # (M, B, N)
    terminated: int  # (M, B, N)
    alive: int  # (M, B, N)
    copies: int  # (M, B)
    transitions: int  # (M, B)
    at: int  # (M·B,)
    after: int  # (M·B,)


class VirtualRing:
    """A full ring that takes no memory: where everything would lie, for a ring of any size.

    Samplers draw from it as from a real one. Episodes end as in a world of fixed length, staggered; in a world without
    a fixed length none ever does.
    """

    def __init__(self, spec: EnvSpec, copies: int, capacity: int, storage: str = "float32") -> None:
        check_choice("storage", storage, STORAGES)
        if not 1 <= copies <= capacity:
            raise UserError(
                f"A ring of {counted(capacity, 'transition')} for {counted(copies, 'copy', 'copies')} is not possible: "
                "it must have at least one copy, and one transition for each."
            )
        self.spec, self.copies, self.layout = spec, copies, RowLayout.of(spec, storage)
        self.capacity_per_copy = capacity // copies  # C
        self.rows = rows_needed(spec, self.capacity_per_copy)  # R
        self.nbytes = ring_bytes(spec, self.layout, copies, self.capacity_per_copy)
        self.oldest = np.zeros(copies, np.int64)  # (E,) the first transition of the run
        self.added = np.full(copies, self.capacity_per_copy)  # (E,) as many as the ring holds

    def begin(self, copies: Ints, transitions: Ints) -> Ints:
        """Row numbers where these transitions start: every end of an episode before them has left a dead row."""
        length = self.spec.episode_length if self.spec.fixed_length else None
        if length is None:
            return transitions
        offsets = stagger_offsets(self.copies, length)
        return transitions + (offsets[copies] + transitions) // length

    def places(self, rows: int) -> Places:
        """Invented addresses for a ring and a sample of this many transitions."""
        layout, start = self.layout, 8 * self.copies * self.capacity_per_copy
        joint, each = 4 * rows * layout.joint_size, rows * layout.agents
        indices = (8 * rows,) * 4
        return Places(*laid_out((self.nbytes - start, start, joint, joint, 4 * each, each, each, *indices)))

    def ranges(self, copies: Ints, transitions: Ints) -> Ints:
        """What gathering these drawn transitions would touch; see `engine_ranges`."""
        chosen, numbers = copies.ravel(), transitions.ravel()
        places, begin = self.places(chosen.size), self.begin(chosen, numbers)
        return engine_ranges(self.layout, self.rows, self.capacity_per_copy, places, chosen, numbers, begin)


def engine_ranges(
    layout: RowLayout,
    rows: int,
    capacity: int,
    places: Places,
    copies: Ints,  # (M·B,)
    transitions: Ints,  # (M·B,)
    begin: Ints,  # (M·B,)  the row number where each transition starts
) -> Ints:
    """What gathering these transitions touches in a ring of R rows and C transitions per copy."""
    i = np.arange(copies.size)
    start = places.start + 8 * (copies * capacity + transitions % capacity)
    at, after = copies * rows + begin % rows, copies * rows + (begin + 1) % rows
    index = touches((places.copies + 8 * i, 8), (places.transitions + 8 * i, 8), (places.at + 8 * i, 8))
    locate = touches(
        (places.at + 8 * i, 8),
        (start, 8),
        (places.copies + 8 * i, 8),
        (places.at + 8 * i, 8),
        (places.after + 8 * i, 8),
    )
    fill = _gather_floats if layout.kind == 0 else _gather_halves
    gathered = fill(layout, places, at, after, i)
    outcomes = _gather_outcomes(layout, places, at, i)
    chunked = np.concatenate([_by_chunk(gathered), _by_chunk(outcomes)], axis=1)
    return np.concatenate([part.reshape(-1, 2) for part in (index, locate, chunked)])


def _by_chunk(accesses: Ints) -> Ints:
    """(chunks, CHUNK · K, 2) of (rows, K, 2), the last chunk filled up with nothing."""
    rows, each, _ = accesses.shape
    filled = np.zeros((-(-rows // CHUNK) * CHUNK, each, 2), np.int64)
    filled[:rows] = accesses
    return filled.reshape(-1, CHUNK * each, 2)


def _gather_floats(layout: RowLayout, places: Places, at: Ints, after: Ints, i: Ints) -> Ints:
    """Both joint vectors from float32 rows."""
    width, size, joint = 4 * layout.words, layout.observation_words, layout.joint_size
    actions, target, next_target = joint - size, places.joint + 4 * i * joint, places.next_joint + 4 * i * joint
    return touches(
        (places.at + 8 * i, 8),
        (places.words + at * width, 4 * joint),
        (target, 4 * joint),
        (places.after + 8 * i, 8),
        (places.words + after * width, 4 * size),
        (next_target, 4 * size),
        (next_target + 4 * size, 4 * actions),
    )


def _gather_halves(layout: RowLayout, places: Places, at: Ints, after: Ints, i: Ints) -> Ints:
    """Both joint vectors from 16-bit rows, a next observation from the batch where it has been widened there."""
    width, size, joint = 4 * layout.words, layout.agents * layout.observation_size, layout.joint_size
    actions, target, next_target = joint - size, places.joint + 4 * i * joint, places.next_joint + 4 * i * joint
    first, last = i % CHUNK == 0, (i % CHUNK == CHUNK - 1) | (i == i.size - 1)
    follows = ~first & (at == np.roll(after, 1))  # the row before has this one as its next
    alone = last | (np.roll(at, -1) != after)
    return touches(
        (places.at + 8 * i, 8),
        (places.words + at * width, 2 * size),
        (target, 4 * size),
        (places.words + at * width + 4 * layout.observation_words, 4 * actions),
        (target + 4 * size, 4 * actions),
        (next_target + 4 * size, 4 * actions),
        (target, 4 * size * follows),
        (next_target - 4 * joint, 4 * size * follows),
        (places.after + 8 * i, 8 * alone),
        (places.words + after * width, 2 * size * alone),
        (next_target, 4 * size * alone),
    )


def _gather_outcomes(layout: RowLayout, places: Places, at: Ints, i: Ints) -> Ints:
    """Rewards and flags."""
    agents, flags = layout.agents, places.words + 4 * (at * layout.words + layout.words - layout.agents)
    return touches(
        (places.at + 8 * i, 8),
        (flags, 4 * agents),
        (flags - 4 * agents, 4 * agents),
        (places.reward + 4 * i * agents, 4 * agents),
        (places.terminated + i * agents, agents),
        (places.alive + i * agents, agents),
    )
