"""Lists of tuples: wrapping, the append loop, Algorithm 1 in both versions, segments, and the memory they take."""

import itertools
import sys

import numpy as np
import pytest

from shoal.errors import UserError
from shoal_papers.reference.replay import AgentReplay, ListSampler, Replays
from tests.papers.reference.histories import filled, make_spec


def numbered(count, capacity):
    """A buffer whose transition number t says t in every field."""
    buffer = AgentReplay(capacity)
    for t in range(count):
        buffer.add(np.full(3, t, np.float32), np.full(2, t, np.float32), float(t), np.full(3, t + 1, np.float32), 0.0)
    return buffer


def slots(rows):
    """Which transitions were gathered; every field must tell of the same ones."""
    if not len(rows.rewards):
        return []
    np.testing.assert_array_equal(rows.obs_t[:, 0], rows.rewards)
    np.testing.assert_array_equal(rows.actions[:, 1], rows.rewards)
    np.testing.assert_array_equal(rows.obs_tp1[:, 2], rows.rewards + 1)
    return rows.rewards.astype(int).tolist()


def test_oldest_slot_is_overwritten():
    buffer = numbered(7, 5)
    assert slots(buffer.sample([0, 1, 2, 3, 4])) == [5, 6, 2, 3, 4]
    assert len(buffer) == 5 and buffer.next_slot == 2


def test_fields_have_their_shapes():
    rows = numbered(4, 9).sample([3, 3, 0])
    assert [field.shape for field in rows] == [(3, 3), (3, 2), (3,), (3, 3), (3,)]
    assert all(field.dtype == np.float32 for field in rows)


@pytest.mark.parametrize("version", ["neighbor-v1", "neighbor-v2"])
class TestBothVersions:
    def gather(self, version, buffer, indices, neighbors, cut=True):
        if version == "neighbor-v1":
            return slots(buffer.sample_neighbors_v1(indices, neighbors, len(indices), cut))
        return slots(buffer.sample_neighbors_v2(indices, neighbors, cut))

    def test_neighbours_ascend_without_the_centre(self, version):
        assert self.gather(version, numbered(20, 20), [10] * 6, 3) == [7, 8, 9, 11, 12, 13]

    def test_clipped_at_both_ends(self, version):
        full = numbered(20, 20)
        assert self.gather(version, full, [0] * 3, 3) == [1, 2, 3]
        assert self.gather(version, full, [1] * 4, 3) == [0, 2, 3, 4]
        assert self.gather(version, full, [19] * 3, 3) == [16, 17, 18]

    def test_neighbours_ignore_the_ring_cursor(self, version):
        """Slots 3 (newest) and 4 (oldest) count as neighbours, slots 19 and 0 do not."""
        buffer = numbered(24, 20)
        assert self.gather(version, buffer, [3, 3, 3, 3], 2) == [21, 22, 4, 5]
        assert self.gather(version, buffer, [19, 19], 2) == [17, 18]

    def test_stops_at_the_batch_and_cuts_the_overshoot(self, version):
        """Eight indices: one neighbourhood of six, and two rows of the next; the third is never looked at."""
        full = numbered(20, 20)
        indices = [5, 12, 99, 99, 99, 99, 99, 99]
        assert self.gather(version, full, indices, 3) == [2, 3, 4, 6, 7, 8, 9, 10]
        whole = [2, 3, 4, 6, 7, 8, 9, 10, 11, 13, 14, 15]
        assert self.gather(version, full, indices, 3, cut=False) == whole

    def test_papers_batch(self, version):
        full = numbered(5000, 5000)
        indices = np.random.default_rng(0).integers(10, 4990, 1024).tolist()
        assert len(self.gather(version, full, indices, 3)) == 1024
        assert len(self.gather(version, full, indices, 3, cut=False)) == 1026

    def test_short_list_returns_fewer_indices(self, version):
        assert self.gather(version, numbered(2, 2), [0, 1, 0], 3) == [1, 0, 1]
        assert self.gather(version, numbered(1, 1), [0, 0], 3) == []
        assert self.gather(version, numbered(5, 5), [], 3) == []

    def test_an_index_list_has_as_many_slots_as_the_batch(self, version):
        _, replays = filled(make_spec(2))
        sampler = ListSampler(version, 2)
        indices = sampler.indices(replays, 30, np.random.default_rng(0))
        assert len(indices) == 30 and all(type(i) is int and 0 <= i < 40 for i in indices)
        rows = sampler.gather(replays.agents[0], indices)
        assert rows.obs_t.shape == (30, 4)


def test_versions_differ_on_partly_filled_buffers():
    """Ten of a hundred slots are filled: slot 8's neighbourhood 5 to 11 is not all there."""
    buffer = numbered(10, 100)
    indices = [8, 3, 9, 9, 9, 9]
    assert slots(buffer.sample_neighbors_v1(indices, 3, 6)) == [0, 1, 2, 4, 5, 6]
    assert slots(buffer.sample_neighbors_v2(indices, 3)) == [5, 6, 7, 9, 0, 1]
    assert slots(buffer.sample_neighbors_v1([6], 3, 99)) == [3, 4, 5, 7, 8, 9]
    assert slots(buffer.sample_neighbors_v1([7], 3, 99)) == []
    assert slots(buffer.sample_neighbors_v2([9, 9, 9, 9], 3)) == [6, 7, 8, 6]


def test_v1_redraws_if_all_neighbourhoods_are_dropped():
    """Four filled slots of forty and n = 3: only slot 0 has a whole neighbourhood."""
    _, replays = filled(make_spec(1), steps=4)
    sampler = ListSampler("neighbor-v1", 3)
    assert sampler.needs == 4
    for seed in range(20):
        indices = sampler.indices(replays, 2, np.random.default_rng(seed))
        assert 0 in indices and len(sampler.gather(replays.agents[0], indices).rewards) == 2


def test_draws_are_uniform():
    _, replays = filled(make_spec(1))
    drawn = ListSampler().indices(replays, 40_000, np.random.default_rng(0))
    counts = np.bincount(drawn, minlength=40)
    assert counts.min() > 850 and counts.max() < 1150


def test_neighbor_is_v2_and_others_are_refused():
    assert ListSampler("neighbor").needs == ListSampler("neighbor-v2").needs == 2
    buffer = numbered(10, 100)
    assert slots(ListSampler("neighbor", 3).gather(buffer, [9, 9, 9])) == [6, 7, 8]
    with pytest.raises(UserError, match="neighbor-v1"):
        ListSampler("prioritized")


def test_agents_have_separate_lists_of_the_same_transitions():
    """What the engine's ring gives for a transition, agent by agent; episodes' last observations included."""
    spec = make_spec(3, unequal=True)
    ring, replays = filled(spec)
    numbers = np.arange(ring.oldest[0], ring.added[0])[None]
    batch = ring.gather(np.zeros_like(numbers), numbers)
    width = spec.observation_size
    for i, size in enumerate(spec.observation_sizes):
        rows = replays.agents[i].sample([int(t) % 40 for t in numbers[0]])
        np.testing.assert_array_equal(rows.obs_t, batch.joint[0, :, i * width : i * width + size])
        np.testing.assert_array_equal(rows.obs_tp1, batch.next_joint[0, :, i * width : i * width + size])
        np.testing.assert_array_equal(rows.rewards, batch.reward[0, :, i])
        first = spec.agents * width + i * spec.action_size
        np.testing.assert_array_equal(rows.actions, batch.joint[0, :, first : first + spec.action_sizes[i]])


def shared(replays):
    """How many observations are the very object that the transition before ended with."""
    storage = replays.agents[0].storage
    return sum(storage[k][0] is storage[k - 1][3] for k in range(len(storage)))


@pytest.mark.parametrize(("steps", "cuts"), [(30, (0, 7, 30)), (60, (20, 33, 60)), (60, (10, 33, 60)), (1, (0, 1))])
def test_lists_are_restored_from_segments(steps, cuts):
    """Part-filled and wrapped; a segment may begin before the oldest transition."""
    spec = make_spec(3, unequal=True)
    _, replays = filled(spec, steps)
    assert len(replays) == min(steps, 40) and replays.added == steps and replays.oldest == max(0, steps - 40)
    saved = {(a, b): replays.segment(max(a, replays.oldest[0]), b) for a, b in itertools.pairwise(cuts)}
    again = Replays(spec, 40)
    again.begin(np.zeros((1, 3, spec.observation_size), np.float32))
    again.load_state(replays.state())
    for (first, last), arrays in saved.items():
        padding = max(0, replays.oldest[0] - first)  # transitions that were live when the segment was written
        arrays = {name: np.concatenate([array[:1]] * padding + [array]) for name, array in arrays.items()}
        again.load_segment(first, last, arrays)
    assert (len(again), again.added, again.oldest) == (len(replays), replays.added, replays.oldest)
    for ours, theirs in zip(again.agents, replays.agents, strict=True):
        assert ours.next_slot == theirs.next_slot
        for a, b in zip(ours.storage, theirs.storage, strict=True):
            assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert shared(again) >= shared(replays) - 1  # the first one loaded has nothing before it
    np.testing.assert_array_equal(again.state()["open"], replays.state()["open"])


def test_incompatible_saved_lists_are_refused():
    spec = make_spec(2)
    _, replays = filled(spec)
    small = Replays(spec, 10)
    small.begin(np.zeros((1, 2, 4), np.float32))
    with pytest.raises(UserError, match="capacity of 10"):
        small.load_state(replays.state())
    with pytest.raises(UserError, match="another implementation"):
        small.load_state({"window": np.zeros(2)})


def test_replay_that_does_not_fit_into_memory_is_refused(monkeypatch):
    spec = make_spec(3)
    monkeypatch.setattr("shoal.system.memory.free_memory", lambda: 10**9)
    Replays(spec, 10**9, limit=1000)
    with pytest.raises(UserError, match=r"3 agents needs .* the largest `capacity` that fits is [0-9,]+"):
        Replays(spec, 10**9)


@pytest.mark.parametrize("agents", [1, 4])
def test_memory_is_estimated(agents):
    """No less than the interpreter says of all objects, each counted once, and not much more: it does not count the
    allocator's rounding."""
    _, replays = filled(make_spec(agents), steps=3000, capacity=2500)
    objects = {}
    for buffer in replays.agents:
        for transition in buffer.storage:
            objects |= {id(part): sys.getsizeof(part) for part in (transition, *transition)}
    measured = sum(objects.values()) + sum(sys.getsizeof(buffer.storage) for buffer in replays.agents)
    assert replays.nbytes == 2500 * replays.transition_bytes
    assert measured < replays.nbytes < 1.2 * measured
