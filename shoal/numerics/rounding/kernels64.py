"""The rounding loops for float64, compiled by numba: as in `kernels32`, but not vectorised.

64-bit integers throughout, as in `tensors`; the dropped part `delta` has 62 bits after the point.
"""

import numpy as np
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.numerics.rounding.kernels32 import random_word
from shoal.numerics.rounding.plan import FLOAT64, RoundingPlan
from shoal.numerics.rounding.randomness import Keys

INFINITY = FLOAT64.infinity
MAGNITUDE = 2**63 - 1
SIGN = -(2**63)
POINT = 62
"""Bits of `delta` after the point."""


@njit(cache=True, nogil=True, error_model="numpy")
def round_nearest_or_directed(x: NDArray[np.int64], y: NDArray[np.int64], plan: RoundingPlan) -> int:
    """y = x rounded, on bit patterns; returns the number of NaN."""
    nans = 0
    for i in range(x.size):
        u, negative = x[i] & MAGNITUDE, x[i] < 0
        e = max(u >> 52, 1)
        sig = u - ((e - 1) << 52)
        below = max(plan.lowest_field - e, 0)
        shift = min(plan.dropped + below, 60)  # from 55 on, sig is below a quarter of the spacing
        mask = (1 << shift) - 1
        tie = ((sig >> shift) | plan.away) & mask & plan.near
        full = plan.full_negative if negative else plan.full_positive
        k = (sig + (mask >> 1) * plan.near + tie + mask * full) >> shift
        r = magnitude_of(e, k, below, plan)
        if u < plan.smallest:
            r = plan.smallest if u >= (plan.gap_negative if negative else plan.gap_positive) else 0
        y[i] = finish_rounding(x[i], u, r, plan)
        nans += u > INFINITY
    return nans


@njit(cache=True, nogil=True, error_model="numpy")
def round_stochastically(
    x: NDArray[np.int64],
    y: NDArray[np.int64],
    plan: RoundingPlan,
    first_index: int,
    keys: Keys,
    bits: int,
    variant: int,
) -> int:
    """y = x rounded stochastically, on bit patterns; arguments as in `kernels32.round_stochastically`."""
    nans = 0
    for i in range(x.size):
        u = x[i] & MAGNITUDE
        e = max(u >> 52, 1)
        sig = u - ((e - 1) << 52)
        below = max(plan.lowest_field - e, 0)
        index = np.uint32(first_index + i)
        upper = np.int64(random_word(index, np.uint32(keys.upper_before), np.uint32(keys.upper_between)))
        lower = np.int64(random_word(index, np.uint32(keys.lower_before), np.uint32(keys.lower_between)))
        random = int(((upper << 30) | (lower >> 2)) >> (POINT - bits))
        if u < plan.smallest and plan.gap_floor == 0:
            r = plan.smallest if up_in_gap(e, sig, random, plan, bits, variant) else 0
        else:
            r = magnitude_of(e, round_by_chance(sig, plan.dropped + below, random, bits, variant), below, plan)
            if plan.gap_floor > 0 and (u < plan.gap_floor or r < plan.smallest):
                r = 0
        y[i] = finish_rounding(x[i], u, r, plan)
        nans += u > INFINITY
    return nans


@njit(cache=True, nogil=True, error_model="numpy")
def round_by_chance(sig: int, shift: int, random: int, bits: int, variant: int) -> int:
    """sig as a number of spacings of 2^shift units; delta, the dropped part, has POINT bits after the point."""
    within, cut = min(shift, POINT), POINT - bits
    tail = (sig & ((1 << within) - 1)) << (POINT - within)
    down = min(shift - within, 62)
    delta = tail >> down
    if variant == 2:
        exact = delta | (1 if (delta << down) != tail else 0)
        delta = exact + ((1 << (cut - 1)) - 1) + ((exact >> cut) & 1)
    if variant == 1:
        up = (delta >> (cut - 1)) + 2 * random + 1 >= 1 << (bits + 1)
    else:
        up = (delta >> cut) + random >= 1 << bits
    return (sig >> within) + (1 if up else 0)


@njit(cache=True, nogil=True, error_model="numpy")
def up_in_gap(e: int, sig: int, random: int, plan: RoundingPlan, bits: int, variant: int) -> bool:
    """As in `kernels32._chance_in_gap`."""
    places = e - 1074 + bits - plan.gap_exponent
    down = min(max(-places, 0), 62)
    scaled = 2 * ((sig << max(places, 0)) >> down) + (1 if sig & ((1 << down) - 1) else 0)
    n = (1 << bits) - random
    needed = 2 * plan.gap_units * (2 * n - (1 if variant > 0 else 0)) + (n & 1 if variant == 2 else 0)
    return scaled >= needed


@njit(cache=True, nogil=True, error_model="numpy")
def magnitude_of(e: int, k: int, below: int, plan: RoundingPlan) -> int:
    """The bits of k spacings, as in `kernels32`."""
    if below == 0:
        return (k << plan.dropped) + ((e - 1) << 52)
    if k < 1 << min(max(-1022 - plan.lsb, 0), 52):  # zero or subnormal
        return k << min(max(plan.lsb + 1074, 0), 62)
    return int(np.float64(k).view(np.int64)) + (plan.lsb << 52)


@njit(cache=True, nogil=True, error_model="numpy")
def finish_rounding(x: int, u: int, r: int, plan: RoundingPlan) -> int:
    """Overflow, special values and the sign."""
    if u > INFINITY:
        return plan.nan
    if u == INFINITY:
        r = plan.infinity_negative if x < 0 else plan.infinity_positive
    elif r > (plan.max_negative if x < 0 else plan.max_positive):
        r = plan.over_negative if x < 0 else plan.over_positive
    return r if r > INFINITY or r < 1 - plan.signed_zero else r | (x & SIGN)
