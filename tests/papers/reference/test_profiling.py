"""The addresses are those that the reference's loop touches: all of them and no others."""

import sys

import numpy as np
import pytest

from shoal_papers.caches.addresses import NOWHERE
from shoal_papers.reference.profiling import find_objects, object_ranges, walk
from shoal_papers.reference.replay import AgentReplay, ListSampler


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


def test_addresses_of_objects():
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


def test_objects_of_different_layout_are_refused():
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


def test_uniform_walk_follows_the_draws():
    way = walk(ListSampler("uniform"), [5, 1, 5], filled=6, capacity=10)
    assert (way.slots.tolist(), way.positions.tolist(), way.kept) == ([5, 1, 5], [0, 1, 2], 3)


@pytest.mark.parametrize("method", ["neighbor-v1", "neighbor-v2"])
def test_neighbor_walk_equals_the_loop(method):
    sampler, drawn = ListSampler(method, neighbors=2), [59, 30, 8, 4, 9, 2, 40, 41, 42, 50]
    way = walk(sampler, drawn, filled=60, capacity=80)
    replay = AgentReplay(80)
    replay.storage = storages(1)[0]
    rewards = sampler.gather(replay, drawn).rewards
    assert np.array_equal(way.slots[: way.kept] + 0.5, rewards)
    assert way.kept == 10 <= way.slots.size
    assert np.all(np.abs(np.array(drawn)[way.positions] - way.slots) <= 2)


def test_loop_touches_all_objects():
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
