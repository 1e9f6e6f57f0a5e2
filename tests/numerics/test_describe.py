"""Formats as tables: the slides' print of E5M2, character by character."""

import pytest

from shoal.errors import UserError
from shoal.numerics import FixedFormat, FloatFormat
from shoal.numerics.describe import describe, encodings_table, ends_table, number, value_table

SLIDES = [
    ("b00", "inf", "65,536", "0", "0", "0"),
    ("b01", "NaN", "81,920", "1.53E-5", "3.81E-5", "0"),
    ("b10", "NaN", "98,304", "3.05E-5", "4.58E-5", "0"),
    ("b11", "NaN", "inf", "4.58E-5", "5.34E-5", "0"),
]


def test_the_slides_table_of_e5m2() -> None:
    assert encodings_table(FloatFormat(5, 2))[1:] == SLIDES
    for cfg, (top, bottom) in {1: (1, 3), 2: (1, 3), 3: (1, 3), 4: (2, 3), 5: (2, 4), 6: (2, 5)}.items():
        assert describe("E5M2", cfg).ends[1:] == [(row[0], row[top], row[bottom]) for row in SLIDES]


def test_describe() -> None:
    given = describe("E5M2", 5)
    assert repr(given.format) == "E5M2:5"
    assert describe("E5M2:5") == describe(FloatFormat(5, 2), 5) == given
    assert ("largest", "98304") in given.properties
    assert len(given.values) == 1 + 32
    assert given.values[1] == ("00000", "0", "3.81E-5", "4.58E-5", "5.34E-5")
    assert given.values[-1] == ("11111", "65,536", "81,920", "98,304", "inf")


def test_formats_without_special_tables() -> None:
    fixed = describe("Q8.13")
    assert (fixed.properties, fixed.ends, fixed.values) == (FixedFormat(8, 13).describe(), [], [])
    assert describe("Q1.7/32").ends == []
    assert describe("E4M3F/row").ends == describe("E4M3F").ends
    fp32 = describe("fp32")
    assert fp32.values == []
    assert len(fp32.ends) == 1 + 4 + 1 + 4
    assert fp32.ends[5] == ("…", "…", "…")
    assert len(ends_table(FloatFormat(3, 4))) == 1 + 16
    assert [row[0] for row in describe("E5M0F").ends] == ["mantissa", "b0"]


def test_table_has_every_value() -> None:
    lines = value_table(FloatFormat(3, 2))
    shown = {float(cell) for line in lines[1:] for cell in line[1:] if cell not in ("inf", "NaN")}
    assert shown == {value for value in FloatFormat(3, 2).values().tolist() if value >= 0}
    assert value_table(FloatFormat(5, 10)) == []  # too many


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (-0.0, "-0"), (65_536.0, "65,536"), (-1.5, "-1.5"), (2.0**-16, "1.53E-5"), (2.0**127, "1.70E38")],
)
def test_numbers_are_printed_as_in_the_slides(value: float, text: str) -> None:
    assert number(value) == text


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(UserError, match="`cfg` is 7"):
        describe("E5M2", 7)
    with pytest.raises(UserError, match="floating-point operands"):
        describe("Q8.13", 5)
    with pytest.raises(UserError, match="floating-point operands"):
        describe("E4M3/row", 5)
    with pytest.raises(UserError, match="give the plain E5M2"):
        describe("E5M2:5", 6)
    with pytest.raises(UserError, match="not 7"):
        describe(7)  # type: ignore[arg-type]
