"""Units as values: names, what is refused, and what the fast loops are chosen for."""

import dataclasses

import pytest

from shoal.errors import UserError
from shoal.numerics import FixedFormat, FixedMultiplier, FloatFormat, FloatMultiplier, MacUnit, parse, parse_mac
from tests.numerics.macs import SLIDES_UNITS


@pytest.mark.parametrize(
    "name",
    [
        *SLIDES_UNITS,
        "E4M3*E5M2:5+E6M9",
        "E5M2:5+E6M5, order=chunked(64), rounding=stochastic, random_bits=8, variant=C",
        "E5M2:2+E5M2, product_rounding=up, flush=before-rounding, overflow=infinity",
        "E5M2:1+E5M5(bias=20), output=E5M5, fused=False, nan=zero",
        "E5M2:5(bias=16)+Q8.13(sign_extra=True), product_bias=ieee, zero_times_infinity=zero, overflow=wrap",
        "E5M2:5+E5M5(infinities=False), overflow=nan",
        "Q8.8*Q4.4+Q16.12, rounded=False, order=exact",
        "Q23.9*Q4.11+Q12.2, rounded=False",  # rounded it would be too wide
    ],
)
def test_names_are_read_back(name: str) -> None:
    unit = parse_mac(name)
    assert parse_mac(repr(unit)) == unit and hash(parse_mac(repr(unit))) == hash(unit)
    if "fp" not in name and "bf" not in name:
        assert repr(unit).replace(" ", "").split(",")[0] == name.replace(" ", "").split(",")[0]


def test_names_and_their_units() -> None:
    made = MacUnit(FloatMultiplier(FloatFormat(5, 2), cfg=5), FixedFormat(8, 13))
    assert parse_mac("E5M2:5+Q8.13") == made and repr(made) == "E5M2:5+Q8.13"
    assert made.fused is False and parse_mac("E5M2:5+E6M5").fused is True
    assert parse_mac("E5M2+E6M5").multiplier.cfg == 1  # type: ignore[union-attr]
    assert parse_mac("E5M2:5+E6M5").multiplier.a == parse("E5M2:5")
    assert made.multiplier.product == parse("E6M5:5(bias=30)")
    assert parse_mac("Q8.8+Q8.8").multiplier == FixedMultiplier(FixedFormat(8, 8))
    assert parse_mac("E5M2:5+E6M5, order=chunked(64)").chunk == 64
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.order = "pairwise"  # type: ignore[misc]


@pytest.mark.parametrize(
    "name",
    [
        "", "E5M2", "E5M2:5+", "+E6M5", "E5M2:7+E6M5", "E5M2:5+E6M5, order", "E5M2:5+E6M5, order=tree",
        "E5M2:5+E6M5, order=chunked(0)", "E5M2:5+E6M5, order=chunked(n)", "E5M2:5+E6M5, color=red",
        "E5M2:5+E6M5, rounding=hysteresis", "E5M2:5+E6M5, rounding=nearest", "E5M2:5+E6M5, overflow=wrap",
        "E5M2:5+Q8.13, overflow=infinity", "E5M2:5+Q8.13, fused=True", "E5M2:5+Q8.13, order=kahan",
        "E5M2:5+E6M5, order=exact, order=exact", "E5M2:5+E6M5, random_bits=0", "E5M2:5+E6M5, variant=D",
        "E5M2:4*E4M3:5+E6M5", "E5M2*E5M2*E5M2+E6M5", "Q8.8*E5M2+E6M5", "Q8.8:5+Q8.8", "E5M2:5+fp64",
        "E5M2:5+E8M23, rounding=stochastic, random_bits=32", "E5M2:5+E11M5", "E5M2:5+Q27.27", "E4M3/row+E6M5",
        "E5M2:5+E4M3/row", "E10M2:5+E6M5", "E5M2:5+E6M5, nan=ignore", "E5M2:55+E6M5", "E5M2:5:5+E6M5", "E5M2:+E6M5",
        "E5M2:a+E6M5", "E5M2:5+E6M5:9", "E5M2:5+E6M5+E6M5", "E5M2:5", "E5M2:4+E6M5, cfg=5", "E5M2+E6M5, cfg=5",
        "E5M2:5+E6M5, fused=maybe", "E5M2:5+E6M5, fused=1", "Q8.8+Q8.8, rounded=no", "E5M2:5+E6M5,",
        "E5M2(infinities=no)+E6M5", "E5M2(bias=)+E6M5", "E0M3+E6M5", "E5M60+E6M5", "E5M2:1+E6M5, output=Q8.8",
        "Q8.8+E6M5, nan=infinity",
        f"E5M2:5+E6M5, random_bits={4400 * '9'}", f"E5M2:5+E6M5, order=chunked({4400 * '9'})",
    ],
    ids=lambda name: name[:60],
)  # fmt: skip
def test_wrong_names_are_refused(name: str) -> None:
    with pytest.raises(UserError) as refusal:
        parse_mac(name)
    text = str(refusal.value)
    assert text.endswith(".") and "\n" not in text


def test_products_outside_the_accumulators_range_are_refused() -> None:
    with pytest.raises(UserError, match="every product would vanish"):
        parse_mac("E3M2:5(bias=40)+Q8.8")
    with pytest.raises(UserError, match="every product would overflow"):
        parse_mac("E3M2:5(bias=-40)+Q8.8")


def test_wrong_parts_are_refused() -> None:
    for parts in ((FloatFormat(5, 2), FloatFormat(6, 5)), (FloatMultiplier(FloatFormat(5, 2)), 5), ("E5M2", "E6M5")):
        with pytest.raises(UserError):
            MacUnit(*parts)  # type: ignore[arg-type]
    assert MacUnit(FloatMultiplier("E5M2", cfg=5), "E6M5") == parse_mac("E5M2:5+E6M5")  # type: ignore[arg-type]


def test_wrong_multipliers_are_refused() -> None:
    for make in (
        lambda: FloatMultiplier(parse("fp64")),
        lambda: FloatMultiplier(FloatFormat(10, 3), cfg=5),
        lambda: FloatMultiplier(FloatFormat(5, 30), cfg=5),
        lambda: FloatMultiplier(FloatFormat(5, 2), cfg=7),
        lambda: FloatMultiplier(FixedFormat(8, 8)),  # type: ignore[arg-type]
        lambda: FloatMultiplier(FloatFormat(5, 2), cfg=5, output=FloatFormat(5, 5)),
        lambda: FloatMultiplier(FloatFormat(5, 2), flush="never"),
        lambda: FloatMultiplier(FloatFormat(5, 2), product_rounding="stochastic"),
        lambda: FixedMultiplier(FloatFormat(5, 2)),  # type: ignore[arg-type]
        lambda: FixedMultiplier(FixedFormat(20, 20)),
        lambda: FixedMultiplier(FixedFormat(16, 16), rounded=False),
        lambda: FixedMultiplier(FixedFormat(8, 8), rounded=False, output=FixedFormat(8, 8)),
    ):
        with pytest.raises(UserError) as refusal:
            make()
        assert str(refusal.value).endswith(".") and "\n" not in str(refusal.value)
