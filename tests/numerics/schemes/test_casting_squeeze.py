"""Shift and squeeze by itself: where numbers go, and special cases. Its bits are tested in test_steps.py."""

import math

import pytest
import torch
from torch import Tensor

from shoal.numerics import quantize
from shoal.numerics.schemes.casting import squeeze
from tests.numerics.numbers import scalar

E5M2 = scalar("E5M2")


def seen(x: Tensor, name: str = "E5M2") -> tuple[Tensor, Tensor]:
    """The squeezed numbers and the result, with rounding to the format."""
    squeezed, expand = squeeze(x, scalar(name))
    return squeezed, expand(quantize(squeezed, name))


@pytest.mark.parametrize(("name", "top"), [("E5M2", 15), ("E4M3", 7), ("E4M3FN", 8)])
def test_squeeze_maps_the_mean_to_one_and_the_largest_to_the_top(name: str, top: int) -> None:
    x = torch.tensor([2.0**-30, 2.0**-26, -(2.0**-22), 2.0**-14])  # mean -23, largest -14
    squeezed, result = seen(x, name)
    alpha = top / 9
    expected = torch.tensor([1.0, 1, -1, 1]) * torch.exp2(alpha * (torch.tensor([-30.0, -26, -22, -14]) + 23))
    assert torch.allclose(squeezed, expected, rtol=1e-5)
    assert squeezed[3] == 2.0**top and result[3] == 2.0**-14
    assert (torch.log2(result.abs() / x.abs()).abs() < 0.35 / alpha).all()  # half a spacing of two or three bits


def test_squeeze_keeps_ranges_that_would_underflow() -> None:
    x = torch.exp2(torch.linspace(-60, -20, 41))
    assert (quantize(x, "E5M2") == 0).all()
    assert (seen(x)[1] != 0).float().mean() > 0.9


def test_equal_magnitudes_are_only_shifted() -> None:
    x = torch.tensor([3e-9, -3e-9, 3e-9])
    squeezed, result = seen(x)
    assert torch.allclose(squeezed.abs(), torch.ones(3)) and torch.allclose(result, x)


def test_zeros_and_non_finite_values_are_unchanged() -> None:
    x = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, 8.0])
    rounded = seen(x)[1]
    assert rounded[:2].tolist() == [0, 0] and torch.signbit(rounded[1])
    assert rounded[2:4].tolist() == [math.inf, -math.inf] and rounded[4].isnan() and rounded[5:].isfinite().all()
    for nothing in (torch.zeros(3), torch.tensor([math.inf, 0.0]), torch.zeros(0)):
        squeezed, expand = squeeze(nothing, E5M2)
        assert torch.equal(expand(squeezed), nothing)


def test_underflow_keeps_the_sign_of_zero() -> None:
    x = torch.tensor([-(2.0**-120), *[2.0**-1] * 30, 1.0])
    result = seen(x)[1]
    assert result[0] == 0 and torch.signbit(result[0]) and (result[1:] > 0).all()


def test_memory_layout_does_not_matter() -> None:
    x = torch.randn(37, 23)
    turned = x.T.contiguous().T
    assert turned.stride() != x.stride()
    assert torch.equal(seen(x)[1], seen(turned)[1])
