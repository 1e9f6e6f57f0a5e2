"""The stages of a MAC unit: bits of the product, where they are, and what the accumulator keeps of them."""

from fractions import Fraction

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.numerics import FixedFormat, FloatFormat, parse, parse_mac
from shoal.numerics.mac.datapath import Datapath, bits_of
from shoal.numerics.mac.exact import Events, multiply_exact
from tests.numerics.macs import assert_as_defined, numbers

E5M2, E6M5 = FloatFormat(5, 2), FloatFormat(6, 5)


@pytest.mark.parametrize(
    ("name", "product", "exact_bits", "converts"),
    [
        ("E5M2:1+E6M5", (5, 2), 6, False),
        ("E5M2:3+Q8.13", (6, 5), 6, True),
        ("E4M3*E5M2:5+E6M6", (6, 6), 7, False),
        ("E4M3*E5M2:2+E6M6", (5, 3), 7, False),
        ("E5M2:1+Q8.13, output=E8M7", (8, 7), 6, True),
        ("Q8.8*Q4.4+Q16.12", (8, 8), 22, False),
        ("Q8.8*Q4.4+Q16.12, rounded=False", (12, 12), 22, False),
    ],
)
def test_stages(name: str, product: tuple[int, int], exact_bits: int, converts: bool) -> None:
    path = parse_mac(name).datapath
    assert (path.product_bits, path.exact_bits, path.converts) == (product, exact_bits, converts)
    assert path.product is not None and bits_of(path.product) == product


@pytest.mark.parametrize("cfg", range(1, 7))
def test_every_product_is_within_the_range(cfg: int) -> None:
    unit = parse_mac(f"E3M2*E2M3:{cfg}+E6M9")
    path = unit.datapath
    finite = [
        [value for value in map(format.decode, range(2**format.width)) if np.isfinite(value) and value]
        for format in unit.multiplier.formats
    ]
    exact = [abs(Fraction(x) * Fraction(y)) for x in finite[0] for y in finite[1]]
    assert (min(exact), max(exact)) == (path.smallest_product, path.largest_product)
    assert Fraction(2) ** path.product_top <= path.largest_product < Fraction(2) ** (path.product_top + 1)
    products = (multiply_exact(x, y, unit.multiplier, Events()) for x in finite[0] for y in finite[1])
    step = Fraction(2) ** path.product_lsb
    assert all(Fraction(value) % step == 0 for value in products if np.isfinite(value))


def test_bits_kept_by_the_accumulator() -> None:
    narrow, wide = parse_mac("E5M2:6+Q8.13").datapath, parse_mac("Q4.4+Q16.8, rounded=False").datapath
    assert narrow.drops and not wide.drops
    assert narrow.aligned == (narrow.product_top + 2, narrow.product_lsb)
    assert wide.aligned == (16, -8)  # 2^14 is the accumulator's top binade
    assert parse_mac("E5M0:4(nans=False)*E5M2:4+E6M5").datapath.product_significant_bits == 3  # times a power of two
    assert parse_mac("E5M2:4+E6M5").datapath.product_significant_bits == 6


def test_units_too_wide_to_be_emulated_have_a_datapath() -> None:
    fp64 = parse("fp64")
    assert isinstance(fp64, FloatFormat)
    assert Datapath((fp64, fp64), fp64, 3).product_bits == (12, 105)
    assert Datapath((fp64, fp64), fp64).exact_bits == 106


@pytest.mark.parametrize("order", ["sequential", "exact"])
def test_products_beyond_the_range_of_float64(order: str) -> None:
    """Nine exponent bits: from the smallest to the largest product there are more than 1,024 powers of two."""
    unit = parse_mac(f"E9M3:4+E9M9, order={order}")
    assert unit.datapath.product_top - unit.datapath.product_lsb > 1024
    assert_as_defined(numbers((3, 9), 1, 120, np.float64), numbers((9, 4), 2, 120, np.float64), unit)


def test_wrong_datapaths_are_refused() -> None:
    for parts, sentence in (
        ((("E5M2", E5M2), E6M5), "The first operand of a MAC unit"),
        (((E5M2, "E5M2"), E6M5), "The second operand of a MAC unit"),
        (((E5M2, E5M2), parse("E6M5/row")), "The accumulator of a MAC unit"),
        (((E5M2, FixedFormat(8, 8)), E6M5), "cannot be multiplied"),
        (((E5M2, E5M2), E6M5, "5"), "`cfg` is .* must be a whole number"),
        (((FixedFormat(8, 8), FixedFormat(8, 8)), FixedFormat(8, 8), 5), "encodings of floating-point operands"),
    ):
        with pytest.raises(UserError, match=sentence):
            Datapath(*parts)  # type: ignore[arg-type]
