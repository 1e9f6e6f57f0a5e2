"""Names of schemes: read, written and read back."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.numerics import Cast, Scheme, parse_mac, parse_scheme
from shoal.numerics.schemes.scheme import SCHEMES

UNITS = [None, "E5M2:5+E6M5", "E5M3+fp32, output=E7M7, order=pairwise", "fp32:1+fp32"]
OPERANDS = [None, "E5M2:5", "E5M2:5, rounding=stochastic"]
CASTS = [None, "bf16", "E4M3F/tensor, rounding=stochastic", "E6M9, overflow=saturate", "Q1.7/row"]


@st.composite
def schemes(draw: st.DrawFn) -> Scheme:
    """A built-in scheme or one made of parts."""
    if draw(st.booleans()):
        base = SCHEMES[draw(st.sampled_from([*SCHEMES]))]
    else:
        same = ("E5M2:5+E6M5", "fp32:1+fp32")
        operands: dict[str, Any] = {role: draw(st.sampled_from(OPERANDS)) for role in ("weights", "inputs")}
        fits = [None, *same] if any(operands.values()) else UNITS
        units: dict[str, Any] = {role: draw(st.sampled_from(fits)) for role in ("forward", "grad_input", "grad_weight")}
        units = {
            role: unit if unit != "fp32:1+fp32" or not any(operands.values()) else None for role, unit in units.items()
        }
        base = Scheme(draw(st.sampled_from(["unit", "float32", "mine"])), **operands, **units)
    changes: dict[str, Any] = {
        role: draw(st.sampled_from(CASTS))
        for role in ("normalisation", "activations", "weight_gradients", "master", "state")
        if draw(st.booleans())
    }
    made = replace(base, **changes)
    if made.master is not None and draw(st.booleans()):
        made = replace(made, update="compensated")
    after = draw(st.one_of(st.none(), st.floats(0, 1), st.floats(1, 2**53), st.integers(0, 2**53)))
    return replace(made, average_after=after, average_every=draw(st.integers(1, 10**9)))


@given(schemes())
@settings(max_examples=80, deadline=None)
def test_names_and_json_are_read_back(scheme: Scheme) -> None:
    assert parse_scheme(repr(scheme)) == scheme
    assert repr(parse_scheme(repr(scheme))) == repr(scheme)
    assert Scheme.from_json(scheme.to_json()) == scheme


@pytest.mark.parametrize(
    "name",
    [
        *SCHEMES,
        "E5M2:5+E6M5",
        "E5M2:5+E6M5; forward=float32",
        "E4M3*E5M2:5+E6M7",
        "E5M2:5+E6M5, order=kahan; master=E6M9; update=compensated",
        "hfp8; weights=E4M3(bias=4), rounding=hysteresis; weight_gradients=float32",
        "swalp; average_after=never",
        "swalp; average_after=1234567; average_every=7",
        "float32; master=E6M9, rounding=stochastic",
    ],
)
def test_short_names(name: str) -> None:
    assert repr(parse_scheme(name)) == name
    assert parse_scheme(parse_scheme(name)) is parse_scheme(name)


def test_other_spellings() -> None:
    assert parse_scheme(" HFP8 ") == parse_scheme("hfp8")
    assert parse_scheme("fp32") == parse_scheme("float32") == Scheme()
    assert parse_scheme("bf16;master = E6M9 ,rounding=stochastic") == parse_scheme(
        "bf16; master=E6M9, rounding=stochastic"
    )
    assert parse_scheme("bf16; weights=fp32") == parse_scheme("bf16; weights=float32")


def test_a_unit_is_the_format_of_its_operands() -> None:
    scheme = parse_scheme("E5M2:5+E6M5")
    assert scheme.forward == scheme.grad_input == scheme.grad_weight == parse_mac("E5M2:5+E6M5")
    assert scheme.weights == scheme.inputs == scheme.activation_gradients == Cast("E5M2:5")  # type: ignore[arg-type]
    assert scheme.weight_gradients is scheme.master is scheme.state is scheme.normalisation is None
    two = parse_scheme("E4M3*E5M2:5+E6M7")
    assert two.weights is two.inputs is two.activation_gradients is None and two.forward is not None
    assert parse_scheme("Q16.16+Q16.16").weights is None  # not in float32


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("hfp9", "'hfp9' is not a scheme; choose one of float32, bf16, fp16, swalp"),
        ("", "'' is not a scheme"),
        ("hfp8\n", ""),
        ("E5M2:5+", "is not a format"),
        ("E5M2:9+E6M5", "The cfg of 'E5M2:9+E6M5' is '9'"),
        ("hfp8; speed=3", "'speed' is not known; choose one of: weights"),
        ("hfp8; name=mine", "'name' is not known"),
        ("hfp8; master", "'master' in 'hfp8; master' is not field=value"),
        ("hfp8; master=", "'master=' in 'hfp8; master=' is not field=value"),
        ("hfp8; master=bf16; master=bf16", "is repeated"),
        ("hfp8; master=E5", "'E5' is not a format"),
        ("hfp8; forward=E5M2", "'E5M2' has no accumulator"),
        ("hfp8; update=often", "`update` 'often' is not known; choose one of: rounded, compensated"),
        ("swalp; average_after=late", "average_after is 'late', but must be a number"),
        ("swalp; average_after=-1", "`average_after` is -1.0, but must be"),
        ("swalp; average_after=nan", "`average_after` is nan, but must be"),
        ("swalp; average_every=2.5", "average_every is '2.5', but must be a whole number"),
        ("swalp; average_every=0", "`average_every` is 0, but must be at least 1"),
        (8, "A scheme is written as a string such as 'hfp8' or 'E5M2:5+E6M5', not 8"),
    ],
)
def test_wrong_names_are_refused(wrong: Any, sentence: str) -> None:
    if not sentence:
        assert parse_scheme(wrong) == parse_scheme(wrong.strip())
        return
    with pytest.raises(UserError) as error:
        parse_scheme(wrong)
    assert sentence in str(error.value) and str(error.value).endswith(".") and "\n" not in str(error.value)
