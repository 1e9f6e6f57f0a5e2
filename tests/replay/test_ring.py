"""The ring gives back what was put in: every live transition, whole, with its true next observation."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.envs.base import Step, stagger_offsets
from shoal.errors import UserError
from shoal.replay import Neighbor, Ring, Uniform, can_sample
from shoal.replay import ring as ring_module
from shoal.replay.layout import rows_needed
from shoal.system import memory
from tests.replay.model import Model, ToyWorld, UnevenModel, all_live, equal, make_spec

ROUNDED = {
    "float32": lambda values: values,
    "float16": lambda values: values.astype(np.float16).astype(np.float32),
    "bfloat16": lambda values: values.astype(ml_dtypes.bfloat16).astype(np.float32),
}


@st.composite
def models(draw, storages=tuple(ROUNDED)):
    """A ring of any small shape beside its list, in a world of fixed or free episode lengths."""
    fixed = draw(st.booleans())
    spec = make_spec(
        agents=draw(st.integers(1, 3)),
        observation=draw(st.integers(1, 5)),
        action=draw(st.integers(1, 3)),
        length=draw(st.integers(1, 6)) if fixed else None,
        fixed=fixed,
    )
    copies = draw(st.integers(1, 4))
    capacity = copies * draw(st.integers(1, 12)) + draw(st.integers(0, copies - 1))
    world = ToyWorld(spec, copies, draw(st.integers(0, 2**32)), draw(st.sampled_from([0.0, 0.3, 1.0])))
    return Model(Ring(spec, copies, capacity, draw(st.sampled_from(storages))), world)


@given(model=models(), steps=st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_live_transitions_equal_the_added_ones(model, steps):
    ring = model.ring
    for step in range(steps):
        model.step()
        live = min(step + 1, ring.capacity_per_copy)
        assert (ring.oldest == step + 1 - live).all() and (ring.added == step + 1).all()
        assert len(ring) == live * ring.copies
        model.check(ring.gather(*all_live(ring)), ROUNDED[ring.layout.storage])


@given(model=models(), data=st.data(), parallel=st.booleans())
@settings(max_examples=40, deadline=None)
def test_any_selection_in_any_order(model, data, parallel):
    """Runs, repetitions and jumps, in one or several mini-batches, by one thread or by all."""
    for _ in range(data.draw(st.integers(1, 30), label="steps")):
        model.step()
    ring = model.ring
    shape = (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 80)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    copies = rng.integers(ring.copies, size=shape)
    transitions = rng.integers(ring.oldest[copies], ring.added[copies])
    follows = rng.random(shape) < 0.7
    for m in range(shape[0]):
        for b in range(1, shape[1]):
            if follows[m, b] and transitions[m, b - 1] + 1 < ring.added[copies[m, b - 1]]:
                copies[m, b], transitions[m, b] = copies[m, b - 1], transitions[m, b - 1] + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring_module, "PARALLEL_BYTES", 0 if parallel else 2**60)
        batch = ring.gather(copies, transitions)
    equal(batch.copies, copies)
    equal(batch.transitions, transitions)
    model.check(batch, ROUNDED[ring.layout.storage])


@given(model=models(), steps=st.integers(2, 40), seed=st.integers(0, 2**32), minibatches=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_samples_are_live_and_as_added(model, steps, seed, minibatches):
    for _ in range(steps):
        model.step()
    ring = model.ring
    for sampler in (Uniform(), Neighbor(2, include_center=True)):
        batch = ring.sample(sampler, 25, np.random.default_rng(seed), minibatches)
        assert batch.joint.shape[:2] == (minibatches, 25)
        assert (batch.transitions >= ring.oldest[batch.copies]).all()
        assert (batch.transitions < ring.added[batch.copies]).all()
        model.check(batch, ROUNDED[ring.layout.storage])


@st.composite
def uneven_models(draw):
    """A ring beside its lists, where every copy goes at its own pace."""
    fixed = draw(st.booleans())
    spec = make_spec(agents=2, observation=3, length=draw(st.integers(1, 6)) if fixed else None, fixed=fixed)
    copies, seed = draw(st.integers(1, 4)), draw(st.integers(0, 2**32))
    worlds = [ToyWorld(spec, 1, seed + e, draw(st.sampled_from([0.0, 0.3, 1.0]))) for e in range(copies)]
    capacity = copies * draw(st.integers(1, 12))
    return UnevenModel(Ring(spec, copies, capacity, draw(st.sampled_from(["float32", "float16"]))), worlds)


def chunks(copies):
    """Which copies make how many steps, several times; a copy may never be among them."""
    some = st.lists(st.integers(0, copies - 1), min_size=1, unique=True)
    return st.lists(st.tuples(some, st.integers(0, 9)), min_size=1, max_size=12)


@given(model=uneven_models(), data=st.data(), seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_copies_at_their_own_pace(model, data, seed):
    """Some begin late or never, some have wrapped while others have not: all that is live is as added."""
    ring, rounded = model.ring, ROUNDED[model.ring.layout.storage]
    for copies, time in data.draw(chunks(ring.copies)):
        model.chunk(copies, time)
        assert ring.added.tolist() == [len(transitions) for transitions in model.lists]
        assert ring.oldest.tolist() == [max(0, len(own) - ring.capacity_per_copy) for own in model.lists]
        if len(ring):
            model.check(ring.gather(*all_live(ring)), rounded)
            model.check(ring.sample(Uniform(), 25, np.random.default_rng(seed), 2), rounded)
        if can_sample(ring, Neighbor(2)):
            model.check(ring.sample(Neighbor(2), 25, np.random.default_rng(seed), 2), rounded)


@given(model=uneven_models(), data=st.data())
@settings(max_examples=40, deadline=None)
def test_copies_that_restart_in_the_middle_of_an_episode(model, data):
    """What came before stays as it was; where restarts take rows, a few of the oldest are forgotten.

    For each restart at most two: its own row, and one of an episode that ends sooner than without it.
    """
    ring, rounded, restarts = model.ring, ROUNDED[model.ring.layout.storage], 0
    for copies, time in data.draw(chunks(ring.copies)):
        if data.draw(st.booleans()):
            model.restart(copies)
            restarts += 1
        model.chunk(copies, time)
        assert ring.added.tolist() == [len(transitions) for transitions in model.lists]
        live = [min(len(own), ring.capacity_per_copy) for own in model.lists]
        assert all(
            most - 2 * restarts <= held <= most for held, most in zip(ring.added - ring.oldest, live, strict=True)
        )
        if len(ring):
            model.check(ring.gather(*all_live(ring)), rounded)


def test_chunks_of_all_copies_equal_steps_of_all_copies():
    """Lock-step or not: the same rows, and the same draws of the same generator."""
    spec = make_spec(length=5, fixed=True)
    model = Model(Ring(spec, 3, 30), ToyWorld(spec, 3, seed=0))
    other = Ring(spec, 3, 30)
    other.begin(model.observation)
    played, steps = [], []
    model.ring.add, add = lambda *step: (played.append(step[0]), steps.append(step[1]), add(*step)), model.ring.add
    for _ in range(24):
        model.step()
    for first in range(0, 24, 8):
        chunk = slice(first, first + 8)
        actions, outcome = np.array(played[chunk]), Step(*map(np.array, zip(*steps[chunk], strict=True)))
        for copies in ([2, 0], [1]):
            there = Step(*(array[:, copies] for array in outcome))
            other.add_chunk(copies, actions[:, copies], there)
    for name, array in model.ring.state().items():
        equal(array, other.state()[name])
    for sampler in (Uniform(), Neighbor(3)):
        one, two = (ring.sample(sampler, 50, np.random.default_rng(1), 2) for ring in (model.ring, other))
        for ours, theirs in zip(one, two, strict=True):
            equal(ours, theirs)


def test_wrong_chunks_are_refused():
    spec = make_spec(agents=2, observation=3, action=2)
    ring, world = Ring(spec, 4, capacity=40, storage="float16"), ToyWorld(spec, 2, seed=7)
    step = world.step()
    steps = Step(*(array[None] for array in step))
    ring.begin(world.observe(), [3, 1])
    with pytest.raises(UserError, match="no first observation"):
        ring.add_chunk([3, 0], world.act()[None], steps)
    with pytest.raises(UserError, match="no first observation"):
        ring.add(np.zeros((4, 2, 2)), step)
    for copies in ([3, 3], [3, 4], [-1, 3], [[3, 1]]):
        with pytest.raises(UserError, match="from 0 to 3, each once"):
            ring.add_chunk(copies, world.act()[None], steps)
    with pytest.raises(UserError, match=r"step.observation has shape \(1, 2, 2, 3\), but .* takes \(2, 2, 2, 3\)"):
        ring.add_chunk([3, 1], np.zeros((2, 2, 2, 2)), steps)
    steps.observation[0, 0, 1] = 1e6
    with pytest.raises(UserError, match="agent_1 in copy 3 is 1e"):
        ring.add_chunk([3, 1], world.act()[None], steps)
    assert not ring.added.any()
    steps.observation[0, 0, 1] = 1
    ring.add_chunk([3, 1], world.act()[None], steps)
    with pytest.raises(UserError, match="begun already"):
        ring.begin(world.observe(), [0, 1])
    ring.begin(world.observe(), [0, 2])
    assert ring.added.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("length", range(1, 9))
@pytest.mark.parametrize("transitions", range(1, 20))
def test_number_of_rows_for_fixed_length_episodes(length, transitions):
    """Count the rows that a window of transitions spans, for every stagger and every moment."""
    widest = 0
    for age in stagger_offsets(length, length):
        ends = np.arange(length - age - 1, 200, length)
        for first in range(100):
            inside = (ends >= first) & (ends < first + transitions)
            widest = max(widest, transitions + np.count_nonzero(inside) + 1)
    assert rows_needed(make_spec(length=length, fixed=True), transitions) == widest


def test_number_of_rows_for_one_step_episodes():
    assert rows_needed(make_spec(length=25, fixed=False), 10) == 21
    assert rows_needed(make_spec(), 10) == 21


def test_unexpectedly_short_episodes_overwrite_nothing():
    spec = make_spec(length=5, fixed=True)
    model = Model(Ring(spec, 2, 20), ToyWorld(spec, 2, seed=0))
    for _ in range(30):
        model.step()
    with pytest.raises(RuntimeError, match="ended one early"):
        for _ in range(10):
            model.world.age[:] = 4
            model.step()
    model.check(model.ring.gather(*all_live(model.ring)))


def test_joint_input_is_contiguous_in_the_row():
    """With float32 the first J words of a row are a critic's input."""
    spec = make_spec(agents=2, observation=3, action=2)
    model = Model(Ring(spec, 1, 4), ToyWorld(spec, 1, seed=1))
    model.step()
    assert model.ring.row_bytes == 4 * (2 * 3 + 2 * 2 + 2 + 2)
    equal(model.ring.store.floats[0, :10], model.ring.gather([[0]], [[0]]).joint[0, 0])


def test_sixteen_bits_take_half_the_observation():
    spec = make_spec(agents=3, observation=5, action=2)
    assert Ring(spec, 1, 4).row_bytes == 4 * (15 + 6 + 3 + 3)
    assert Ring(spec, 1, 4, "float16").row_bytes == 4 * (8 + 6 + 3 + 3)
    assert Ring(spec, 1, 4, "bfloat16").row_bytes == 4 * (8 + 6 + 3 + 3)


def test_allocation_is_limited_to_what_the_run_produces():
    spec = make_spec(length=5, fixed=True)
    small, large = Ring(spec, 4, capacity=4000, limit=38), Ring(spec, 4, capacity=4000)
    assert (small.capacity_per_copy, large.capacity_per_copy) == (10, 1000)
    assert small.nbytes == 4 * (13 * small.row_bytes + 10 * 8)
    assert large.nbytes == 4 * (1201 * large.row_bytes + 1000 * 8)


@pytest.mark.parametrize("storage", ROUNDED)
def test_batches_are_reused_and_their_action_tails_zeroed(storage):
    spec = make_spec()
    model = Model(Ring(spec, 2, 20, storage), ToyWorld(spec, 2, seed=3))
    for _ in range(5):
        model.step()
    rng = np.random.default_rng(0)
    first = model.ring.sample(Uniform(), 16, rng)
    first.next_joint[:] = 7
    second = model.ring.sample(Uniform(), 16, rng)
    assert second.joint is first.joint
    model.check(second, ROUNDED[storage])
    assert model.ring.sample(Uniform(), 17, rng).joint is not first.joint


def test_other_dtypes_are_converted_to_float32():
    spec = make_spec()
    ring = Ring(spec, 2, 20)
    world = ToyWorld(spec, 2, seed=4)
    first, actions, step = world.observe(), world.act(), world.step()
    ring.begin(first.astype(np.float64))
    ring.add(np.asfortranarray(actions.astype(np.float64)), step._replace(reward=step.reward.astype(np.float64)))
    batch = ring.gather([[1]], [[0]])
    equal(batch.joint[0, 0], np.concatenate([first[1].ravel(), actions[1].ravel()]))
    equal(batch.reward[0, 0], step.reward[1])


@pytest.mark.parametrize(("storage", "largest"), [("float16", 65519.99), ("bfloat16", 3.3895e38)])
def test_values_beyond_float16_are_refused_without_changes(storage, largest):
    spec = make_spec()
    model = Model(Ring(spec, 2, 20, storage), ToyWorld(spec, 2, seed=5))
    model.step()
    actions, step = model.world.act(), model.world.step()
    step.final_observation[1, 0, 2] = largest * 1.003
    with pytest.raises(UserError, match=f"agent_0 in copy 1 is .* which {storage} cannot hold"):
        model.ring.add(actions, step)
    assert len(model.ring) == 2
    model.check(model.ring.gather(*all_live(model.ring)), ROUNDED[storage])
    step.final_observation[1, 0, 2] = largest
    model.ring.add(actions, step)
    assert np.isfinite(model.ring.gather([[1]], [[1]]).next_joint).all()
    with pytest.raises(UserError, match="cannot hold"):
        Ring(spec, 2, 20, storage).begin(np.full((2, 2, 3), -largest * 1.003))


def test_non_finite_values_are_stored_unchanged():
    spec = make_spec(agents=1, observation=3)
    for storage in ROUNDED:
        model = Model(Ring(spec, 1, 4, storage), ToyWorld(spec, 1, seed=6))
        step = model.world.step()
        step.final_observation[0, 0] = [np.inf, -np.inf, np.nan]
        model.ring.add(model.world.act(), step)
        np.testing.assert_array_equal(model.ring.gather([[0]], [[0]]).next_joint[0, 0, :3], [np.inf, -np.inf, np.nan])


def test_wrong_shapes_and_values_are_refused():
    spec = make_spec(agents=2, observation=3, action=2)
    world = ToyWorld(spec, 4, seed=7)
    with pytest.raises(UserError, match="capacity is 3, but must be at least 4"):
        Ring(spec, 4, capacity=3)
    with pytest.raises(UserError, match="`storage` 'int8' is not known"):
        Ring(spec, 4, storage="int8")
    with pytest.raises(UserError, match="`limit` is 0"):
        Ring(spec, 4, limit=0)
    with pytest.raises(UserError, match="`copies` is 0"):
        Ring(spec, 0)
    ring = Ring(spec, 4, capacity=40)
    with pytest.raises(UserError, match="call begin"):
        ring.add(world.act(), world.step())
    with pytest.raises(UserError, match=r"observation has shape \(4, 2, 2\), but the ring of toy takes \(4, 2, 3\)"):
        ring.begin(np.zeros((4, 2, 2)))
    ring.begin(world.observe())
    with pytest.raises(UserError, match=r"actions has shape \(4, 2, 1\)"):
        ring.add(np.zeros((4, 2, 1)), world.step())
    for field in ("observation", "reward", "terminated", "alive", "ended", "final_observation"):
        step = world.step()
        with pytest.raises(UserError, match=rf"step\.{field} has shape"):
            ring.add(world.act(), step._replace(**{field: getattr(step, field)[:3]}))
    with pytest.raises(UserError, match="holds more than 0 transitions"):
        ring.sample(Uniform(), 4, np.random.default_rng(0))
    ring.add(world.act(), world.step())
    with pytest.raises(UserError, match="begun already"):
        ring.begin(world.observe())
    for arguments in ((0, 1), (4, 0)):
        with pytest.raises(UserError, match="must be at least 1"):
            ring.sample(Uniform(), arguments[0], np.random.default_rng(0), arguments[1])
    for copies, transitions in (([0], [0]), ([[0]], [[0, 0]]), ([[]], [[]])):
        with pytest.raises(UserError, match=r"must be \(M, B\)"):
            ring.gather(copies, transitions)
    for copies in ([[4]], [[-1]]):
        with pytest.raises(UserError, match="from 0 to 3"):
            ring.gather(copies, [[0]])
    for transitions in ([[1]], [[-1]]):
        with pytest.raises(UserError, match="of copy 0 the live ones are 0 to 0"):
            ring.gather([[0]], transitions)


def test_ring_that_does_not_fit_names_the_largest_capacity(monkeypatch):
    spec = make_spec(agents=3, observation=18, action=5, length=25, fixed=True)
    free = 10_000_000
    monkeypatch.setattr(memory, "free_memory", lambda: free)
    with pytest.raises(UserError) as refusal:
        Ring(spec, 25, capacity=1_000_000)
    sentence = str(refusal.value)
    assert "1,000,000 transitions needs 320 MB" in sentence
    assert "only 10 MB of memory is free" in sentence
    largest = int(sentence.split("that fits is ")[1].split()[0].replace(",", ""))
    assert Ring(spec, 25, largest).nbytes <= 9_000_000
    with pytest.raises(UserError):
        Ring(spec, 25, largest + 25)
    assert Ring(spec, 25, capacity=1_000_000, limit=20_000).capacity == 20_000
    free = 9_000
    with pytest.raises(UserError, match=r"not even one transition for each copy fits \(25 copies\)"):
        Ring(spec, 25, capacity=1_000_000)
    monkeypatch.setattr(memory, "free_memory", lambda: None)
    assert Ring(spec, 25, capacity=100_000).capacity == 100_000


def test_a_sample_that_does_not_fit_is_refused(monkeypatch):
    spec = make_spec()
    model = Model(Ring(spec, 2, 20), ToyWorld(spec, 2, seed=8))
    model.step()
    monkeypatch.setattr(memory, "free_memory", lambda: 1_000_000)
    with pytest.raises(
        UserError, match=r"A sample of 2 × 100,000 transitions needs .* largest batch that fits is"
    ) as refusal:
        model.ring.sample(Uniform(), 100_000, np.random.default_rng(0), minibatches=2)
    fits = int(str(refusal.value).split("that fits is ")[1].rstrip(".").replace(",", ""))
    assert model.ring.sample(Uniform(), fits, np.random.default_rng(0), minibatches=2).joint.shape[1] == fits
