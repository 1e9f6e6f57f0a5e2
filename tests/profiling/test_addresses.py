"""The addresses are those that the samplers touch: all of them and no others."""

import sys

import numpy as np
import pytest

from shoal.envs.base import stagger_offsets
from shoal.errors import UserError
from shoal.profiling import CacheModel, Geometry, VirtualObjects, VirtualRing, object_ranges, ring_ranges, walk
from shoal.profiling.addresses import NOWHERE, engine_ranges, find_objects, ring_places
from shoal.reference.replay import AgentReplay, ListSampler
from shoal.replay import STORAGES, Neighbor, Ring, Uniform
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


# ---- the engine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("sampler", [Uniform(), Neighbor(2)])
@pytest.mark.parametrize("batch", [40, 64])
def test_nothing_but_the_listed_bytes_of_the_ring_is_read(storage, sampler, batch):
    ring = filled_ring(storage, steps=STEPS + 17)  # has gone round
    before = ring.sample(sampler, batch, np.random.default_rng(2), 2)
    wanted, ranges = taken(before), ring_ranges(ring, before)
    words = ring._words.reshape(-1).view(np.uint8)
    words[~within(ranges, ring._words)] = 0x5A
    start = ring._store.start
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
    for array in (*batch, ring._at, ring._after):
        assert within(ring_ranges(ring, batch), array).all()
    read_only = ring_ranges(ring, batch, writes=False)
    for array in batch[:5]:
        assert not within(read_only, array).any()
    for array in (batch.copies, batch.transitions, ring._at, ring._after):
        assert within(read_only, array).all()


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("observation", [3, 4])
def test_a_virtual_ring_lies_as_a_real_one(storage, observation):
    ring = filled_ring(storage, observation)
    virtual = VirtualRing(ring.spec, COPIES, ring.capacity, storage)
    assert (virtual.nbytes, virtual.oldest, virtual.added) == (ring.nbytes, ring.oldest, ring.added)
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
    with pytest.raises(UserError, match="storage 'int8' is not known"):
        VirtualRing(make_spec(), 1, 5, "int8")


# ---- the reference ---------------------------------------------------------------------------------------------------


def storages(agents=2, steps=60, observation=7):
    rng = np.random.default_rng(0)
    lists = [[] for _ in range(agents)]
    seen = [rng.random(observation, np.float32) for _ in range(agents)]
    for t in range(steps):
        new = [rng.random(observation, np.float32) for _ in range(agents)]
        for n in range(agents):
            lists[n].append((seen[n], rng.random(5, np.float32), float(t) + 0.5, new[n], float(t % 2) * 3))
        seen = new
    return lists


def test_objects_are_found_where_they_are():
    storage, indices = storages()[1], np.array([5, 59, 0, 5])
    found = find_objects(storage, indices)
    rows = [storage[i] for i in indices]
    assert np.all(np.diff(found.slots) == 8 * np.diff(indices))
    assert found.tuples.tolist() == [id(row) for row in rows]
    for f, field in enumerate(found.fields):
        assert field.objects.tolist() == [id(row[f]) for row in rows]
        if f in (0, 1, 3):
            assert field.data.tolist() == [row[f].ctypes.data for row in rows]
            assert (field.data_bytes, field.shape_bytes) == (rows[0][f].nbytes, 16)
            assert field.object_bytes + 16 + field.data_bytes == sys.getsizeof(rows[0][f])
        else:
            assert (field.object_bytes, field.shape_bytes, field.data_bytes) == (24, 0, 0)


def test_objects_that_are_not_alike_are_refused():
    storage = storages(1)[0]
    first, wanted = storage[0], np.array([0, 1])
    for odd in (
        list(first),
        first[:4],
        (first[0][:3], *first[1:]),
        (*first[:2], 1, *first[3:]),
        (first[0][::-1], *first[1:]),
    ):
        with pytest.raises(ValueError, match="not every transition"):
            find_objects([first, odd], wanted)
    with pytest.raises(ValueError, match="indices"):
        find_objects(storage, np.array([60]))
    with pytest.raises(ValueError, match="not contiguous"):
        find_objects([(np.zeros(6)[::2],)], np.array([0]))


def test_a_uniform_walk_takes_what_was_drawn():
    way = walk(ListSampler("uniform"), [5, 1, 5], filled=6, capacity=10)
    assert (way.slots.tolist(), way.positions.tolist(), way.kept) == ([5, 1, 5], [0, 1, 2], 3)


@pytest.mark.parametrize("method", ["neighbor-v1", "neighbor-v2"])
def test_a_neighbor_walk_is_the_one_of_the_loop(method):
    sampler, drawn = ListSampler(method, neighbors=2), [59, 30, 8, 4, 9, 2, 40, 41, 42, 50]
    way = walk(sampler, drawn, filled=60, capacity=80)
    replay = AgentReplay(80)
    replay.storage = storages(1)[0]
    rewards = sampler.gather(replay, drawn).rewards
    assert np.array_equal(way.slots[: way.kept] + 0.5, rewards)
    assert way.kept == 10 <= way.slots.size
    assert np.all(np.abs(np.array(drawn)[way.positions] - way.slots) <= 2)


def test_the_loop_touches_everything_on_its_way():
    lists = storages()
    way = walk(ListSampler("uniform"), [3, 17, 3], 60, 60)
    ranges = object_ranges(lists, way)
    touched = set(map(tuple, ranges.tolist()))
    for storage in lists:
        for slot in (3, 17):
            row = storage[slot]
            assert (id(row), sys.getsizeof(row)) in touched or (id(row), tuple.__basicsize__ + 40) in touched
            for value in (row[0], row[1], row[3]):
                assert {(id(value), 16), (id(value), 96), (value.ctypes.data, value.nbytes)} <= touched
            assert {(id(row[2]), 16), (id(row[2]), 24)} <= touched
    written = ranges[ranges[:, 0] >= NOWHERE]
    read_only = object_ranges(lists, way, writes=False)
    assert ranges[:, 1].sum() - read_only[:, 1].sum() == 2 * 3 * (5 * 8 + 7 * 4 + 5 * 4 + 4 + 7 * 4 + 4)
    assert len(written) > 0


def test_neighbors_beyond_the_batch_are_walked_but_not_copied():
    lists = storages()
    way = walk(ListSampler("neighbor-v2"), list(range(10, 20)), 60, 60)
    assert (way.slots.size, way.kept) == (12, 10)
    ranges = object_ranges(lists, way)
    for slot, copied in ((way.slots[0], True), (way.slots[-1], False)):
        row = lists[0][slot]
        assert (ranges == [id(row), tuple.__basicsize__ + 40]).all(1).any()
        assert (ranges == [row[1].ctypes.data, 20]).all(1).any() == copied


@pytest.mark.parametrize("method", ["uniform", "neighbor-v2"])
def test_virtual_objects_are_walked_as_real_ones(method):
    way = walk(ListSampler(method), [3, 17, 30, 59, 8, 9, 10], 60, 60)
    virtual = VirtualObjects(agents=2, observation_bytes=28, action_bytes=20, capacity=60)
    ranges = virtual.ranges(way)
    assert np.array_equal(ranges[:, 1], object_ranges(storages(), way)[:, 1])
    assert ranges[ranges[:, 1] > 0, 0].min() >= NOWHERE


def test_the_next_virtual_observation_is_the_observation_of_the_step_after():
    virtual = VirtualObjects(agents=3, observation_bytes=28, action_bytes=20, capacity=60, episode_length=5)
    found = virtual.find(1, np.arange(60))
    observation, following = found.fields[0], found.fields[3]
    within_episode = np.arange(59) % 5 != 4
    assert np.array_equal(observation.data[1:] == following.data[:-1], within_episode)
    every = np.concatenate([virtual.find(agent, np.arange(60)).fields[0].data for agent in range(3)])
    assert np.unique(every).size == 180
    assert np.diff(np.sort(every)).min() >= 28 + 16
