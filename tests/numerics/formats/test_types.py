"""Formats: the slides' figures, codes there and back, names there and back, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.numerics import BlockFormat, FixedFormat, FloatFormat, parse
from tests.numerics.numbers import EDGES, SLIDES, scalar


@pytest.mark.parametrize(
    ("name", "bias", "decimals", "roundoff"),
    [  # the slides' table; the range is 10^±decimals
        ("fp64", 1023, 308, 1e-16),
        ("fp32", 127, 38, 6e-8),
        ("fp16", 15, 5, 5e-4),
        ("tf32", 127, 38, 5e-4),
        ("bf16", 127, 38, 4e-3),
        ("E4M3", 7, 2, 6e-2),
        ("E5M2", 15, 5, 1e-1),
    ],
)
def test_the_slides_table_of_formats(name: str, bias: int, decimals: int, roundoff: float) -> None:
    format = scalar(name)
    assert isinstance(format, FloatFormat)
    assert format.bias == bias
    assert round(math.log10(format.max)) == decimals or math.floor(math.log10(format.max)) == decimals
    assert 2.0 ** -(format.mantissa + 1) == pytest.approx(roundoff, rel=0.3)


@pytest.mark.parametrize(
    ("name", "largest", "min_normal", "lsb"),
    [
        ("E5M5", 64_512, 2.0**-14, -19),
        ("E6M5", 4_227_858_432, 2.0**-30, -35),
        ("E7M7", (2 - 2.0**-7) * 2.0**63, 2.0**-62, -69),
        ("E5M2", 57_344, 2.0**-14, -16),
        ("E2M5F(bias=2)", 3.9375, 0.5, -6),  # block minifloat
        ("E4M3FN", 448, 2.0**-6, -9),
    ],
)
def test_ranges_of_floats(name: str, largest: float, min_normal: float, lsb: int) -> None:
    format = scalar(name)
    assert isinstance(format, FloatFormat)
    assert (format.max, format.min_normal, format.lsb_exponent) == (largest, min_normal, lsb)
    assert format.min_positive == 2.0**lsb


@pytest.mark.parametrize(
    ("name", "least", "largest", "width"),
    [
        ("Q8.13", -128, 128 - 2.0**-13, 21),
        ("Q11.13", -1024, 1024 - 2.0**-13, 24),
        ("Q6.6", -32, 32 - 2.0**-6, 12),
        ("Q8.8", -128, 128 - 2.0**-8, 16),
        ("Q16.16", -32768, 32768 - 2.0**-16, 32),
        ("Q8.8(sign_extra=True)", -256, 256 - 2.0**-8, 17),
    ],
)
def test_ranges_of_fixed_point(name: str, least: float, largest: float, width: int) -> None:
    format = scalar(name)
    assert (format.min, format.max, format.width) == (least, largest, width)
    assert format.decode(2 ** (width - 1)) == least
    assert format.decode(2 ** (width - 1) - 1) == largest


@pytest.mark.parametrize("name", [name for name in SLIDES + EDGES if scalar(name).width <= 12])
def test_every_code_round_trips(name: str) -> None:
    format = scalar(name)
    finite = set()
    for code in range(2**format.width):
        value = format.decode(code)
        again = format.decode(format.encode(value))
        assert (
            math.isnan(again)
            if math.isnan(value)
            else (again, math.copysign(1, again)) == (value, math.copysign(1, value))
        )
        if math.isfinite(value):
            finite.add(value)
    values = format.values()
    assert sorted(finite) == values.tolist()
    assert (values[-1], values[0]) == (format.max, format.min)
    assert values[values > 0][0] == format.min_positive
    assert math.frexp(format.max)[1] - 1 == format.highest_exponent


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_codes_of_any_format_round_trip(data: st.DataObject) -> None:
    try:
        format = FloatFormat(
            data.draw(st.integers(1, 11)),
            data.draw(st.integers(0, 52)),
            data.draw(st.none() | st.integers(-100, 900)),
            data.draw(st.sampled_from(["gradual", "normal", "zero"])),
            *data.draw(st.tuples(st.booleans(), st.booleans(), st.booleans())),
        )
    except UserError:
        return
    assert parse(repr(format)) == format
    for code in data.draw(st.lists(st.integers(0, 2**format.width - 1), min_size=1)):
        value = format.decode(code)
        again = format.decode(format.encode(value))
        assert (
            math.isnan(again)
            if math.isnan(value)
            else (again, math.copysign(1, again)) == (value, math.copysign(1, value))
        )
        assert abs(value) <= format.max or not math.isfinite(value)


@given(st.integers(0, 40), st.integers(0, 40), st.booleans(), st.data())
def test_fixed_point_codes_round_trip(integer: int, fraction: int, sign_extra: bool, data: st.DataObject) -> None:
    try:
        format = FixedFormat(integer, fraction, sign_extra)
    except UserError:
        return
    assert parse(repr(format)) == format
    code = data.draw(st.integers(0, 2**format.width - 1))
    assert format.encode(format.decode(code)) == code
    assert format.decode(code) == (code - 2**format.width * (code >= 2 ** (format.width - 1))) / 2**fraction


def test_a_block_scales_its_element() -> None:
    block = parse("E4M3/row")
    assert isinstance(block, BlockFormat)
    assert block.decode(0x01, shared=-3) == 2.0**-12
    assert block.encode(2.0**-12, shared=-3) == 0x01
    assert np.array_equal(block.values(2), block.element.values() * 4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FloatFormat(0, 3),
        lambda: FloatFormat(0, 3, infinities=True),
        lambda: FloatFormat(-1, 3),
        lambda: FloatFormat(5, 60),
        lambda: FloatFormat(15, 112),  # fp128
        lambda: FloatFormat(5, -1),
        lambda: FloatFormat(5.5, 2),  # type: ignore[arg-type]
        lambda: FloatFormat(4, 0),  # no code for NaN beside infinity
        lambda: FloatFormat(1, 2, subnormals="zero"),  # nothing except zero
        lambda: FloatFormat(1, 0, nans=False),
        lambda: FloatFormat(5, 2, bias=5000),
        lambda: FloatFormat(5, 2, bias=-5000),
        lambda: FloatFormat(5, 2, subnormals="flushed"),
        lambda: FloatFormat(5, 2, nans=False, signed_zero=False),
        lambda: FloatFormat(11, 52, nans=False),  # 2^1024 is no float64
        lambda: FixedFormat(0, 8),
        lambda: FixedFormat(8, -1),
        lambda: FixedFormat(40, 40),
        lambda: FixedFormat(1, 0),
        lambda: BlockFormat("E5M2"),  # type: ignore[arg-type]
        lambda: BlockFormat(FloatFormat(5, 2), "column"),
        lambda: BlockFormat(FloatFormat(5, 2), 0),
        lambda: BlockFormat(FloatFormat(5, 2), (4, 4, 4)),  # type: ignore[arg-type]
        lambda: parse("E5"),
        lambda: parse("E5M2:7"),
        lambda: parse("E4M3FN:5"),
        lambda: parse("E5M2(bias)"),
        lambda: parse("E5M2(bits=3)"),
        lambda: parse("E5M2/ten"),
        lambda: parse("E5M2/²"),  # a digit, but not of a number
        lambda: parse("E5M2/" + 4400 * "9"),
        lambda: parse(""),
        lambda: parse(8),  # type: ignore[arg-type]
        lambda: FloatFormat(5, 2).decode(256),
        lambda: FloatFormat(5, 2).decode(-1),
        lambda: FloatFormat(5, 2).encode(0.3),
        lambda: FloatFormat(5, 2).encode(65536.0),
        lambda: parse("E5M2:5").encode(2.0**-15),  # the hole
        lambda: parse("E5M2:5").encode(math.nan),
        lambda: parse("E2M1F").encode(math.inf),
        lambda: FixedFormat(8, 8).encode(128.0),
        lambda: FixedFormat(8, 8).encode(math.nan),
        lambda: FixedFormat(8, 8).encode(0.001),
        lambda: parse("fp32").values(),
    ],
)
def test_impossible_names_are_refused(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError) as refusal:
        make()
    text = str(refusal.value)
    assert text.endswith(".") and "\n" not in text


@pytest.mark.parametrize(
    "arguments",
    [
        {"exponent": 0, "mantissa": 3, "infinities": True},
        {"exponent": 5, "mantissa": 60},
        {"exponent": 12, "mantissa": 3},
        {"exponent": True, "mantissa": 3},
        {"exponent": 5.0, "mantissa": 2},
        {"exponent": 5, "mantissa": 0},  # no code for NaN beside infinity
        {"exponent": 5, "mantissa": 2, "bias": 10**6},
        {"exponent": 5, "mantissa": 2, "infinities": "no"},
        {"exponent": 5, "mantissa": 2, "signed_zero": False, "nans": False},
        {"integer": 0, "fraction": 5},
        {"integer": 60, "fraction": 1},
        {"integer": 8, "fraction": 8, "sign_extra": "no"},
    ],
)
def test_impossible_formats_are_refused(arguments: dict) -> None:
    kind = FixedFormat if "integer" in arguments else FloatFormat
    with pytest.raises(UserError) as refusal:
        kind(**arguments)
    assert str(refusal.value).endswith(".") and "\n" not in str(refusal.value)
