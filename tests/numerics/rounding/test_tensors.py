"""The torch operations give the same bits as the compiled loops."""

import numpy as np
import pytest
import torch

from shoal.numerics.rounding import quantize as rounding
from shoal.numerics.rounding import tensors
from shoal.numerics.rounding.plan import ROUNDINGS, check_rules
from tests.numerics.numbers import EDGES, SLIDES, around, float32_patterns, scalar


def all_three(x: torch.Tensor, name: str, how: str, underflow: str = "round", bits: int = 30, variant: int = 0) -> None:
    """The loops for float32, those for float64, and the torch operations."""
    format = scalar(name)
    overflow = check_rules(format, how, None, underflow, "zero")
    rules = rounding.Rules(how, overflow, underflow, "zero", 3, 1, 2**32 - 500, bits, variant, 1)
    plain, wide = torch.empty(x.shape, dtype=torch.float64), torch.empty(x.shape, dtype=torch.float64)
    nans = rounding._round_by_torch(x, format, rules, plain)
    assert nans == rounding._round_compiled(x.double(), format, rules, wide) == int(x.isnan().sum())
    assert torch.equal(plain.view(torch.int64), wide.view(torch.int64))
    if rounding.rounds_in(format, rounding.FLOAT32) and x.dtype == torch.float32:
        narrow = torch.empty_like(x)
        assert nans == rounding._round_compiled(x, format, rules, narrow)
        assert torch.equal(narrow.view(torch.int32), plain.float().view(torch.int32))


@pytest.mark.parametrize("name", SLIDES + EDGES)
def test_bit_for_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "PIECE", 1000)
    x = torch.from_numpy(np.concatenate([float32_patterns(7)[::7], around(scalar(name))]))
    for how in ROUNDINGS[:5]:
        all_three(x, name, how)
    for variant, bits in ((0, 30), (1, 5), (2, 30), (2, 4)):
        all_three(x, name, "stochastic", bits=bits, variant=variant)
    all_three(x, name, "nearest-even", "truncate")
    all_three(x, name, "stochastic", "truncate")


@pytest.mark.parametrize("name", ["E5M2", "E5M2:5", "E6M5", "E11M20", "fp64", "Q16.16", "Q8.13"])
def test_bit_for_bit_in_float64(name: str) -> None:
    rng = np.random.default_rng(8)
    x = torch.from_numpy(rng.integers(-(2**63), 2**63, 3000).view(np.float64))
    x = torch.cat([x, torch.from_numpy(np.ldexp(rng.standard_normal(3000), rng.integers(-40, 20, 3000)))])
    for how in ROUNDINGS[:5]:
        all_three(x, name, how)
    for variant, bits in ((0, 57), (1, 40), (2, 57), (2, 4)):
        all_three(x, name, "stochastic", bits=bits, variant=variant)
