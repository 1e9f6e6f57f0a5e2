"""Accumulators: every pair of values of every format of up to 10 bits is added, in every rounding."""

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.numerics import FixedFormat, FixedMultiplier, FloatFormat, FloatMultiplier, MacUnit, matmul
from shoal.numerics.mac.exact import Events, add_exact
from shoal.numerics.mac.tile_kernels import MODE, NEAREST
from shoal.numerics.mac.tiles import fast
from tests.numerics.numbers import ROUNDINGS, same
from tests.numerics.table import Table

SMALL = [FloatFormat(e, m) for e in range(1, 9) for m in range(1, 10 - e)]


def all_sums(unit: MacUnit, values: NDArray[np.float64], **arguments: object) -> NDArray:
    """x_i + y_j as the products x_i·1 and 1·y_j: row i of a is (x_i, 1), column j of b (1, y_j)."""
    one = np.ones_like(values)
    return matmul(np.stack([values, one], 1), np.stack([one, values], 0), unit, **arguments)


def odd_sums(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """All pairs, rounded to odd in float64: on the same side of every value and tie as the exact sum."""
    a, b = np.broadcast_arrays(x[:, None], x)
    s = a + b
    other = s - a
    error = (a - (s - other)) + (b - other)
    even = s.view(np.int64) % 2 == 0
    toward = np.nextafter(s, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & even, toward, s)


def pair_unit(sums: FloatFormat, rounding: str, overflow: str) -> MacUnit:
    """Both operands are as wide as the sums, so that x·1 and 1·y are products of the unit."""
    wide = FloatFormat(min(8, sums.exponent + 3), sums.mantissa, nans=False)
    return MacUnit(FloatMultiplier(wide, cfg=4), sums, rounding=rounding, overflow=overflow)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("sums", SMALL, ids=repr)
def test_every_pair_of_values(sums: FloatFormat, rounding: str) -> None:
    values = sums.values()
    for overflow in ("saturate", "infinity") if rounding in ("nearest-even", "up") else ("saturate",):
        unit = pair_unit(sums, rounding, overflow)
        expected = Table(sums).round(odd_sums(values).reshape(-1), rounding, overflow).reshape(values.size, -1)
        assert same(all_sums(unit, values).astype(np.float64), expected).all()


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_table_of_sums_matches_the_exact_reference(rounding: str) -> None:
    rng = np.random.default_rng(0)
    for sums in SMALL[::3]:
        unit = MacUnit(FloatMultiplier(FloatFormat(5, 2), cfg=5), sums, rounding=rounding)
        values = sums.values()
        x = rng.choice(values, (200, 2))
        expected = [add_exact(*pair, unit, Events()) for pair in x.tolist()]
        table = Table(sums).round(odd_sums(values).reshape(-1), rounding, "saturate").reshape(values.size, -1)
        at = np.searchsorted(values, x)
        assert same(table[at[:, 0], at[:, 1]], np.array(expected)).all()


@pytest.mark.parametrize("sums", [format for format in SMALL if format.exponent <= 6], ids=repr)
def test_every_pair_in_the_loop_with_one_constant(sums: FloatFormat) -> None:
    """The fast loop of ties to even, which adds and subtracts a constant: products here have no more bits than sums."""
    ones = FloatFormat(4, 0, nans=False)
    unit = MacUnit(FloatMultiplier(FloatFormat(7, sums.mantissa, nans=False), ones, cfg=4), sums)
    chosen = fast(unit, False)
    assert chosen is not None and chosen.kind // MODE == NEAREST
    values = sums.values()
    first = np.stack([values, values], 1).reshape(-1, 2)
    expected = Table(sums).round(odd_sums(values).reshape(-1), "nearest-even", "saturate").reshape(values.size, -1)
    # One row a pair (x_i, x_i + shift): sums of x_i with each of the others, by rolling the second column.
    for roll in range(0, values.size, max(1, values.size // 60)):
        first[:, 1] = np.roll(values, -roll)
        got = matmul(first, np.ones((2, 1)), unit)[:, 0]
        i = np.arange(values.size)
        assert same(got.astype(np.float64), expected[i, (i + roll) % values.size]).all()


@pytest.mark.parametrize("overflow", ["saturate", "wrap"])
@pytest.mark.parametrize("sums", [FixedFormat(i, w - i) for w in range(2, 11) for i in range(1, w + 1)], ids=repr)
def test_every_pair_of_fixed_values(sums: FixedFormat, overflow: str) -> None:
    values = sums.values()
    operand = FixedFormat(max(2, sums.integer), sums.fraction)  # 1 is a value of it
    unit = MacUnit(FixedMultiplier(operand, rounded=False), sums, overflow=overflow)
    exact = values[:, None] + values
    period = -2 * sums.min
    wrapped = (exact - sums.min) % period + sums.min
    got, counted = all_sums(unit, values, stats=True)
    assert (got == (np.clip(exact, sums.min, sums.max) if overflow == "saturate" else wrapped)).all()
    beyond = int(((exact > sums.max) | (exact < sums.min)).sum())
    assert (counted.saturated, counted.overflowed) == ((beyond, 0) if overflow == "saturate" else (0, beyond))


def test_double_rounding() -> None:
    """The counter-example of the facts: 2^-16 + 6144·1.5 is above a tie, which a float32 sum forgets."""
    a, b = np.array([[2.0**-16, 6144.0]]), np.array([[1.0], [1.5]])
    assert matmul(a, b, "E5M2:3+E5M2") == 10240
    assert matmul(a[:, 1:], b[1:], "E5M2:3+E5M2") == 8192  # the tie itself
    assert matmul(a, b, "E5M2:3+E5M2, rounding=up") == 10240
    assert matmul(-a, b, "E5M2:3+E5M2, rounding=toward-zero") == -8192


def test_double_rounding_in_wider_sums() -> None:
    """Where a float32 sum would first round to a tie: products wider than the sums, and sums of more than 11 bits."""
    a, b = np.array([[2.0**-7, 80.0]]), np.array([[2.0**-7], [104.0]])
    assert matmul(a, b, "E5M3:5+E5M5") == 8448 and matmul(a[:, 1:], b[1:], "E5M3:5+E5M5") == 8192
    a, b = np.array([[1.0, 2.0**-6, 65 * 2.0**-13]]), np.array([[1.0], [2.0**-6], [63 * 2.0**-12]])
    assert matmul(a, b, "E5M6*E5M5:5+E6M12") == 1 + 2.0**-12  # and a bit less than half of that, which is dropped
