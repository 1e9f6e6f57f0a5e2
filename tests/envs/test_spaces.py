"""Spaces as flat vectors: sizes, encoding, decoding and what is refused."""

import itertools

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim, flatten
from hypothesis import given
from hypothesis import strategies as st

from shoal.envs.base import random_actions
from shoal.envs.spaces import action_size, decode, encode, legal_choices, observation_size, spec_of
from shoal.errors import UserError

UNIT = spaces.Box(-1, 1, (3,))


def test_observations_become_vectors():
    np.testing.assert_array_equal(encode(UNIT, [0.5, 0, -1]), np.float32([0.5, 0, -1]))
    np.testing.assert_array_equal(encode(spaces.Box(0, 255, (2,), np.uint8), np.uint8([7, 255])), [7, 255])
    np.testing.assert_array_equal(encode(spaces.MultiBinary(3), np.int8([1, 0, 1])), [1, 0, 1])
    np.testing.assert_array_equal(encode(spaces.Discrete(4), 3), [0, 0, 0, 1])
    np.testing.assert_array_equal(encode(spaces.Discrete(3, start=-1), np.int64(-1)), [1, 0, 0])


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (UNIT, [1, 2]),
        (UNIT, 1.0),
        (UNIT, np.zeros((3, 1))),
        (spaces.MultiBinary(2), [1]),
        (spaces.Discrete(4), 4),
        (spaces.Discrete(4, start=1), 0),
        (spaces.Discrete(4), -1),
        (spaces.Discrete(4), None),
        (UNIT, "abc"),
        (UNIT, [1j, 0, 0]),
        (UNIT, ["1", "0", "0"]),
        (UNIT, None),
        (spaces.MultiDiscrete([2, 3]), [1, 3]),
        (spaces.MultiDiscrete([2, 3]), [1]),
        (spaces.MultiDiscrete([2, 3]), None),
        (spaces.Dict(eye=UNIT, ear=spaces.Discrete(2)), {"eye": [1, 2, 3]}),
        (spaces.Dict(eye=UNIT, ear=spaces.Discrete(2)), {"eye": [1, 2, 3], "ear": 2}),
        (spaces.Dict(eye=UNIT), [1, 2, 3]),
        (spaces.Tuple([UNIT, UNIT]), ([1, 2, 3],)),
        (spaces.Tuple([UNIT, UNIT]), 7),
    ],
)
def test_observation_outside_its_space_is_refused(space, value):
    assert encode(space, value) is None


@given(
    start=st.integers(-5, 5),
    vector=st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=7),
    padding=st.lists(st.just(np.float32(99)), max_size=3),
)
def test_discrete_plays_the_largest_and_never_the_padding(start, vector, padding):
    space = spaces.Discrete(len(vector), start=start)
    chosen = decode(space, np.float32(vector + padding))
    assert space.contains(chosen)
    assert vector[chosen - start] == max(vector)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_box_actions_are_clipped_in_their_precision(dtype):
    space = spaces.Box(np.array([-0.1, 0.3], dtype), np.array([0.1, 0.7], dtype), dtype=dtype)
    for low_or_high in (np.float32([-0.1, 0.3, 99]), np.float32([0.1, 0.7, 99]), np.float32([-5, 5, 99])):
        assert space.contains(decode(space, low_or_high))
    np.testing.assert_array_equal(decode(space, np.float32([0.0625, 0.5])), [0.0625, 0.5])


def test_sizes_of_spaces():
    assert [observation_size(s, "a", "x") for s in (UNIT, spaces.Discrete(4, start=2), spaces.MultiBinary(5))] == [
        3,
        4,
        5,
    ]
    assert [action_size(s, "a", "x") for s in (UNIT, spaces.Discrete(4, start=2))] == [3, 4]


LEAVES = st.one_of(
    st.builds(
        lambda shape, dtype: spaces.Box(-3, 3, shape, dtype),
        st.lists(st.integers(1, 3), max_size=3).map(tuple),
        st.sampled_from([np.float32, np.float64, np.int16]),
    ),
    st.builds(spaces.Discrete, st.integers(1, 5), start=st.integers(-3, 3)),
    st.builds(spaces.MultiBinary, st.integers(1, 4) | st.just((2, 2))),
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.just(spaces.MultiDiscrete([[2, 3], [1, 4]], start=[[1, -1], [0, 2]])),
)
SPACES = st.recursive(
    LEAVES,
    lambda part: (
        st.lists(part, min_size=1, max_size=3).map(spaces.Tuple)
        | st.dictionaries(st.sampled_from("zebra"), part, min_size=1, max_size=3).map(spaces.Dict)
    ),
    max_leaves=5,
)


@given(space=SPACES, seed=st.integers(0, 2**31))
def test_observations_are_flattened_as_gymnasium_does_it(space, seed):
    space.seed(seed)
    value = space.sample()
    vector = encode(space, value)
    assert vector.dtype == np.float32 and len(vector) == observation_size(space, "a", "x") == flatdim(space)
    np.testing.assert_array_equal(vector, np.asarray(flatten(space, value), np.float32))


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Text(4), "only Box, Discrete, MultiBinary and MultiDiscrete are supported"),
        (spaces.Dict(ear=spaces.Sequence(UNIT)), "only Box, Discrete, MultiBinary and MultiDiscrete are supported"),
        (
            spaces.Box(0, 255, (8, 8, 3), np.uint8),
            'Atari games on their memory (`env_options` \'{"obs_type": "ram"}\')',
        ),
        (spaces.Box(0, 255, (8, 8), np.uint8), "images is not supported"),
        (spaces.Tuple([UNIT, spaces.Box(0, 255, (8, 8), np.uint8)]), "images is not supported"),
        (spaces.Dict({}), "there is nothing to see"),
        (spaces.Box(0, 1, (0,)), "there is nothing to see"),
    ],
)
def test_unsupported_observation_spaces_are_refused(space, words):
    with pytest.raises(UserError) as error:
        observation_size(space, "scout", "pettingzoo:x")
    sentence = str(error.value)
    assert "'scout'" in sentence and type(space).__name__ in sentence and words in sentence
    assert "\n" not in sentence and sentence.endswith(".")


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (2, 2)),
        spaces.Box(0, 9, (2,), np.int64),
        spaces.Dict(a=UNIT),
        spaces.Box(-np.inf, np.inf, (2,)),
        spaces.Box(np.float32([0, 0]), np.float32([1, np.inf])),
        spaces.Box(-3e38, 3e38, (2,)),
        spaces.Box(-1, 1, (0,)),
    ],
)
@pytest.mark.filterwarnings("error")
def test_unsupported_action_spaces_are_refused(space):
    with pytest.raises(UserError) as error:
        action_size(space, "scout", "pettingzoo:x")
    sentence = str(error.value)
    assert "'scout'" in sentence and type(space).__name__ in sentence and "\n" not in sentence


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiDiscrete([[2, 3], [1, 4]], start=[[1, -1], [0, 2]]),
        spaces.MultiDiscrete([3, 2], dtype=np.int32),
        spaces.MultiBinary(3),
        spaces.MultiBinary((2, 2)),
    ],
    ids=str,
)
def test_every_combination_of_choices_is_one_choice(space):
    """What is played is of the space, in its data type, and no two choices are the same."""
    size = action_size(space, "a", "x")
    padded = np.pad(np.eye(size, dtype=np.float32), [(0, 0), (0, 2)])
    played = [decode(space, vector) for vector in padded]
    assert all(space.contains(action) and action.dtype == space.dtype for action in played)
    entries = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.full(space.shape, 2)
    assert len({action.tobytes() for action in played}) == size == entries.prod()
    space.seed(0)
    samples = {space.sample().tobytes() for _ in range(2000)}
    assert samples == {action.tobytes() for action in played}  # as Gymnasium draws them


@pytest.mark.parametrize(
    ("space", "blocks"),
    [
        (spaces.MultiDiscrete([2, 65]), (2, 65)),
        (spaces.MultiDiscrete([[9, 3], [1, 5]], start=[[1, -1], [0, 2]], dtype=np.int32), (9, 3, 1, 5)),
        (spaces.MultiBinary((2, 4)), (2,) * 8),
    ],
    ids=str,
)
def test_many_combinations_are_several_choices(space, blocks):
    """Each entry is chosen by the largest number of its own block; a mask is theirs one after the other."""
    spec = spec_of("x", ["a"], [UNIT], [space], None, None)
    assert spec.choices == (blocks,) and spec.action_sizes == (sum(blocks),) and spec.discrete
    rng = np.random.default_rng(0)
    for vector in random_actions(spec, 20, rng)[:, 0]:
        action = decode(space, vector)
        assert space.contains(action) and action.dtype == space.dtype
        entries = action - getattr(space, "start", 0)
        assert [part.argmax() for part in np.split(vector, np.cumsum(blocks)[:-1])] == entries.ravel().tolist()
    mask = rng.random(sum(blocks)) < 0.5
    assert np.array_equal(legal_choices(space, mask), mask)
    assert np.array_equal(legal_choices(space, tuple(np.split(mask, np.cumsum(blocks)[:-1]))), mask)


def test_mask_of_combinations_allows_what_the_masks_of_all_entries_allow():
    space = spaces.MultiDiscrete([2, 3])
    for mask in itertools.product([0, 1], repeat=5):
        legal = legal_choices(space, np.int8(mask))
        for k, action in enumerate(itertools.product(range(2), range(3))):
            assert legal[k] == (mask[action[0]] and mask[2 + action[1]])
    for wrong in (np.ones(6), np.ones((2, 5)), "11111", None, (np.ones(2), np.ones(2)), [[1, 1], [1, 1, 1]]):
        assert legal_choices(space, wrong) is None


def test_choices_beside_boxes():
    """Choices are in the box from -1 to 1, whose ends the world's units leave as they are."""
    spec = spec_of("x", ["a", "b"], [UNIT] * 2, [spaces.Discrete(3), spaces.Box(0, 4, (2,))], None, None)
    assert spec.choices == ((3,), ()) and spec.mixed and not spec.discrete
    actions = np.float32([[[0, 1, 0], [0.5, -1, 0]]])
    assert np.array_equal(spec.to_world(actions), np.float32([[[0, 1, 0], [3, 0, 0]]]))
    drawn = random_actions(spec, 500, np.random.default_rng(0))
    assert np.array_equal(np.unique(drawn[:, 0], axis=0), np.eye(3)[::-1]) and drawn[:, 1].max() > 3.9


def test_long_space_is_abbreviated_in_messages():
    with pytest.raises(UserError) as error:
        observation_size(spaces.Dict({f"part {i}": spaces.Text(4) for i in range(99)}), "a", "x")
    assert len(str(error.value)) < 350
