"""Which bytes of memory a sampler touches, in the order it touches them: what the cache model is fed with.

Everything is a list of ranges (K, 2), address and length in bytes; a range of length 0 is one that did not happen.

Engine (`ring_ranges`, `VirtualRing`): what `gather.py` reads and writes, run by one thread: `locate` over all rows,
then chunk by chunk the joint vectors and the outcomes. A copied block is a read and then a write. The prefetches are
left out: they bring a line sooner, not more often. So is drawing the numbers: only the drawn ones are read.

Reference (`object_ranges`, `VirtualObjects`): what one agent's loop over the storages of all agents touches. For every
index the place and the int in the index list; for every transition it leads to the storage's pointer, the tuple, the
head of each of its elements, whose references are counted, and the pointers written to the output lists; at the end of
each storage `np.array` of each output list, which walks it twice, for types and shapes and for the copy. Storages are
where CPython put them; the index list and the outputs lie at invented addresses, used anew by every mini-batch. Left
out are the interpreter's frames, the heads of the lists, the cut copies of overlong output lists, and numpy's notes
between its two walks.

Shape letters: E copies, R rows a copy, W words a row, C transitions a copy, M mini-batches, B batch, N agents, F fields
of a tuple, K ranges.
"""

import ctypes
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.envs.base import EnvSpec, stagger_offsets
from shoal.errors import UserError, check_choice
from shoal.reference.replay import AgentReplay, ListSampler
from shoal.replay import STORAGES, Batch, Ring
from shoal.replay.gather import CHUNK
from shoal.replay.layout import Layout, ring_bytes, rows_needed

Ints = NDArray[np.int64]

NOWHERE = 2**46
"""Where invented addresses begin: no allocator gets there."""
PAGE = 4096


def _touches(*touches: tuple[ArrayLike, ArrayLike]) -> Ints:
    """(rows, K, 2) of K addresses and lengths, each for all rows or one for each."""
    rows = np.broadcast_shapes(*(np.shape(value) for touch in touches for value in touch))[0]
    ranges = np.empty((rows, len(touches), 2), np.int64)
    for k, (address, length) in enumerate(touches):
        ranges[:, k, 0] = address
        ranges[:, k, 1] = length
    return ranges


def _laid_out(sizes: Iterable[int], first: int = NOWHERE) -> list[int]:
    """Invented addresses of arrays one after the other as the allocator puts large ones: 16 bytes into a page."""
    places = []
    for size in sizes:
        places.append(first + 16)
        first += -(-(size + 16) // PAGE) * PAGE
    return places


# ---- the engine's ring ----------------------------------------------------------------------------------------------


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


def ring_places(ring: Ring, batch: Batch) -> Places:
    """Where the arrays of a ring and of its newest sample really lie."""
    store = ring._store  # the ring shows nobody its rows, but here their place is the point
    arrays = (store.floats, store.start, *batch, ring._at, ring._after)
    return Places(*(array.__array_interface__["data"][0] for array in arrays))


def ring_ranges(ring: Ring, batch: Batch, writes: bool = True) -> Ints:
    """What gathering the ring's newest sample touched; see `engine_ranges`."""
    copies, transitions, capacity = batch.copies.ravel(), batch.transitions.ravel(), ring.capacity_per_copy
    begin, rows = ring._store.start[copies, transitions % capacity], ring._store.rows
    return engine_ranges(ring.layout, rows, capacity, ring_places(ring, batch), copies, transitions, begin, writes)


@dataclass(frozen=True)
class VirtualRing:
    """A full ring that takes no memory: where everything would lie, for a ring of any size.

    Samplers draw from it as from a real one. Episodes end as in a world of fixed length, staggered or not; in a world
    without a fixed length none ever does.
    """

    spec: EnvSpec
    copies: int
    capacity: int = 1_000_000
    storage: str = "float32"
    stagger: bool = True

    def __post_init__(self) -> None:
        """Refuse what a ring would refuse."""
        check_choice("storage", self.storage, STORAGES)
        if not 1 <= self.copies <= self.capacity:
            raise UserError(
                f"A ring of {self.capacity} transitions for {self.copies} copies is not possible: it must have at "
                "least one copy, and one transition for each."
            )

    @cached_property
    def layout(self) -> Layout:
        """What a row holds."""
        return Layout.of(self.spec, self.storage)

    @property
    def capacity_per_copy(self) -> int:
        """C."""
        return self.capacity // self.copies

    @property
    def rows(self) -> int:
        """R."""
        return rows_needed(self.spec, self.capacity_per_copy)

    @property
    def oldest(self) -> int:
        """The first transition of the run."""
        return 0

    @property
    def added(self) -> int:
        """As many as the ring holds."""
        return self.capacity_per_copy

    @property
    def nbytes(self) -> int:
        """Bytes that the ring would take."""
        return ring_bytes(self.spec, self.layout, self.copies, self.capacity_per_copy)

    def begin(self, copies: Ints, transitions: Ints) -> Ints:
        """Row numbers where these transitions start: every end of an episode before them has left a dead row."""
        length = self.spec.episode_length if self.spec.fixed_length else None
        if length is None:
            return transitions
        offsets = stagger_offsets(self.copies, length if self.stagger else None)
        return transitions + (offsets[copies] + transitions) // length

    def places(self, rows: int) -> Places:
        """Invented addresses for a ring and a sample of this many transitions."""
        layout, start = self.layout, 8 * self.copies * self.capacity_per_copy
        joint, each = 4 * rows * layout.joint_size, rows * layout.agents
        indices = (8 * rows,) * 4
        return Places(*_laid_out((self.nbytes - start, start, joint, joint, 4 * each, each, each, *indices)))

    def ranges(self, copies: Ints, transitions: Ints, writes: bool = True) -> Ints:
        """What gathering these drawn transitions would touch; see `engine_ranges`."""
        chosen, numbers = copies.ravel(), transitions.ravel()
        return engine_ranges(
            self.layout,
            self.rows,
            self.capacity_per_copy,
            self.places(chosen.size),
            chosen,
            numbers,
            self.begin(chosen, numbers),
            writes,
        )


def engine_ranges(
    layout: Layout,
    rows: int,
    capacity: int,
    places: Places,
    copies: Ints,  # (M·B,)
    transitions: Ints,  # (M·B,)
    begin: Ints,  # (M·B,)  the row number where each transition starts
    writes: bool = True,
) -> Ints:
    """What gathering these transitions touches in a ring of R rows and C transitions a copy.

    Without `writes` the mini-batch's own arrays are left out, and only the ring and the indices are seen.
    """
    i = np.arange(copies.size)
    start = places.start + 8 * (copies * capacity + transitions % capacity)
    at, after = copies * rows + begin % rows, copies * rows + (begin + 1) % rows
    index = _touches((places.copies + 8 * i, 8), (places.transitions + 8 * i, 8), (places.at + 8 * i, 8))
    locate = _touches(
        (places.at + 8 * i, 8),
        (start, 8),
        (places.copies + 8 * i, 8),
        (places.at + 8 * i, 8),
        (places.after + 8 * i, 8),
    )
    fill = _gather_floats if layout.kind == 0 else _gather_halves
    gathered = fill(layout, places, at, after, i, 4 * writes)
    outcomes = _gather_outcomes(layout, places, at, i, writes)
    chunked = np.concatenate([_by_chunk(gathered), _by_chunk(outcomes)], axis=1)
    return np.concatenate([part.reshape(-1, 2) for part in (index, locate, chunked)])


def _by_chunk(touches: Ints) -> Ints:
    """(chunks, CHUNK · K, 2) of (rows, K, 2), the last chunk filled up with nothing."""
    rows, each, _ = touches.shape
    filled = np.zeros((-(-rows // CHUNK) * CHUNK, each, 2), np.int64)
    filled[:rows] = touches
    return filled.reshape(-1, CHUNK * each, 2)


def _gather_floats(layout: Layout, places: Places, at: Ints, after: Ints, i: Ints, word: int) -> Ints:
    """Both joint vectors from float32 rows; `word` is the bytes of a value in the batch, 0 where those do not count."""
    width, size, joint = 4 * layout.words, layout.observation_words, layout.joint_size
    actions, target, next_target = joint - size, places.joint + 4 * i * joint, places.next_joint + 4 * i * joint
    return _touches(
        (places.at + 8 * i, 8),
        (places.words + at * width, 4 * joint),
        (target, word * joint),
        (places.after + 8 * i, 8),
        (places.words + after * width, 4 * size),
        (next_target, word * size),
        (next_target + 4 * size, word * actions),
    )


def _gather_halves(layout: Layout, places: Places, at: Ints, after: Ints, i: Ints, word: int) -> Ints:
    """Both joint vectors from 16-bit rows, a next observation from the batch where it has been widened there."""
    width, size, joint = 4 * layout.words, layout.agents * layout.observation_size, layout.joint_size
    actions, target, next_target = joint - size, places.joint + 4 * i * joint, places.next_joint + 4 * i * joint
    first, last = i % CHUNK == 0, (i % CHUNK == CHUNK - 1) | (i == i.size - 1)
    follows = ~first & (at == np.roll(after, 1))  # the row before has this one as its next
    alone = last | (np.roll(at, -1) != after)
    return _touches(
        (places.at + 8 * i, 8),
        (places.words + at * width, 2 * size),
        (target, word * size),
        (places.words + at * width + 4 * layout.observation_words, 4 * actions),
        (target + 4 * size, word * actions),
        (next_target + 4 * size, word * actions),
        (target, word * size * follows),
        (next_target - 4 * joint, word * size * follows),
        (places.after + 8 * i, 8 * alone),
        (places.words + after * width, 2 * size * alone),
        (next_target, word * size * alone),
    )


def _gather_outcomes(layout: Layout, places: Places, at: Ints, i: Ints, writes: bool) -> Ints:
    """Rewards and flags."""
    agents, flags = layout.agents, places.words + 4 * (at * layout.words + layout.words - layout.agents)
    return _touches(
        (places.at + 8 * i, 8),
        (flags, 4 * agents),
        (flags - 4 * agents, 4 * agents),
        (places.reward + 4 * i * agents, 4 * agents * writes),
        (places.terminated + i * agents, agents * writes),
        (places.alive + i * agents, agents * writes),
    )


# ---- the reference's objects ----------------------------------------------------------------------------------------

HEAD = 16  # bytes of every object: its reference count and its type
ARRAY = np.ndarray.__basicsize__  # bytes of an array object; its shape and its data lie elsewhere
COLLECTED = 16  # bytes before an object that the garbage collector watches
TUPLE = -(-(COLLECTED + tuple.__basicsize__ + 5 * 8) // 16) * 16  # bytes CPython's allocator takes for a transition
NUMBER = 32  # and for a float


class Walk(NamedTuple):
    """The way of an agent's loop through a storage: the same through every agent's."""

    slots: Ints  # (T,)  the transitions it takes
    positions: Ints  # (T,)  where in the index list it then is
    kept: int  # B, of the T taken how many come into the mini-batch: the rest overshot it


def walk(sampler: ListSampler, indices: list[int], filled: int, capacity: int) -> Walk:
    """The way of the sampler's own loop, run over a storage that only notes what it is asked for."""
    noted: list[tuple[int, int]] = []

    class Noting(list):
        """The index list; knows where the loop is."""

        def __iter__(self) -> Any:
            for position, index in enumerate(indices):
                self.position = position
                yield index

    class Slots:
        """The storage."""

        def __len__(self) -> int:
            return filled

        def __getitem__(self, slot: int) -> tuple:
            noted.append((slot, noting.position))
            return 0.0, 0.0, 0.0, 0.0, 0.0

    noting, replay = Noting(indices), AgentReplay(capacity)
    replay.storage = Slots()  # type: ignore[assignment]
    kept = len(sampler.gather(replay, noting).rewards)
    slots, positions = np.array(noted, np.int64).reshape(-1, 2).T
    return Walk(slots, positions, kept)


class Field(NamedTuple):
    """The same element of the tuples taken from a storage: an array, or a number if `shape_bytes` is 0."""

    objects: Ints  # (T,)
    object_bytes: int
    shapes: Ints  # (T,)  lengths and strides of the array's axes
    shape_bytes: int
    data: Ints  # (T,)
    data_bytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the output: the array's own, or a number as float32."""
        return self.data_bytes if self.shape_bytes else 4


class Objects(NamedTuple):
    """Where the transitions taken from one agent's storage lie."""

    slots: Ints  # (T,)  the storage's pointers
    tuples: Ints  # (T,)
    fields: list[Field]  # F


def object_ranges(storages: Sequence[list[tuple]], way: Walk, writes: bool = True) -> Ints:
    """What one agent's sampling from the storages of all agents touches: see `reference_ranges`.

    The addresses are those of the objects as they are now.
    """
    return reference_ranges([find_objects(storage, way.slots) for storage in storages], way, writes)


def reference_ranges(storages: Sequence[Objects], way: Walk, writes: bool = True) -> Ints:
    """One mini-batch of an agent: its index list walked over each storage. Without `writes` no outputs are written."""
    taken, fields = way.slots.size, len(storages[0].fields)
    outputs = [field.row_bytes * way.kept for objects in storages for field in objects.fields]
    listed = int(way.positions.max(initial=0)) + 1
    index, ints, *places = _laid_out((8 * listed, 32 * listed, *(8 * taken,) * fields, *outputs))
    row, moved = np.arange(taken), np.diff(way.positions, prepend=-1) != 0
    read_index = [(index + 8 * way.positions, 8 * moved), (ints + 32 * way.positions, 28 * moved)]
    lists, arrays = [place + 8 * row for place in places[:fields]], iter(places[fields:])
    parts = []
    for objects in storages:
        tuples = [(objects.slots, 8), (objects.tuples, tuple.__basicsize__ + 8 * fields)]
        heads = [(field.objects, HEAD) for field in objects.fields]
        appends = [(slots, 8 * writes) for slots in lists]
        parts.append(_touches(*read_index, *tuples, *heads, *appends))
        for field, slots in zip(objects.fields, lists, strict=True):
            output = next(arrays) + field.row_bytes * row, field.row_bytes * writes
            parts += [part[: way.kept] for part in _array_of(field, (slots, 8), output)]
    return np.concatenate([part.reshape(-1, 2) for part in parts])


def _array_of(field: Field, slots: tuple[Ints, int], output: tuple[Ints, int]) -> list[Ints]:
    """np.array of an output list: once along it for types and shapes, once to copy the values."""
    shown = [(field.objects, field.object_bytes), (field.shapes, field.shape_bytes)]
    if field.shape_bytes:  # the arrays found by the first walk are remembered; numbers are read from the list again
        copied = _touches(*shown, (field.data, field.data_bytes), output)
    else:
        copied = _touches(slots, shown[0], output)
    return [_touches(slots, *shown), copied]


def find_objects(storage: list[tuple], indices: Ints) -> Objects:
    """Where the tuples at these indices lie, their elements, and those's data: read from CPython's own memory."""
    if sys.implementation.name != "cpython" or object.__basicsize__ != HEAD:
        raise UserError("The addresses of Python objects are known for CPython with its global lock only.")
    if type(storage) is not list or indices.size == 0 or indices.min() < 0 or indices.max() >= len(storage):
        raise ValueError("indices are not of transitions in the storage, which must be a list of tuples")
    example = storage[int(indices[0])]
    slots = int(_words(id(storage) + 24)) + 8 * indices
    tuples = _words(slots)
    _check_same("a tuple", _words(tuples + 8), id(tuple))
    _check_same(f"of {len(example)} elements", _words(tuples + 16), len(example))
    items = tuples + tuple.__basicsize__
    return Objects(slots, tuples, [_find_field(_words(items + 8 * f), value) for f, value in enumerate(example)])


def _find_field(objects: Ints, example: Any) -> Field:
    """Where an element's parts lie; all are like the example."""
    _check_same(f"with {type(example).__name__}", _words(objects + 8), id(type(example)))
    if not isinstance(example, np.ndarray):
        return Field(objects, type(example).__basicsize__ + type(example).__itemsize__, objects, 0, objects, 0)
    data, axes, shapes = _words(objects + 16), _words(objects + 24) & 0xFFFFFFFF, _words(objects + 32)
    _check_same(f"with arrays of {example.ndim} axes", axes, example.ndim)
    for axis, (length, stride) in enumerate(zip(example.shape, example.strides, strict=True)):
        _check_same(f"with arrays of {example.shape}", _words(shapes + 8 * axis), length)
        _check_same("with arrays alike", _words(shapes + 8 * (example.ndim + axis)), stride)
    if not example.flags.c_contiguous:
        raise ValueError("an array in the storage is not contiguous")
    return Field(objects, ARRAY, shapes, 16 * example.ndim, data, example.nbytes)


def _check_same(what: str, found: Ints, wanted: int) -> None:
    """Refuse a storage whose transitions are not all alike: following a wrong pointer would end the process."""
    if np.any(found != wanted):
        raise ValueError(f"not every transition of the storage is {what}, as the first drawn one")


def _words(addresses: ArrayLike) -> Ints:
    """The 64-bit words at these addresses of our own memory, which must be there."""
    return _memory()[(np.asarray(addresses, np.int64) - PAGE) // 8]


def _memory() -> Ints:
    """All of our address space as one array: nothing of it is read until it is indexed."""
    return np.frombuffer(memoryview((ctypes.c_int64 * 2**45).from_address(PAGE)), np.int64)


@dataclass(frozen=True)
class VirtualObjects:
    """The reference's storages when every object lies right behind the one of its kind that was made before.

    So it is in a process that only fills its storages; in a real one other objects come between. Steps are added for
    all agents in turn. The next observation is the object that is the observation of the step after it.
    """

    agents: int
    observation_bytes: int
    action_bytes: int
    capacity: int = 1_000_000
    episode_length: int = 25

    @property
    def _counts(self) -> tuple[int, int]:
        """Observations and transitions of all agents; every episode has one observation more than it has steps."""
        return self.agents * (self.capacity + self.capacity // self.episode_length + 1), self.agents * self.capacity

    @cached_property
    def _places(self) -> list[int]:
        """Where pointers, tuples, floats, and objects and memory of observations and of actions begin."""
        return _laid_out(self._sizes, first=NOWHERE + 2**45)

    @property
    def _sizes(self) -> tuple[int, ...]:
        """Bytes of each of them."""
        observations, transitions = self._counts
        return (
            8 * transitions,
            TUPLE * transitions,
            2 * NUMBER * transitions,
            ARRAY * observations,
            _chunks(self.observation_bytes) * observations,
            ARRAY * transitions,
            _chunks(self.action_bytes) * transitions,
        )

    @property
    def nbytes(self) -> int:
        """Bytes that the storages would take."""
        return sum(self._sizes)

    def find(self, agent: int, indices: Ints) -> Objects:
        """Where an agent's transitions at these indices would lie."""
        pointers, tuples, numbers, seen, seen_data, played, played_data = self._places
        made = indices * self.agents + agent
        row = (indices + indices // self.episode_length) * self.agents + agent

        def array(n: Ints, objects: int, memory: int, size: int) -> Field:
            shapes = memory + _chunks(size) * n
            return Field(objects + ARRAY * n, ARRAY, shapes, 16, shapes + 32, size)

        def number(n: Ints) -> Field:
            objects = numbers + NUMBER * n
            return Field(objects, float.__basicsize__, objects, 0, objects, 0)

        return Objects(
            slots=pointers + 8 * (agent * self.capacity + indices),
            tuples=tuples + TUPLE * made + COLLECTED,
            fields=[
                array(row, seen, seen_data, self.observation_bytes),
                array(made, played, played_data, self.action_bytes),
                number(2 * made),
                array(row + self.agents, seen, seen_data, self.observation_bytes),
                number(2 * made + 1),
            ],
        )

    def ranges(self, way: Walk, writes: bool = True) -> Ints:
        """What one agent's sampling from the storages of all agents would touch."""
        return reference_ranges([self.find(agent, way.slots) for agent in range(self.agents)], way, writes)


def _chunks(size: int) -> int:
    """Bytes the C library takes for an array's shape, one axis, and its data."""
    return 32 + max(32, -(-(size + 8) // 16) * 16)
