"""Rounding to a `BlockFormat`: one power of two per block; elements are scaled by it, rounded and scaled back."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from shoal.errors import UserError
from shoal.numerics.formats.types import BlockFormat, FixedFormat
from shoal.numerics.rounding.plan import FLOAT64, Carrier

TINY = 2.0**-1074
"""Stands for a nonzero number that underflows float64 when scaled."""


def shared_exponents(x: Tensor, format: BlockFormat, carrier: Carrier = FLOAT64) -> Tensor:
    """s for every element (the same within a block), from the exponent field of the block's largest magnitude.

    Infinities and NaN are ignored.
    """
    magnitude = torch.where(x.isfinite(), x.abs(), 0)
    largest = _largest(magnitude, format).double()
    exponent = torch.frexp(largest).exponent.to(torch.int64) - 1
    shared = torch.where(largest > 0, exponent - format.element.highest_exponent, 0)
    return _spread(shared.clamp(*shared_range(format, carrier)), format, x)


def shared_range(format: BlockFormat, carrier: Carrier) -> tuple[int, int]:
    """The range of s for which the carrier can represent every scaled value of the element format."""
    element = format.element
    negative_end = 1 if isinstance(element, FixedFormat) else 0  # -2^(i-1) is a binade above the largest value
    least = carrier.lowest - carrier.mantissa - element.lsb_exponent
    return least, carrier.highest - element.highest_exponent - negative_end


def tiles(format: BlockFormat, shape: torch.Size) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """A tensor's shape as (G, R, C), and the tile (h, w) that makes a block."""
    if isinstance(format.over, tuple) and len(shape) < 2:
        raise UserError(f"{format} has tiles as blocks, which need two axes; the tensor has {len(shape)}.")
    size, last = math.prod(shape), max(1, shape[-1]) if shape else 1
    if format.over == "tensor":
        return (1, 1, size), (1, size)
    if format.over == "row":
        return (1, size // last, last), (1, last)
    if isinstance(format.over, tuple):
        return (size // max(1, shape[-2] * last), shape[-2], last), format.over
    return (1, size // last, last), (1, int(format.over))


def quantize_blocks(
    x: Tensor,
    format: BlockFormat,
    dtype: torch.dtype,
    carrier: Carrier,
    keep_infinities: bool,
    round_elements: Callable[[Tensor], Tensor],
) -> Tensor:
    """2^s·round(2^-s·x) as `dtype`, whose carrier is given. Scaling by powers of two is exact."""
    shared = shared_exponents(x, format, carrier)
    scaled = scale_by_powers(x.double(), -shared)
    scaled = torch.where((scaled == 0) & (x != 0), torch.copysign(torch.full_like(scaled, TINY), scaled), scaled)
    result = scale_by_powers(round_elements(scaled).double(), shared)
    if keep_infinities:
        result = torch.where(x.isinf(), x.double(), result)
    return result.to(dtype)


def scale_by_powers(x: Tensor, exponent: Tensor) -> Tensor:
    """x·2^exponent of float64 numbers, in two steps so that each factor is a normal float64."""
    half = exponent // 2
    return x * _power_of_two(half) * _power_of_two(exponent - half)


def _power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent as float64, built from its bits."""
    return ((exponent + 1023) << FLOAT64.mantissa).view(torch.float64)


def _largest(magnitude: Tensor, format: BlockFormat) -> Tensor:
    """The largest magnitude of each block, in the order of the blocks."""
    if format.over == "tensor" or not magnitude.ndim:
        return magnitude.amax()
    if format.over == "row":
        return magnitude.amax(-1, keepdim=True)
    height, width = _sides(format)
    if height > 1:
        magnitude = _largest_of_runs(magnitude.transpose(-1, -2), height).transpose(-1, -2)
    return _largest_of_runs(magnitude, width)


def _spread(of_blocks: Tensor, format: BlockFormat, x: Tensor) -> Tensor:
    """For every element of x the value of its block."""
    if isinstance(format.over, str) or not x.ndim:
        return of_blocks.expand_as(x)
    height, width = _sides(format)
    if height > 1:
        of_blocks = of_blocks.repeat_interleave(height, -2)[..., : x.shape[-2], :]
    return of_blocks.repeat_interleave(width, -1)[..., : x.shape[-1]]


def _sides(format: BlockFormat) -> tuple[int, int]:
    return format.over if isinstance(format.over, tuple) else (1, int(format.over))


def _largest_of_runs(magnitude: Tensor, length: int) -> Tensor:
    """The largest of each run of `length` along the last axis; the last run may be shorter."""
    padded = torch.nn.functional.pad(magnitude, (0, -magnitude.shape[-1] % length))
    return padded.unflatten(-1, (-1, length)).amax(-1)
