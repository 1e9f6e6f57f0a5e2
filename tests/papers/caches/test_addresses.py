"""The addresses are those that the engine's sampler touches: all of them and no others."""

import numpy as np
import pytest

from shoal.envs.base import stagger_offsets
from shoal.errors import UserError
from shoal.replay import STORAGES, Neighbor, Ring, Uniform
from shoal_papers.caches.addresses import NOWHERE, Places, VirtualRing, engine_ranges
from shoal_papers.caches.geometry import Geometry
from shoal_papers.caches.model import CacheModel
from tests.replay.model import Model, ToyWorld, make_spec

COPIES, LENGTH, STEPS = 3, 5, 40


def filled_ring(storage, observation=3, steps=STEPS, capacity=STEPS):
    spec = make_spec(agents=3, observation=observation, length=LENGTH, fixed=True)
    ring = Ring(spec, COPIES, COPIES * capacity, storage)
    world = ToyWorld(spec, COPIES, seed=1)
    world.age = stagger_offsets(COPIES, LENGTH)
    model = Model(ring, world)
    for _ in range(steps):
        model.step()
    return ring


def ring_places(ring, batch):
    """Where the arrays of a ring and of its newest sample really lie."""
    store = ring.store
    arrays = (store.floats, store.start, *batch, ring.rows_at, ring.rows_after)
    return Places(*(array.__array_interface__["data"][0] for array in arrays))


def ring_ranges(ring, batch):
    """What gathering the ring's newest sample touched."""
    copies, transitions, capacity = batch.copies.ravel(), batch.transitions.ravel(), ring.capacity_per_copy
    begin, rows = ring.store.start[copies, transitions % capacity], ring.store.rows
    return engine_ranges(ring.layout, rows, capacity, ring_places(ring, batch), copies, transitions, begin)


def within(ranges, array):
    """(bytes of the array,): True where a range lies on it."""
    marked, first = np.zeros(array.nbytes, bool), array.__array_interface__["data"][0]
    for address, length in ranges - [first, 0]:
        if 0 <= address < array.nbytes:
            marked[address : address + length] = True
    return marked


def taken(batch):
    return [array.copy() for array in batch]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("sampler", [Uniform(), Neighbor(2)])
@pytest.mark.parametrize("batch", [40, 64])
def test_nothing_but_the_listed_bytes_of_the_ring_is_read(storage, sampler, batch):
    ring = filled_ring(storage, steps=STEPS + 17)  # has gone round
    before = ring.sample(sampler, batch, np.random.default_rng(2), 2)
    wanted, ranges = taken(before), ring_ranges(ring, before)
    words = ring._words.reshape(-1).view(np.uint8)
    words[~within(ranges, ring._words)] = 0x5A
    start = ring.store.start
    start.reshape(-1).view(np.uint8)[~within(ranges, start)] = 0x5A
    assert same(ring.gather(before.copies, before.transitions), wanted)


@pytest.mark.parametrize("storage", STORAGES)
def test_every_listed_word_of_the_ring_is_read(storage):
    ring = filled_ring(storage)
    copies, transitions = np.array([[0, 0, 2]]), np.array([[7, 8, 30]])
    before = ring.gather(copies, transitions)
    wanted, ranges = taken(before), ring_ranges(ring, before)
    words, flags = ring._words.reshape(-1), ring.layout.words - ring.layout.agents
    listed = np.unique(np.flatnonzero(within(ranges, words)) // 4)
    assert listed.size > 3 * ring.layout.words
    for word in listed:
        kept = words[word]
        if word % ring.layout.words >= flags:
            words.view(np.float32)[word] = 3 - words.view(np.float32)[word]
        else:
            words[word] ^= 0x10001
        assert not same(ring.gather(copies, transitions), wanted), f"word {word} of {listed}"
        words[word] = kept


@pytest.mark.parametrize("storage", STORAGES)
def test_every_byte_of_the_batch_is_written(storage):
    ring = filled_ring(storage)
    batch = ring.sample(Neighbor(3), 50, np.random.default_rng(0), 2)
    for array in (*batch, ring.rows_at, ring.rows_after):
        assert within(ring_ranges(ring, batch), array).all()


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("observation", [3, 4])
def test_virtual_ring_has_the_layout_of_a_real_one(storage, observation):
    ring = filled_ring(storage, observation)
    virtual = VirtualRing(ring.spec, COPIES, ring.capacity, storage)
    assert virtual.nbytes == ring.nbytes
    assert np.array_equal(virtual.oldest, ring.oldest) and np.array_equal(virtual.added, ring.added)
    for sampler in (Uniform(), Neighbor()):
        copies, transitions = sampler.draw(virtual, 2, 70, np.random.default_rng(4))
        batch = ring.gather(copies, transitions)
        c, t = copies.ravel(), transitions.ravel()
        places = ring_places(ring, batch)
        at_real = engine_ranges(
            virtual.layout, virtual.rows, virtual.capacity_per_copy, places, c, t, virtual.begin(c, t)
        )
        assert np.array_equal(at_real, ring_ranges(ring, batch))
        moved = virtual.ranges(copies, transitions)
        assert np.array_equal(moved[:, 1], at_real[:, 1])
        shifts = set((moved - at_real)[moved[:, 1] > 0, 0].tolist())
        assert shifts == {new - old for new, old in zip(virtual.places(c.size), places, strict=True)}


def test_a_virtual_ring_may_be_larger_than_any_memory():
    spec = make_spec(agents=48, observation=194, action=5, length=25, fixed=True)
    virtual = VirtualRing(spec, 25, 10**9)
    assert virtual.nbytes > 10**13
    ranges = virtual.ranges(*Uniform().draw(virtual, 1, 64, np.random.default_rng(0)))
    assert CacheModel(Geometry()).run(ranges).l3 > 64 * 48 * 194 * 4 / 64


def test_arrays_of_a_virtual_ring_do_not_overlap():
    virtual = VirtualRing(make_spec(length=LENGTH, fixed=True), COPIES, 30)
    places = sorted(virtual.places(16))
    assert places[0] >= NOWHERE
    assert np.all(np.diff(places) >= 4096)


def test_impossible_virtual_rings_are_refused():
    with pytest.raises(UserError, match="must have at least one copy"):
        VirtualRing(make_spec(), 10, 5)
    with pytest.raises(UserError, match="`storage` 'int8' is not known"):
        VirtualRing(make_spec(), 1, 5, "int8")
