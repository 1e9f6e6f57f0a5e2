"""Copies that begin anew in the middle of an episode, as actors of a resumed run do, between any two checkpoints."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.replay import Ring
from tests.replay.model import ToyWorld, UnevenModel, all_live, equal, make_spec
from tests.replay.test_ring import ROUNDED

COPIES = 3
some = st.lists(st.integers(0, COPIES - 1), min_size=1, unique=True)


class Saved:
    """A ring's last checkpoint, which shares segments with those before as `Checkpoints` lets it."""

    def __init__(self, ring):
        self.segments, self.last = [], np.zeros(ring.copies, np.int64)
        self.save(ring)

    def save(self, ring):
        first = np.maximum(self.last, ring.oldest)
        if np.any(first < ring.added):
            self.segments.append((first, ring.added.copy(), ring.segment(first, ring.added)))
        self.last, self.state = ring.added.copy(), ring.state()

    def load(self, ring):
        fresh = Ring(ring.spec, ring.copies, ring.capacity, ring.layout.storage)
        fresh._words[:] = 0xAAAAAAAA  # nothing of it may be left
        fresh.load_state(self.state)
        for first, last, arrays in self.segments:
            if np.any(last > fresh.oldest):
                fresh.load_segment(first, last, arrays)
        return fresh


def make_model(fixed=False, storage="float32", capacity=30, seed=0):
    spec = make_spec(agents=2, observation=3, length=4 if fixed else None, fixed=fixed)
    worlds = [ToyWorld(spec, 1, seed + e, end_probability=0.3) for e in range(COPIES)]
    return UnevenModel(Ring(spec, COPIES, capacity, storage), worlds)


def test_a_run_that_restarts_after_each_of_two_checkpoints_is_loaded():
    """Without processes what `train --actors`, `--resume` and `--resume` do."""
    model = make_model(fixed=True, capacity=300)
    model.chunk([0, 1, 2], 10)
    saved = Saved(model.ring)
    for _ in range(2):
        model.ring = saved.load(model.ring)
        model.restart([0, 1, 2])
        model.chunk([0, 1, 2], 10)
        saved.save(model.ring)
    fresh = saved.load(model.ring)
    assert len(fresh) == 90 and len(saved.segments) == 3
    model.check(fresh.gather(*all_live(fresh)))


@given(
    moves=st.lists(
        st.one_of(
            st.tuples(st.just("chunk"), some, st.integers(1, 9)),
            st.tuples(st.just("restart"), some),
            st.tuples(st.just("save")),
            st.tuples(st.just("load")),
        ),
        max_size=30,
    ),
    fixed=st.booleans(),
    storage=st.sampled_from(["float32", "float16", "bfloat16"]),
    capacity=st.sampled_from([3, 12, 30, 90]),
    seed=st.integers(0, 2**32),
)
@example([("chunk", [0], 1), ("save",), ("restart", [0]), ("save",), ("load",)], False, "float32", 30, 0)
@settings(max_examples=100, deadline=None)
def test_steps_restarts_saves_and_loads_in_any_order_keep_every_transition(moves, fixed, storage, capacity, seed):
    model = make_model(fixed, storage, capacity, seed)
    saved, lists, observations, changed = Saved(model.ring), [[]] * COPIES, [None] * COPIES, False
    for kind, *arguments in [*moves, ("save",), ("load",)]:
        if kind == "save":
            saved.save(model.ring)
            lists, observations, changed = [[*one] for one in model.lists], [*model.observations], False
        elif kind == "load":
            fresh = saved.load(model.ring)
            assert fresh.added.tolist() == list(map(len, lists))
            if not changed:
                check_same(model.ring, fresh)
            model.ring, model.lists, model.observations = fresh, [[*one] for one in lists], [*observations]
        else:
            getattr(model, kind)(*arguments)
            changed = True
        if len(model.ring):
            model.check(model.ring.gather(*all_live(model.ring)), ROUNDED[storage])


def check_same(one, other):
    """Two rings that would be saved with the same bits."""
    parts = [ring.state() for ring in (one, other)]
    if len(one):
        parts = [state | ring.segment(ring.oldest, ring.added) for state, ring in zip(parts, (one, other), strict=True)]
    assert parts[0].keys() == parts[1].keys()
    for name in parts[0]:
        equal(parts[0][name], parts[1][name])


@given(
    times=st.lists(st.lists(st.integers(1, 12), min_size=COPIES, max_size=COPIES), min_size=2, max_size=4),
    fixed=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None)
def test_incomplete_transitions_of_earlier_versions_are_dropped(times, fixed, seed):
    """Each time all copies restart right after the checkpoint, and the row that died is in no file."""
    model = make_model(fixed, seed=seed, capacity=60)
    saved, lost = Saved(model.ring), [[] for _ in range(COPIES)]
    for number, each in enumerate(times):
        for e in range(COPIES):
            if number:
                before = model.ring._head[e]
                model.restart([e])
                if model.ring._head[e] > before:
                    lost[e].append(len(model.lists[e]) - 1)
            model.chunk([e], each[e])
        saved.save(model.ring)
        saved.state.pop("after", None)
        if saved.segments:
            saved.segments[-1][2].pop("before", None)
    fresh = saved.load(model.ring)
    lost = [[t for t in lost[e] if t >= model.ring.oldest[e]] for e in range(COPIES)]
    assert (fresh.oldest - model.ring.oldest).tolist() == list(map(len, lost))
    for e in range(COPIES):
        for t in lost[e]:
            model.lists[e].pop(t)
            model.lists[e].insert(0, None)
    model.check(fresh.gather(*all_live(fresh)))
    again = Saved(fresh).load(fresh)
    check_same(fresh, again)


def test_another_runs_segment_is_refused_despite_a_missing_dead_row():
    model = make_model(fixed=True)
    model.chunk([0, 1, 2], 2)
    saved = Saved(model.ring)
    model.restart([0])
    model.chunk([0, 1, 2], 5)
    saved.save(model.ring)
    first, last, arrays = saved.segments[-1]
    for change in (1, -1, 2):
        saved.segments[-1] = first, last, arrays | {"start": arrays["start"] + change}
        with pytest.raises(Exception, match="belongs to another run or is damaged"):
            saved.load(model.ring)
    for bad in ({"before": arrays["before"][:1]}, {"before": arrays["before"].astype(np.int64)}):
        saved.segments[-1] = first, last, arrays | bad
        with pytest.raises(Exception, match="array 'before' is"):
            saved.load(model.ring)
