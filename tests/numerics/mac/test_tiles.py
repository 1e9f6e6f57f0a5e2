"""Which units the fast loops are chosen for."""

import pytest

from shoal.numerics import parse_mac
from shoal.numerics.mac.tile_kernels import CHANCE_A, COUNT, FREE, GENERAL, MODE, NATIVE, NEAREST, ODD, WIDER
from shoal.numerics.mac.tiles import FREE_SUMS, fast

WIDE = 100  # in float64


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("E5M2:5+E6M5", NEAREST),  # no more product bits than accumulator bits: a float32 sum rounds twice harmlessly
        ("E6M3:5+E7M7", NEAREST),
        ("fp16:1+fp16", NEAREST),
        ("E5M3:5+E5M5", GENERAL),  # 8 bits into 6: round to odd
        ("E5M2:5+E6M5, rounding=down", GENERAL),
        ("fp32:1+fp32", NATIVE),
        ("E4M3:5+fp32", NATIVE),
        ("E5M2:5+E6M5, order=pairwise", NEAREST),
        ("E5M3:5+E5M5, order=pairwise", NEAREST),  # products are rounded by themselves first
        ("E5M2:5+E6M5, order=kahan", NEAREST),
        ("E5M2:5+E6M5, order=chunked(5)", NEAREST),
        ("E5M3:5+E5M3, fused=False", NEAREST),
        ("E5M3+fp32, output=E6M8, order=pairwise", NATIVE),
        ("E4M3(bias=4)*E5M2+E6M9, output=E7M9, order=chunked(64)", NEAREST),
        ("bf16:1+bf16", WIDE + NEAREST),  # leaves the range of float32
        ("Q8.8+Q8.8", WIDE + NEAREST),
        ("Q3.6*Q9.10+Q15.16, rounded=False", WIDE + NEAREST),
        ("E6M3:5+E7M7, rounding=stochastic, random_bits=16", WIDE + CHANCE_A),  # 8 + 16 + 1 > 24
        ("E5M2:5+E6M5, order=exact", None),
        ("E5M2:5+E6M5, order=kahan, rounding=stochastic", None),
        ("E5M2:5+E6M5, order=chunked(5), rounding=stochastic", None),
        ("E5M2:5+E6M5, rounding=stochastic, random_bits=17", None),
    ],
)
def test_conditions_of_the_fast_loops(name: str, mode: int | None) -> None:
    chosen = fast(parse_mac(name), False)
    assert (None if chosen is None else chosen.kind // MODE + WIDE * (chosen.kind & WIDER > 0)) == mode


def test_products_of_32_bit_numbers_are_rounded_to_odd() -> None:
    chosen = fast(parse_mac("Q16.16+Q16.16"), False)
    assert chosen is None or chosen.kind & ODD


def test_nothing_is_counted_if_no_event_is_possible() -> None:
    """Sums that cannot leave the range need neither limits nor counters: the same loop with and without statistics."""
    unit = parse_mac("E5M2:5+E6M5")
    free, counted = fast(unit, True, FREE_SUMS), fast(unit, True)
    assert free is not None and counted is not None
    plain = fast(unit, False, FREE_SUMS)
    assert plain is not None and free.kind == plain.kind == FREE and counted.kind & COUNT
    small = fast(parse_mac("E5M2:5+Q8.13"), True, FREE_SUMS)
    assert small is not None and small.kind & COUNT  # products vanish in the converter
