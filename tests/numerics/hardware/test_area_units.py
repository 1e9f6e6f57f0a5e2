"""Units by name, as their cost reads them."""

import pytest

from shoal.errors import UserError
from shoal.numerics import parse_mac
from shoal.numerics.hardware.area import datapath_of


@pytest.mark.parametrize(
    "name",
    ["E5M2+E6M5", "E5M2:3(bias=16)+E6M5", "E4M3*E5M2:5+E6M9", "E4M3:5*E5M2:5+E6M6", " e5m2:5 + q8.13 ", "Q8.8+Q8.13"],
)
def test_units_and_costs_share_a_grammar(name: str) -> None:
    unit = parse_mac(name)
    assert datapath_of(name) == datapath_of(unit) == datapath_of(f"{unit}")


@pytest.mark.parametrize(
    "text", ["E5M2+E6M5", "E5M2:2+Q8.13", "E5M2:3(bias=16)+E6M5", "E4M3:5*E5M2:5+E6M6", "Q8.8+Q8.13"]
)
def test_datapaths_round_trip(text: str) -> None:
    assert str(datapath_of(text)) == text
    assert datapath_of(str(datapath_of(text))) == datapath_of(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'' is not a format"),
        ("E5M2:5+", "'' is not a format"),
        ("E5M2:5+E6M5+E6M5", "is not a MAC unit"),
        ("E5M2*E5M2*E5M2+E6M5", "is not a MAC unit"),
        ("E5M2:4*E5M2:5+E6M5", "is not a MAC unit"),
        ("E5M2:7+E6M5", "must be from 1 to 6"),
        ("E5M2:55+E6M5", "'55', but must be from 1 to 6"),
        ("E5M2:+E6M5", "must be from 1 to 6"),
        ("E5M2:5+hello", "'hello' is not a format"),
        ("E5M60:5+E6M5", "E5M60 is not possible"),
        ("Q8.8+E6M5", "no figures"),
        ("Q8.8:5+Q8.8", "encodings of floating-point operands"),
        ("Q8.8*E5M2+Q8.8", "cannot be multiplied"),
        ("E4M3FN+fp32", "give the plain E4M3"),
        ("E4M3/row+fp32", "has blocks"),
        ("E4M3+E4M3/row", "has blocks"),
        ("E5M2:5+E6M5, order=pairwise", "leave out what is after the comma"),
        ("E10M30:5", "E11M61 is not possible"),
        (7, "not 7"),
        (None, "not None"),
    ],
)
def test_wrong_units_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as error:
        datapath_of(text)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)
