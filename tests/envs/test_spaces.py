"""Spaces as flat vectors: sizes, encoding, decoding and what is refused."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from shoal.envs.spaces import action_size, decode, encode, observation_size
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
    ],
)
def test_observation_that_is_not_of_its_space(space, value):
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
def test_box_is_clipped_into_itself_in_its_own_precision(dtype):
    space = spaces.Box(np.array([-0.1, 0.3], dtype), np.array([0.1, 0.7], dtype), dtype=dtype)
    for low_or_high in (np.float32([-0.1, 0.3, 99]), np.float32([0.1, 0.7, 99]), np.float32([-5, 5, 99])):
        assert space.contains(decode(space, low_or_high))
    np.testing.assert_array_equal(decode(space, np.float32([0.0625, 0.5])), [0.0625, 0.5])


def test_sizes():
    assert [observation_size(s, "a", "x") for s in (UNIT, spaces.Discrete(4, start=2), spaces.MultiBinary(5))] == [
        3,
        4,
        5,
    ]
    assert [action_size(s, "a", "x") for s in (UNIT, spaces.Discrete(4, start=2))] == [3, 4]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (8, 8, 3), np.uint8),
        spaces.Box(0, 1, ()),
        spaces.MultiBinary((2, 2)),
        spaces.MultiDiscrete([2, 3]),
        spaces.Dict(eye=UNIT, ear=spaces.Discrete(2)),
        spaces.Tuple([UNIT, UNIT]),
        spaces.Text(4),
    ],
)
def test_observation_spaces_that_are_not_flat_get_a_sentence(space):
    with pytest.raises(UserError) as error:
        observation_size(space, "scout", "pettingzoo:x")
    sentence = str(error.value)
    assert "'scout'" in sentence and type(space).__name__ in sentence and "Box of shape (k,)" in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Box(-1, 1, (2, 2)),
        spaces.Box(0, 9, (2,), np.int64),
        spaces.Dict(a=UNIT),
        spaces.Box(-np.inf, np.inf, (2,)),
        spaces.Box(np.float32([0, 0]), np.float32([1, np.inf])),
    ],
)
def test_action_spaces_that_cannot_be_played_get_a_sentence(space):
    with pytest.raises(UserError) as error:
        action_size(space, "scout", "pettingzoo:x")
    sentence = str(error.value)
    assert "'scout'" in sentence and type(space).__name__ in sentence and "\n" not in sentence


def test_a_long_space_is_shortened():
    with pytest.raises(UserError) as error:
        observation_size(spaces.Dict({f"part {i}": UNIT for i in range(99)}), "a", "x")
    assert len(str(error.value)) < 350
