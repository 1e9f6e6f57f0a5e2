"""Names of formats, there and back."""

import pytest

from shoal.numerics import BlockFormat, FloatFormat, parse
from tests.numerics.numbers import EDGES, SLIDES


@pytest.mark.parametrize("name", [*SLIDES, *EDGES, "E4M3/row", "Q1.7/32", "E2M5F(bias=2)/48x48", "E5M2:5/tensor"])
def test_names_round_trip(name: str) -> None:
    format = parse(name)
    assert parse(repr(format)) == format
    assert hash(format) == hash(parse(repr(format)))
    assert dict(format.describe())["format"] == repr(format)


def test_usual_names() -> None:
    assert repr(parse("E5M2")) == "E5M2"
    assert repr(parse("E5M2:5")) == "E5M2:5"
    assert parse("E5M2:1") == parse("E5M2") == FloatFormat(5, 2) == FloatFormat(5, 2, bias=15)
    assert repr(parse("q8.13")) == "Q8.13"
    assert parse("bf16") == FloatFormat(8, 7)
    assert parse("E4M3FN") == FloatFormat(4, 3, infinities=False)
    assert repr(FloatFormat(4, 3, 4)) == "E4M3(bias=4)"
    assert parse("E2M5F/48x48") == BlockFormat(FloatFormat(2, 5, infinities=False, nans=False), (48, 48))
