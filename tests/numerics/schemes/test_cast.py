"""Casts: names, properties, wrong inputs; what they do to numbers is tested in test_steps.py."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.numerics import Cast, parse
from shoal.numerics.rounding.plan import ROUNDINGS
from shoal.numerics.schemes.cast import parse_cast

FORMATS = [
    "E5M2",
    "E4M3(bias=4)",
    "bf16",
    "E4M3FN",
    "Q1.7",
    "Q8.13",
    "E4M3F/tensor",
    "Q1.7/row",
    "E2M5B2F/48x48",
    "E2M1F/32",
]


@st.composite
def casts(draw: st.DrawFn) -> Cast:
    format = parse(draw(st.sampled_from(FORMATS)))
    fields: dict[str, Any] = {"rounding": draw(st.sampled_from(ROUNDINGS))}
    if draw(st.booleans()):
        fields["overflow"] = "saturate"
    if draw(st.booleans()):
        fields["random_bits"] = draw(st.integers(1, 30))
    fields["variant"] = draw(st.sampled_from("ABC"))
    fields["start"] = draw(st.sampled_from(["nearest-even", "down"]))
    fields["squeeze"] = repr(format).startswith("E5") and draw(st.booleans())
    return Cast(format, **fields)


@given(casts())
@settings(max_examples=60, deadline=None)
def test_names_are_read_back(cast: Cast) -> None:
    assert parse_cast(repr(cast)) == cast
    assert hash(parse_cast(repr(cast))) == hash(cast)


def test_short_names() -> None:
    assert repr(Cast("E5M2")) == "E5M2"  # type: ignore[arg-type]
    text = "E4M3/tensor, rounding=stochastic, random_bits=8, variant=B"
    assert repr(parse_cast(text)) == text
    assert repr(parse_cast("E5M2 , squeeze = True")) == "E5M2, squeeze=True"


@pytest.mark.parametrize(
    ("name", "shares", "run", "nan"),
    [
        ("E5M2", "", None, "infinity"),
        ("E4M3FN", "", None, "zero"),
        ("E4M3F/tensor", "tensor", None, "zero"),
        ("Q1.7/row", "blocks", None, "zero"),
        ("E5M2/32", "blocks", 32, "infinity"),
        ("E2M5F/3x48", "blocks", 48, "zero"),
    ],
)
def test_properties_of_a_cast(name: str, shares: str, run: int | None, nan: str) -> None:
    cast = parse_cast(name)
    assert (cast.shares, cast.run, cast.nan) == (shares, run, nan)
    assert repr(cast.element) in (repr(cast.format), repr(cast.format).partition("/")[0])


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("E5", "'E5' is not a format"),
        (
            "E5M2, mode=up",
            "'mode' is not known; choose one of: rounding, overflow, random_bits, variant, start, squeeze",
        ),
        ("E5M2, rounding", "'rounding' in 'E5M2, rounding' is not name=value"),
        ("E5M2, rounding=often", "`rounding` 'often' is not known"),
        ("E5M2, variant=D", "`variant` 'D' is not known"),
        ("E5M2, start=up", "`start` 'up' is not known"),
        ("E5M2, squeeze=3", "squeeze"),
        ("E5M2, random_bits=31", "`random_bits` is 31, but must be from 1 to 30"),
        ("E5M2, random_bits=few", "`random_bits` is 'few', but must be a whole number"),
        ("E4M3FN, overflow=infinity", "has no infinities"),
        ("E4M3F, overflow=nan", "has no NaN"),
        ("Q8.13, overflow=wrap", "does not wrap around; choose overflow=saturate"),
        ("fp64", "has values that float32 cannot represent"),
        ("Q16.16", "has values that float32 cannot represent"),
        ("Q8.8, squeeze=True", "squeeze is for floating-point formats without blocks, not for Q8.8"),
        ("E5M2/tensor, squeeze=True", "squeeze is for floating-point formats without blocks, not for E5M2/tensor"),
    ],
)
def test_wrong_names_are_refused(wrong: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        parse_cast(wrong)
    assert sentence in str(error.value) and str(error.value).endswith(".") and "\n" not in str(error.value)


def test_wrong_formats_are_refused() -> None:
    with pytest.raises(UserError, match="A cast needs a number format or its name, not 8"):
        Cast(8)  # type: ignore[arg-type]
