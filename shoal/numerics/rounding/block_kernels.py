"""Rounding to blocks that share an exponent, for float32, compiled by numba.

Nothing is scaled: rounding 2^-s·x to a format and scaling back equals rounding x to the format with its exponents
shifted by s, and a plan is shifted by adding s to its exponents and s·2^23 to the bits of its magnitudes.
"""

import numpy as np
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.numerics.rounding.kernels32 import INFINITY, MAGNITUDE, round_nearest_or_directed, round_stochastically
from shoal.numerics.rounding.plan import RoundingPlan


@njit(cache=True, nogil=True, error_model="numpy")
def round_bands(
    x: NDArray[np.int32],
    y: NDArray[np.int32],
    plan: RoundingPlan,
    tile: tuple[int, int],
    bands: tuple[int, int],
    exponents: tuple[int, int, int],
    chance: tuple[int, int, int, int, int],
) -> int:
    """y = x rounded, on bit patterns, both (G, R, C), for bands[0] to bands[1]; returns the number of NaN.

    A band is a row of tiles: band b of G·ceil(R/h). `exponents` are the element format's highest exponent and the
    smallest and largest s; `chance` is (first index, key, key, bits, variant) of stochastic rounding, with bits 0 for
    any other rounding.
    Returns -1 if a block's s shifts the plan out of float32's normal range; y is then incomplete.
    """
    _, rows, columns = x.shape
    height, width = tile
    per_group = (rows + height - 1) // height
    nans = 0
    for band in range(bands[0], bands[1]):
        group, top = band // per_group, band % per_group * height
        bottom = min(top + height, rows)
        for left in range(0, columns, width):
            right = min(left + width, columns)
            largest = np.int32(0)
            for row in range(top, bottom):
                largest = max(largest, _largest(x[group, row, left:right]))
            shared = 0 if largest == 0 else _exponent(largest) - exponents[0]
            shared = min(max(shared, exponents[1]), exponents[2])
            if plan.lowest_field + shared < 2 or (plan.max_positive >> 23) + shared < 1:
                return -1
            moved = _move(plan, shared)
            for row in range(top, bottom):
                part, result = x[group, row, left:right], y[group, row, left:right]
                if chance[3] == 0:
                    nans += round_nearest_or_directed(part, result, moved)
                else:
                    index = chance[0] + (group * rows + row) * columns + left
                    nans += round_stochastically(part, result, moved, index, chance[1], chance[2], chance[3], chance[4])
    return nans


@njit(cache=True, nogil=True, error_model="numpy")
def _largest(x: NDArray[np.int32]) -> np.int32:
    """The bits of the largest finite magnitude."""
    largest = np.int32(0)
    for i in range(x.size):
        u = np.int32(x[i] & MAGNITUDE)
        largest = max(largest, u if u < INFINITY else np.int32(0))
    return largest


@njit(cache=True, nogil=True, error_model="numpy")
def _exponent(u: np.int32) -> int:
    """The exponent of a positive number; that of a subnormal is found by converting its multiple of 2^-149."""
    if u >= 2**23:
        return int(u >> 23) - 127
    return int(np.float32(u).view(np.int32) >> 23) - 127 - 149


@njit(cache=True, nogil=True, error_model="numpy")
def _move(plan: RoundingPlan, s: int) -> RoundingPlan:
    return RoundingPlan(
        plan.dropped,
        plan.lowest_field + s,
        plan.lsb + s,
        plan.near,
        plan.away,
        plan.full_positive,
        plan.full_negative,
        _move_bits(plan.smallest, s),
        _move_bits(plan.gap_positive, s),
        _move_bits(plan.gap_negative, s),
        _move_bits(plan.gap_floor, s),
        plan.gap_units,
        plan.gap_exponent + s,
        _move_bits(plan.max_positive, s),
        _move_bits(plan.max_negative, s),
        _move_bits(plan.over_positive, s),
        _move_bits(plan.over_negative, s),
        _move_bits(plan.infinity_positive, s),
        _move_bits(plan.infinity_negative, s),
        plan.nan,
        plan.signed_zero,
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _move_bits(bits: int, s: int) -> int:
    """A normal number times 2^s; 0, 1 ("anything above zero"), infinity and NaN stay as they are."""
    return bits + (s << 23) if 2**23 <= bits < INFINITY else bits
