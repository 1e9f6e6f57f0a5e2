"""The exact reference against what defines it: the list of a format's values."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.numerics.rounding.exact import exponent_of, neighbours, round_exact
from tests.numerics.numbers import EDGES, SLIDES, scalar

SMALL = [name for name in SLIDES + EDGES if scalar(name).width <= 12]


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(SMALL), st.floats(-2, 2), st.integers(-20, 20))
def test_neighbours_and_nearest_among_all_values(name: str, mantissa: float, exponent: int) -> None:
    format = scalar(name)
    values = [Fraction(v) for v in format.values()]
    value = Fraction(mantissa) * Fraction(2) ** exponent
    if abs(value) >= format.max:
        return
    lo, hi, _ = neighbours(abs(value), format)
    assert lo == max(v for v in values if v <= abs(value))
    assert hi == min(v for v in values if v > abs(value))
    distance = min(abs(v - value) for v in values)
    for rounding in ("nearest-even", "nearest-away"):
        assert abs(Fraction(round_exact(value, format, rounding)) - value) == distance
    assert round_exact(value, format, "down") == max(v for v in values if v <= value)
    assert round_exact(value, format, "up") == min(v for v in values if v >= value)
    assert abs(round_exact(value, format, "toward-zero")) == lo


@pytest.mark.parametrize("name", SMALL)
def test_values_are_unchanged_and_ties_go_to_the_even_code(name: str) -> None:
    format = scalar(name)
    values = format.values()
    for value in values:
        for rounding in ("nearest-even", "nearest-away", "toward-zero", "up", "down", "hysteresis"):
            assert round_exact(float(value), format, rounding, previous=0.1) == value
    if getattr(format, "mantissa", 1) == 0:
        return  # no even code: the larger, as IEEE 754 says
    for lo, hi in pairwise(values):
        chosen = round_exact((Fraction(lo) + Fraction(hi)) / 2, format)
        even = [v for v in (lo, hi) if format.encode(v) % 2 == 0]
        assert chosen in even or chosen == 0


def test_wrapping() -> None:
    q = scalar("Q3.2")  # -4 to 3.75
    assert [round_exact(v, q, overflow="wrap") for v in (4.0, 3.9, -4.25, 8.0, 1e9 + 0.25)] == [
        -4.0,
        -4.0,
        3.75,
        0.0,
        0.25,
    ]


def test_nan_without_a_code() -> None:
    assert round_exact(np.nan, scalar("Q8.8"), nan="zero") == 0
    assert round_exact(np.nan, scalar("E5M2:5"), nan="infinity") == np.inf
    with pytest.raises(UserError):
        round_exact(np.nan, scalar("E5M2:5"))


@given(st.fractions(min_value=Fraction(1, 10**9)))
def test_exponents(value: Fraction) -> None:
    assert Fraction(2) ** exponent_of(value) <= value < Fraction(2) ** (exponent_of(value) + 1)
