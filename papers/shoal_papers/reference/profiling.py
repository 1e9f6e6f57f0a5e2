"""What a profile of the reference needs: full lists, the bytes of a transition, addresses of what samplers touch.

What one agent's loop over the storages of all agents touches (`object_ranges`): for every index the place and the int
in the index list; for every transition it leads to the storage's pointer, the tuple, the head of each of its elements,
whose references are counted, and the pointers written to the output lists; at the end of each storage `np.array` of
each output list, which walks it twice, for types and shapes and for the copy. Storages are where CPython put them; the
index list and the outputs lie at invented addresses, used anew by every mini-batch. Left out are the interpreter's
frames, the heads of the lists, the cut copies of overlong output lists, and numpy's notes between its two walks.

Shape letters: T transitions taken, B batch, N agents, F fields of a tuple, K ranges.
"""

import ctypes
import gc
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from shoal.envs.base import EnvSpec
from shoal.errors import UserError
from shoal_papers.caches.addresses import PAGE, Ints, laid_out, touches
from shoal_papers.reference.replay import AgentReplay, ListSampler, Replays

FILL_BLOCK = 4096  # different rows that the lists are filled with


def fill(replays: Replays, rows: int) -> None:
    """Fill the reference's lists as its own steps would: each observation an object of its own, kept once."""
    rng = np.random.default_rng(0)
    was_enabled = gc.isenabled()
    gc.disable()  # it would walk through millions of tuples again and again
    for buffer, observation, action in zip(
        replays.agents, replays.spec.observation_sizes, replays.spec.action_sizes, strict=True
    ):
        seen = rng.normal(size=(FILL_BLOCK, observation)).astype(np.float32)
        played = rng.random((FILL_BLOCK, action)).astype(np.float32)
        here = seen[0].copy()
        for t in range(rows):
            there = seen[(t + 1) % FILL_BLOCK].copy()
            buffer.add(here, played[t % FILL_BLOCK].copy(), float(t), there, 0.0)
            here = there
    replays.added += rows
    if was_enabled:
        gc.enable()
    gc.collect()


def transition_bytes(spec: EnvSpec) -> int:
    """Bytes that the lists of all agents take per transition."""
    return Replays(spec, 1).transition_bytes


def sampled_ranges(replays: Replays, sampler: ListSampler, batch: int, random: np.random.Generator) -> Iterator[Ints]:
    """The bytes that mini-batches touch, one agent's after the other's: each gathers all agents' transitions, then its
    own again."""
    storages = [buffer.storage for buffer in replays.agents]
    while True:
        for storage in storages:
            indices = sampler.indices(replays, batch, random)
            way = walk(sampler, indices, len(replays), replays.capacity)
            yield object_ranges([*storages, storage], way)


# ---- addresses -----------------------------------------------------------------------------------------------------

HEAD = 16  # bytes of every object: its reference count and its type
ARRAY = np.ndarray.__basicsize__  # bytes of an array object; its shape and its data lie elsewhere


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
    """One mini-batch of an agent: its index list walked over each storage. Without `writes` no outputs are written.

    The addresses are those of the objects as they are now.
    """
    found = [find_objects(storage, way.slots) for storage in storages]
    taken, fields = way.slots.size, len(found[0].fields)
    outputs = [field.row_bytes * way.kept for objects in found for field in objects.fields]
    listed = int(way.positions.max(initial=0)) + 1
    index, ints, *places = laid_out((8 * listed, 32 * listed, *(8 * taken,) * fields, *outputs))
    row, moved = np.arange(taken), np.diff(way.positions, prepend=-1) != 0
    read_index = [(index + 8 * way.positions, 8 * moved), (ints + 32 * way.positions, 28 * moved)]
    lists, arrays = [place + 8 * row for place in places[:fields]], iter(places[fields:])
    parts = []
    for objects in found:
        tuples = [(objects.slots, 8), (objects.tuples, tuple.__basicsize__ + 8 * fields)]
        heads = [(field.objects, HEAD) for field in objects.fields]
        appends = [(slots, 8 * writes) for slots in lists]
        parts.append(touches(*read_index, *tuples, *heads, *appends))
        for field, slots in zip(objects.fields, lists, strict=True):
            output = next(arrays) + field.row_bytes * row, field.row_bytes * writes
            parts += [part[: way.kept] for part in _array_of(field, (slots, 8), output)]
    return np.concatenate([part.reshape(-1, 2) for part in parts])


def _array_of(field: Field, slots: tuple[Ints, int], output: tuple[Ints, int]) -> list[Ints]:
    """np.array of an output list: once along it for types and shapes, once to copy the values."""
    shown = [(field.objects, field.object_bytes), (field.shapes, field.shape_bytes)]
    if field.shape_bytes:  # the arrays found by the first walk are remembered; numbers are read from the list again
        copied = touches(*shown, (field.data, field.data_bytes), output)
    else:
        copied = touches(slots, shown[0], output)
    return [touches(slots, *shown), copied]


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
