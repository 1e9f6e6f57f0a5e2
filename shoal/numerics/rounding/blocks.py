"""Rounding to a `BlockFormat`: one power of two per block; elements are scaled by it, rounded and scaled back.

`round_bands`, for float32, is compiled and scales nothing: rounding 2^-s·x to a format and scaling back equals rounding
x to the format with its exponents shifted by s, and a plan is shifted by adding s to its exponents and s·2^23 to the
bits of its magnitudes.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from shoal.compiled import njit
from shoal.errors import UserError
from shoal.numerics.formats.types import BlockFormat, FixedFormat
from shoal.numerics.rounding.kernels import round_nearest_or_directed, round_stochastically
from shoal.numerics.rounding.plan import FLOAT32, FLOAT64, Carrier, RoundingPlan
from shoal.numerics.rounding.randomness import Keys

FLOAT32_INFINITY = np.int32(FLOAT32.infinity)

TINY = 2.0**-1074  # stands for a nonzero number that underflows float64 when scaled


def shared_exponents(x: Tensor, format: BlockFormat, carrier: Carrier = FLOAT64) -> Tensor:
    """s for every element (the same within a block), from the exponent field of the block's largest magnitude.

    Infinities and NaN are ignored.
    """
    (groups, rows, columns), (height, width) = tiles(format, x.shape)
    magnitude = torch.where(x.isfinite(), x.abs(), 0).reshape(groups, rows, columns)
    if rows % height or columns % width:
        magnitude = pad(magnitude, (0, -columns % width, 0, -rows % height))
    cut = magnitude.unflatten(2, (-1, width)).unflatten(1, (-1, height))  # (G, tiles, h, tiles, w)
    largest = cut.amax((2, 4), keepdim=True).double()
    exponent = torch.frexp(largest).exponent.to(torch.int64) - 1
    shared = torch.where(largest > 0, exponent - format.element.highest_exponent, 0)
    spread = shared.clamp(*shared_range(format, carrier)).expand_as(cut).flatten(3).flatten(1, 2)
    return spread[:, :rows, :columns].reshape(x.shape)


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
    for part in (half, exponent - half):
        x = x * ((part + 1023) << FLOAT64.mantissa).view(torch.float64)
    return x


# ---- compiled --------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, error_model="numpy")
def round_bands(
    first: int, last: int, x: NDArray[np.int32], y: NDArray[np.int32], plan: RoundingPlan, tile: tuple[int, int],
    exponents: tuple[int, int, int], first_index: int, keys: Keys, bits: int, variant: int,
) -> int:  # fmt: skip
    """y = x rounded, on bit patterns, both (G, R, C), for the bands first to last; returns the number of NaN.

    A band is a row of tiles: band b of G·ceil(R/h). `exponents` are the element format's highest exponent and the
    smallest and largest s; `bits` is 0 unless rounding is stochastic.
    Returns -1 if a block's s shifts the plan out of float32's normal range; y is then incomplete.
    """
    _, rows, columns = x.shape
    height, width = tile
    per_group = (rows + height - 1) // height
    nans = 0
    for band in range(first, last):
        group, top = band // per_group, band % per_group * height
        bottom = min(top + height, rows)
        for left in range(0, columns, width):
            right = min(left + width, columns)
            largest = np.int32(0)
            for row in range(top, bottom):
                largest = max(largest, _largest_bits(x[group, row, left:right]))
            if largest >= 2**23:
                exponent = (largest >> 23) - 127
            else:  # that of a subnormal is found by converting its multiple of 2^-149
                exponent = (np.float32(largest).view(np.int32) >> 23) - 127 - 149
            shared = 0 if largest == 0 else exponent - exponents[0]
            shared = min(max(shared, exponents[1]), exponents[2])
            if plan.lowest_field + shared < 2 or (plan.max_positive >> 23) + shared < 1:
                return -1
            moved = _move(plan, shared)
            for row in range(top, bottom):
                part, result = x[group, row, left:right], y[group, row, left:right]
                if bits == 0:
                    nans += round_nearest_or_directed(part, result, moved)
                else:
                    index = first_index + (group * rows + row) * columns + left
                    nans += round_stochastically(part, result, moved, index, keys, bits, variant)
    return nans


@njit(cache=True, nogil=True, error_model="numpy")
def _largest_bits(x: NDArray[np.int32]) -> np.int32:
    """The bits of the largest finite magnitude."""
    largest = np.int32(0)
    for i in range(x.size):
        u = np.int32(x[i] & 0x7FFFFFFF)
        largest = max(largest, u if u < FLOAT32_INFINITY else np.int32(0))
    return largest


@njit(cache=True, nogil=True, error_model="numpy")
def _move(plan: RoundingPlan, s: int) -> RoundingPlan:
    """The plan with the format's exponents shifted by s."""
    return RoundingPlan(
        plan.dropped, plan.lowest_field + s, plan.lsb + s,
        plan.near, plan.away, plan.full_positive, plan.full_negative,
        _move_bits(plan.smallest, s), _move_bits(plan.gap_positive, s), _move_bits(plan.gap_negative, s),
        _move_bits(plan.gap_floor, s), plan.gap_units, plan.gap_exponent + s,
        _move_bits(plan.max_positive, s), _move_bits(plan.max_negative, s),
        _move_bits(plan.over_positive, s), _move_bits(plan.over_negative, s),
        _move_bits(plan.infinity_positive, s), _move_bits(plan.infinity_negative, s), plan.nan, plan.signed_zero,
    )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy")
def _move_bits(bits: int, s: int) -> int:
    """A normal number times 2^s; 0, 1 ("anything above zero"), infinity and NaN stay as they are."""
    return bits + (s << 23) if 2**23 <= bits < FLOAT32_INFINITY else bits
