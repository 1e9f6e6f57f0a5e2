"""CFG-1 to CFG-6: the slides' table of E5M2, and the rules behind it for every multiplier input."""

import math

import pytest

from shoal.errors import UserError
from shoal.numerics import FloatFormat, operand_format, quantize
from tests.numerics.numbers import MULTIPLIER_INPUTS, scalar

CONVENTIONAL_TOP = [math.inf, math.nan, math.nan, math.nan]
CUSTOM_TOP = [65_536.0, 81_920.0, 98_304.0, math.inf]
BOTTOMS = {  # to three digits, as the slides have them
    "conventional": [0.0, 1.53e-5, 3.05e-5, 4.58e-5],
    "custom": [0.0, 3.81e-5, 4.58e-5, 5.34e-5],
    "truncate": [0.0, 0.0, 0.0, 0.0],
}
SLIDES_TABLE = {
    1: (CONVENTIONAL_TOP, "conventional"),
    2: (CONVENTIONAL_TOP, "conventional"),
    3: (CONVENTIONAL_TOP, "conventional"),
    4: (CUSTOM_TOP, "conventional"),
    5: (CUSTOM_TOP, "custom"),
    6: (CUSTOM_TOP, "truncate"),
}


@pytest.mark.parametrize("cfg", range(1, 7))
def test_the_slides_table_of_e5m2(cfg: int) -> None:
    format = operand_format(FloatFormat(5, 2), cfg)
    top, bottom = SLIDES_TABLE[cfg]
    for t in range(4):
        assert format.decode(0b11111_00 + t) == top[t] or (
            math.isnan(top[t]) and math.isnan(format.decode(0b11111_00 + t))
        )
        assert float(f"{format.decode(t):.2e}") == BOTTOMS[bottom][t]
        assert format.decode(128 + t) == -format.decode(t)


def test_extreme_values_of_e5m2() -> None:
    ends = {cfg: operand_format(FloatFormat(5, 2), cfg) for cfg in range(1, 7)}
    assert [ends[cfg].max for cfg in range(1, 7)] == [57_344] * 3 + [98_304] * 3
    assert [ends[cfg].min_positive for cfg in range(1, 7)] == [2.0**-16] * 4 + [1.25 * 2.0**-15, 2.0**-14]


@pytest.mark.parametrize("name", MULTIPLIER_INPUTS)
def test_closed_forms_of_extreme_values(name: str) -> None:
    plain = scalar(name)
    assert isinstance(plain, FloatFormat)
    m, b = plain.mantissa, plain.bias
    assert b is not None
    for cfg in range(1, 7):
        format = operand_format(plain, cfg)
        assert format.max == ((2 - 2.0**-m) * 2.0**b if cfg <= 3 else (2 - 2.0 ** (1 - m)) * 2.0 ** (b + 1))
        assert format.min_positive == {5: (1 + 2.0**-m) * 2.0**-b, 6: 2.0 ** (1 - b)}.get(cfg, 2.0 ** (1 - b - m))
        assert operand_format(format, cfg) == format


def test_rounding_at_the_hole_and_below_the_smallest_normal() -> None:
    """True nearest with ties to zero by default; the converter that only rounds mantissas on request."""
    unit, cfg5, cfg6 = 2.0**-15, scalar("E5M2:5"), scalar("E5M2:6")
    for value, rounded, truncated in [
        (0.625, 0, 0),
        (0.626, 1.25, 0),
        (1.0, 1.25, 0),  # the hole
        (1.125, 1.25, 0),
        (1.126, 1.25, 1.25),
        (1.375, 1.5, 1.5),
        (-0.7, -1.25, 0),
    ]:
        assert quantize(value * unit, cfg5) == rounded * unit
        assert quantize(value * unit, cfg5, underflow="truncate") == truncated * unit
    for value, rounded, truncated in [
        (1.0, 0, 0),
        (1.001, 2, 0),
        (1.999, 2, 0),
        (2.0, 2, 2),
        (2.25, 2, 2),
        (2.3, 2.5, 2.5),
    ]:
        assert quantize(value * unit, cfg6) == rounded * unit
        assert quantize(value * unit, cfg6, underflow="truncate") == truncated * unit


def test_rounding_at_the_top() -> None:
    assert quantize(61_439.0, "E5M2:1") == 57_344
    assert quantize(61_440.0, "E5M2:1") == math.inf
    for cfg in (4, 5, 6):
        assert quantize(106_496.0, f"E5M2:{cfg}") == 98_304  # the even code
        assert quantize(106_497.0, f"E5M2:{cfg}") == math.inf


@pytest.mark.parametrize("cfg", [0, 7, -1])
def test_configurations_outside_1_to_6_are_refused(cfg: int) -> None:
    with pytest.raises(UserError, match="from 1 to 6"):
        operand_format(FloatFormat(5, 2), cfg)


def test_format_with_unusual_special_values_is_refused() -> None:
    with pytest.raises(UserError, match="plain E4M3"):
        operand_format(FloatFormat(4, 3, infinities=False), 5)
    with pytest.raises(UserError):
        operand_format(scalar("Q8.8"), 5)  # type: ignore[arg-type]
