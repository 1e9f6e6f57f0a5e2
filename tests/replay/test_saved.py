"""A ring from its state and its segments goes on as if nothing had happened, to the bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.replay import Neighbor, Ring, Uniform, can_sample
from tests.replay.model import Model, ToyWorld, UnevenModel, all_live, equal, make_spec


def grown(steps, storage="float32", seed=0, copies=3, capacity=30, spec=None):
    spec = spec or make_spec(agents=2, observation=3, length=4, fixed=True)
    model = Model(Ring(spec, copies, capacity, storage), ToyWorld(spec, copies, seed, end_probability=0.4))
    for _ in range(steps):
        model.step()
    return model


def reload(ring, state, segments, **options):
    fresh = Ring(ring.spec, ring.copies, storage=ring.layout.storage, **({"capacity": ring.capacity} | options))
    fresh.load_state(state)
    for (first, last), arrays in segments.items():
        fresh.load_segment(first, last, arrays)
    return fresh


@given(
    steps=st.integers(0, 70),
    cuts=st.sets(st.integers(1, 69), max_size=6),
    storage=st.sampled_from(["float32", "float16"]),
    fixed=st.booleans(),
    larger=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_saved_ring_resumes_bit_identically(steps, cuts, storage, fixed, larger, seed):
    """Segments are taken as the run goes, at any cuts, as checkpoints do; then a fresh ring takes them over."""
    spec = make_spec(agents=2, observation=3, length=4 if fixed else None, fixed=fixed)
    model = grown(0, storage, seed, spec=spec)
    ring, segments, saved = model.ring, {}, 0
    for step in range(steps):
        model.step()
        # A window's length at most between two cuts: what is no longer live cannot be saved.
        if step + 1 in cuts or step + 1 - saved == ring.capacity_per_copy or step + 1 == steps:
            segments[saved, step + 1] = ring.segment(saved, step + 1)
            saved = step + 1
    state = ring.state()
    fresh = reload(ring, state, segments, **({"capacity": 3000, "limit": 3 * 37} if larger else {}))
    equal(fresh.oldest, ring.oldest)
    equal(fresh.added, ring.added)
    model.ring = _Both(ring, fresh)
    for _ in range(25):
        model.step()
        window = max(ring.oldest[0], fresh.oldest[0])
        copies, transitions = all_live(ring)
        keep = transitions[0] >= window
        for one, other in zip(*(r.gather(copies[:, keep], transitions[:, keep]) for r in (ring, fresh)), strict=True):
            equal(one, other)
        if not larger and can_sample(ring, Neighbor()):
            one, other = (r.sample(Neighbor(), 20, np.random.default_rng(seed)) for r in (ring, fresh))
            equal(one.joint, other.joint)
            equal(one.next_joint, other.next_joint)
    if not larger:
        for one, other in ((ring.state(), fresh.state()), (r.segment(r.oldest, r.added) for r in (ring, fresh))):
            assert one.keys() == other.keys()
            for name in one:
                equal(one[name], other[name])


@given(
    chunks=st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, unique=True), st.integers(0, 9), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    more=st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, unique=True), st.integers(0, 9)), max_size=5),
    fixed=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_saved_ring_of_uneven_copies_resumes_bit_identically(chunks, more, fixed, seed):
    """Copies begin, wrap and are saved at any moment; a fresh ring takes the segments over and goes on."""
    spec = make_spec(agents=2, observation=3, length=4 if fixed else None, fixed=fixed)
    worlds = [ToyWorld(spec, 1, seed + e, end_probability=0.4) for e in range(3)]
    model = UnevenModel(Ring(spec, 3, 30), worlds)
    ring, segments, saved = model.ring, [], np.zeros(3, np.int64)
    for copies, time, save in [*chunks, ([0], 0, True)]:
        model.chunk(copies, time)
        start = np.maximum(saved, ring.oldest)  # as checkpoints do: what is no longer live is not saved
        if save and np.any(start < ring.added):
            segments.append((start, ring.added.copy(), ring.segment(start, ring.added)))
            saved = ring.added.copy()
    fresh = Ring(spec, 3, 30)
    fresh.load_state(ring.state())
    for segment in segments:
        fresh.load_segment(*segment)
    if len(fresh):
        model.check(fresh.gather(*all_live(fresh)))
    model.ring = _Both(ring, fresh)
    for copies, time in more:
        model.chunk(copies, time)
    states = [ring.state(), fresh.state()]
    if len(ring):
        states = [state | r.segment(r.oldest, r.added) for state, r in zip(states, (ring, fresh), strict=True)]
        for one, other in zip(
            *(r.sample(Uniform(), 20, np.random.default_rng(seed)) for r in (ring, fresh)), strict=True
        ):
            equal(one, other)
    assert states[0].keys() == states[1].keys()
    for name in states[0]:
        equal(states[0][name], states[1][name])


def test_segments_of_uneven_copies_that_do_not_fit_are_refused():
    spec = make_spec(agents=2, observation=3, length=4, fixed=True)
    model = UnevenModel(Ring(spec, 3, 30), [ToyWorld(spec, 1, seed) for seed in range(3)])
    model.chunk([0, 2], 5)
    model.chunk([2], 9)
    ring, state = model.ring, model.ring.state()
    assert ring.added.tolist() == [5, 0, 14] and ring.oldest.tolist() == [0, 0, 4] and state["head"][1] == -1
    parts = [([0, 0, 4], [5, 0, 8]), ([5, 0, 8], [5, 0, 14])]
    first, second = (ring.segment(*part) for part in parts)
    assert first["start"].shape == (9,) and second["start"].shape == (6,)
    with pytest.raises(UserError, match=r"from \[5, 0, 8\] to \[5, 0, 14\] does not fit: the ring lacks \[0, 0, 4\]"):
        reload_uneven(ring, state, [(*parts[1], second)])
    fresh = reload_uneven(ring, state, [(*parts[0], first)])
    with pytest.raises(UserError, match=r"load the segments of \[5, 0, 8\] to \[5, 0, 14\] first"):
        fresh.segment(0, 1)
    with pytest.raises(UserError, match="belongs to another run or is damaged"):
        fresh.load_segment(*parts[1], second | {"start": second["start"] + 1})
    fresh.load_segment(*parts[1], second)
    model.check(fresh.gather(*all_live(fresh)))
    for window in (
        ([0, 0, 3], ring.added),
        (ring.oldest, [6, 0, 14]),
        ([3, 0, 4], [2, 0, 14]),
        (ring.oldest, ring.oldest),
    ):
        with pytest.raises(UserError, match=r"which holds \[0, 0, 4\] to \[5, 0, 14\]"):
            ring.segment(*window)
    for name, change in (("head", [0, 1, 0]), ("tail", [0, -1, 0]), ("window", [[0, 0, 0], [0, 1, 0]])):
        with pytest.raises(UserError, match="contradict each other"):
            reload_uneven(ring, state | {name: state[name] + change}, [])


def reload_uneven(ring, state, segments):
    fresh = Ring(ring.spec, ring.copies, ring.capacity)
    fresh.load_state(state)
    for segment in segments:
        fresh.load_segment(*segment)
    return fresh


class _Both:
    """Adds to two rings."""

    def __init__(self, *rings):
        self.rings = rings

    def add(self, actions, step):
        for ring in self.rings:
            ring.add(actions, step)

    def begin(self, *arguments):
        for ring in self.rings:
            ring.begin(*arguments)

    def add_chunk(self, *arguments):
        for ring in self.rings:
            ring.add_chunk(*arguments)


def test_loaded_ring_equals_the_list():
    model = grown(57)
    ring = model.ring
    oldest = ring.oldest[0]
    middle = oldest + 4
    fresh = reload(
        ring,
        ring.state(),
        {(oldest, middle): ring.segment(oldest, middle), (middle, 57): ring.segment(middle, 57)},
    )
    model.check(fresh.gather(*all_live(fresh)))


def test_smaller_ring_loads_the_newest_transitions():
    model = grown(20, capacity=3000)
    ring = model.ring
    model.ring = fresh = reload(ring, ring.state(), {(0, 20): ring.segment(0, 20)}, limit=3 * 25)
    assert (ring.capacity_per_copy, fresh.capacity_per_copy) == (1000, 25)
    for _ in range(30):
        model.step()
        model.check(fresh.gather(*all_live(fresh)))
    assert (fresh.oldest == 25).all() and (fresh.added == 50).all()


def test_segments_follow_each_other_without_gap_or_overlap():
    ring = grown(57).ring
    first, middle, last = ring.oldest, ring.oldest + 3, ring.added
    whole, parts = ring.segment(first, last), [ring.segment(first, middle), ring.segment(middle, last)]
    np.testing.assert_array_equal(whole["counts"], parts[0]["counts"] + parts[1]["counts"])
    np.testing.assert_array_equal(whole["start"], np.concatenate([part["start"] for part in parts], axis=1))
    for e in range(3):
        pieces = [np.split(part["rows"], np.cumsum(part["counts"]))[e] for part in parts]
        equal(np.concatenate(pieces), np.split(whole["rows"], np.cumsum(whole["counts"]))[e])


def test_a_segment_is_a_copy():
    model = grown(12)
    segment = model.ring.segment(model.ring.oldest, 12)
    before = segment["rows"].copy()
    for _ in range(40):
        model.step()
    equal(segment["rows"], before)


def test_dead_or_existing_segments_are_skipped():
    model = grown(10)
    ring = model.ring
    early = ring.segment(0, 10)
    for _ in range(10):
        model.step()
    segments = {(0, 10): early, (10, 20): ring.segment(10, 20), (12, 15): ring.segment(12, 15)}
    model.check(reload(ring, ring.state(), segments).gather(*all_live(ring)))


def test_incomplete_ring_refuses_all_operations():
    model = grown(20)
    ring, state = model.ring, model.ring.state()
    fresh = reload(ring, state, {(10, 13): ring.segment(10, 13)})
    for use in (
        lambda: fresh.sample(Uniform(), 4, np.random.default_rng(0)),
        lambda: fresh.gather([[0]], [[11]]),
        lambda: fresh.add(model.world.act(), model.world.step()),
        lambda: fresh.segment(10, 12),
        fresh.state,
    ):
        with pytest.raises(UserError, match="load the segments of 13 to 20 first"):
            use()
    with pytest.raises(UserError, match="from 14 to 20 does not fit: the ring lacks 13 to 20"):
        fresh.load_segment(14, 20, ring.segment(14, 20))
    fresh.load_segment(11, 20, ring.segment(11, 20))
    model.check(fresh.gather(*all_live(fresh)))


def test_a_window_that_does_not_fit_is_refused():
    ring = grown(20).ring
    with pytest.raises(UserError, match="holds 30 transitions, but this one has room for 27"):
        reload(ring, ring.state(), {}, limit=27)


def test_another_world_or_storage_is_refused():
    state = grown(20).ring.state()
    with pytest.raises(UserError, match=r"is for 2 agents .* in float32 .* but this one for 2 agents .* in float16"):
        Ring(make_spec(), 3, 30, "float16").load_state(state)
    with pytest.raises(UserError, match=r"'tail' is int64 \(3,\), but must be int64 \(4,\)"):
        Ring(make_spec(observation=3), 4, 40).load_state(state)


def test_damaged_states_are_refused():
    ring = grown(20).ring
    state = ring.state()
    for name in state:
        with pytest.raises(UserError, match=f"no array '{name}'"):
            reload(ring, {key: value for key, value in state.items() if key != name}, {})
        with pytest.raises(UserError, match=f"array '{name}' is"):
            reload(ring, state | {name: state[name][:1]}, {})
        with pytest.raises(UserError, match=f"array '{name}' is"):
            reload(ring, state | {name: state[name].astype(np.float64)}, {})
    for name, change in (("window", [5, 0]), ("window", [0, -5]), ("head", 100), ("tail", -100)):
        with pytest.raises(UserError, match="contradict each other"):
            reload(ring, state | {name: state[name] + change}, {})


def test_damaged_segments_are_refused():
    ring = grown(20).ring
    good = ring.segment(10, 20)
    for name in good:
        with pytest.raises(UserError, match=f"no array '{name}'"):
            reload(ring, ring.state(), {(10, 20): {key: value for key, value in good.items() if key != name}})
        with pytest.raises(UserError, match=f"array '{name}' is"):
            reload(ring, ring.state(), {(10, 20): good | {name: good[name][:-1]}})
    swapped = good["start"].copy()
    swapped[0, [3, 4]] = swapped[0, [4, 3]]
    other = grown(20, seed=1).ring.segment(10, 20)
    for bad in (good | {"start": swapped}, good | {"start": good["start"] + 1}, other):
        with pytest.raises(UserError, match="belongs to another run or is damaged"):
            reload(ring, ring.state(), {(10, 20): bad})
    with pytest.raises(UserError, match="the ring lacks 10 to 20"):
        reload(ring, ring.state(), {(11, 21): good})


def test_only_live_transitions_can_be_saved():
    ring = grown(20).ring
    for first, last in ((9, 12), (10, 21), (12, 12), (13, 12)):
        with pytest.raises(UserError, match="which holds 10 to 20"):
            ring.segment(first, last)


def test_state_of_a_ring_without_observations():
    fresh = Ring(make_spec(), 3, 30)
    fresh.load_state(Ring(make_spec(), 3, 30).state())
    with pytest.raises(UserError, match="no first observation yet"):
        fresh._check_ready(np.arange(3))
