"""16-bit codes: widened exactly, narrowed to the nearest, against numpy and ml_dtypes."""

import ml_dtypes
import numpy as np
import pytest
from numba import njit

from shoal.replay import half

CODES = np.arange(2**16, dtype=np.uint16)
ORACLES = {
    "float16": (np.float16, half.widen_float16, half.narrow_float16, half.FLOAT16_BOUND),
    "bfloat16": (ml_dtypes.bfloat16, half.widen_bfloat16, half.narrow_bfloat16, half.BFLOAT16_BOUND),
}


def over(function, values, dtype):
    """The function on every value, in a loop as the ring has it."""

    @njit
    def loop(source, target):
        for k in range(source.size):
            target[k] = function(source[k])

    target = np.empty(values.size, dtype)
    loop(values, target)
    return target


def same_but_for_nan(one, other):
    np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
    np.testing.assert_array_equal(one.view(np.uint32)[~np.isnan(one)], other.view(np.uint32)[~np.isnan(other)])


@pytest.mark.parametrize("storage", ORACLES)
def test_every_code_is_widened_exactly(storage):
    dtype, widen, _, _ = ORACLES[storage]
    with np.errstate(invalid="ignore"):
        same_but_for_nan(over(widen, CODES, np.float32), CODES.view(dtype).astype(np.float32))


@pytest.mark.parametrize("storage", ORACLES)
def test_narrowing_rounds_to_nearest_even(storage):
    """Every code's value, the middles between neighbours and what is just beside them, and random bits."""
    dtype, _, narrow, _ = ORACLES[storage]
    with np.errstate(all="ignore"):
        exact = CODES.view(dtype).astype(np.float32)
        exact = exact[np.isfinite(exact)]
        middle = ((exact[:-1].astype(np.float64) + exact[1:]) / 2).astype(np.float32)
        beside = [np.nextafter(middle, np.float32(way)) for way in (-np.inf, np.inf)]
        bits = np.random.default_rng(0).integers(2**32, size=200_000, dtype=np.uint32)
        values = np.concatenate([exact, middle, *beside, bits.view(np.float32), np.float32([np.inf, -np.inf, np.nan])])
        got = over(narrow, values, np.uint16).view(dtype).astype(np.float32)
        same_but_for_nan(got, values.astype(dtype).astype(np.float32))


@pytest.mark.parametrize("storage", ORACLES)
def test_bound_is_the_first_value_that_becomes_infinite(storage):
    dtype, _, _, bound = ORACLES[storage]
    below = np.nextafter(bound, np.float32(0))
    with np.errstate(over="ignore"):
        assert np.isinf(bound.astype(dtype))
        assert np.isfinite(below.astype(dtype))
    values = np.array([0, below, -bound, bound, np.nan], np.float32)
    assert half.first_beyond(values, bound) == 2
    assert half.first_beyond(np.array([below, -below, np.inf, np.nan], np.float32), bound) == -1
