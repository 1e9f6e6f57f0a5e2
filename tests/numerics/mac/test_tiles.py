"""Which units the fast loops are chosen for."""

import pytest

from shoal.numerics import parse_mac
from shoal.numerics.mac.tile_kernels import GENERAL, MODE, NATIVE, NEAREST
from shoal.numerics.mac.tiles import fast


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
        ("bf16:1+bf16", None),  # leaves the range of float32
        ("Q16.16+Q16.16", None),
        ("E5M2:5+E6M5, order=pairwise", None),
        ("E5M2:5+E6M5, rounding=stochastic, random_bits=17", None),
        ("E6M3:5+E7M7, rounding=stochastic, random_bits=16", None),  # 8 + 16 + 1 > 24
    ],
)
def test_the_conditions_of_the_fast_loops(name: str, mode: int | None) -> None:
    chosen = fast(parse_mac(name), False)
    assert (None if chosen is None else chosen.kind // MODE) == mode
