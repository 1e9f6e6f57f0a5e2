"""The rounding loops for float32, compiled by numba: branch-free, vectorised integer arithmetic on bit patterns.

Notation: u magnitude bits, e exponent field (1 also for subnormals), so that sig = u - (e-1)·2^23 is the significand
with its leading bit, and the value is sig·2^(e-150). A format's spacing at that magnitude is 2^shift units of sig; k
is the number of spacings. All integers have 32 bits; numba widens every sum to 64, hence the casts.
"""

import numpy as np
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.numerics.rounding.plan import FLOAT32, RoundingPlan
from shoal.numerics.rounding.randomness import MULTIPLIERS, SHIFTS
from shoal.numerics.rounding.shifts import left, right

INFINITY = np.int32(FLOAT32.infinity)
MAGNITUDE = np.int32(0x7FFFFFFF)
SIGN = np.int32(-(2**31))
M0, M1 = np.uint32(MULTIPLIERS[0]), np.uint32(MULTIPLIERS[1])
S0, S1, S2 = np.int32(SHIFTS[0]), np.int32(SHIFTS[1]), np.int32(SHIFTS[2])
BLOCK = 4096  # elements that stay in the L1 cache between two passes over them


@njit(cache=True, nogil=True, error_model="numpy")
def round_nearest_or_directed(x: NDArray[np.int32], y: NDArray[np.int32], plan: RoundingPlan) -> int:
    """y = x rounded, on bit patterns; returns the number of NaN."""
    dropped, lowest_field = np.int32(plan.dropped), np.int32(plan.lowest_field)
    near, away = np.int32(-plan.near), np.int32(plan.away)
    full_positive, full_negative = np.int32(-plan.full_positive), np.int32(-plan.full_negative)
    nans = np.int32(0)
    for i in range(x.size):
        u = np.int32(x[i] & MAGNITUDE)
        negative = x[i] < 0
        e = max(right(u, np.int32(23)), np.int32(1))
        below = max(np.int32(lowest_field - e), np.int32(0))
        sig = np.int32(u - left(np.int32(e - 1), np.int32(23)))
        shift = min(np.int32(dropped + below), np.int32(26))  # at 26 and more, sig is below a quarter of the spacing
        mask = np.int32(left(np.int32(1), shift) - 1)
        tie = np.int32(np.int32(right(sig, shift) | away) & mask & near & 1)
        full = full_negative if negative else full_positive
        add = np.int32(np.int32(right(mask, np.int32(1)) & near) + np.int32(tie + np.int32(mask & full)))
        k = right(np.int32(sig + add), shift)
        r = magnitude_of(e, k, below, plan)
        gap = np.int32(plan.gap_negative) if negative else np.int32(plan.gap_positive)
        inside = np.int32(plan.smallest) if u >= gap else np.int32(0)
        r = inside if u < np.int32(plan.smallest) else r
        y[i] = finish_rounding(x[i], u, r, plan)
        nans = np.int32(nans + np.int32(u > INFINITY))
    return int(nans)


@njit(cache=True, nogil=True, error_model="numpy")
def magnitude_of(e: np.int32, k: np.int32, below: np.int32, plan: RoundingPlan) -> np.int32:
    """The bits of k spacings: in a full binade k carries into the exponent, below the lowest one it is k·2^lsb."""
    full = np.int32(left(k, np.int32(plan.dropped)) + left(np.int32(e - 1), np.int32(23)))
    # k·2^lsb by adding to the exponent field of float(k), which no processor mode can flush; where that would leave
    # the normal range of float32, the bits of a subnormal are its multiple of 2^-149.
    small = np.int32(np.float32(k).view(np.int32) + left(np.int32(plan.lsb), np.int32(23)))
    spare = np.int32(min(max(plan.lsb + 149, 0), 31))
    least = left(np.int32(1), np.int32(min(max(-126 - plan.lsb, 0), 24)))
    small = left(k, spare) if k < least else small
    return small if below > 0 else full


@njit(cache=True, nogil=True, error_model="numpy")
def finish_rounding(x: np.int32, u: np.int32, r: np.int32, plan: RoundingPlan) -> np.int32:
    """Overflow, special values and the sign."""
    over = np.int32(plan.over_negative) if x < 0 else np.int32(plan.over_positive)
    largest = np.int32(plan.max_negative) if x < 0 else np.int32(plan.max_positive)
    infinity = np.int32(plan.infinity_negative) if x < 0 else np.int32(plan.infinity_positive)
    r = over if r > largest else r
    r = infinity if u == INFINITY else r
    signed = np.int32(r | np.int32(x & SIGN))
    signed = r if r < np.int32(1 - plan.signed_zero) else signed
    signed = r if r > INFINITY else signed
    return np.int32(plan.nan) if u > INFINITY else signed


@njit(cache=True, nogil=True, error_model="numpy")
def round_stochastically(
    x: NDArray[np.int32],
    y: NDArray[np.int32],
    plan: RoundingPlan,
    first_index: int,
    before: int,
    between: int,
    bits: int,
    variant: int,
) -> int:
    """y = x rounded stochastically, on bit patterns; returns the number of NaN. x and y must not overlap.

    The element at position i uses the random word of index first_index + i (its lower 32 bits) under these keys;
    `variant` is 0, 1, 2 for A, B, C.
    """
    nans = 0
    for start in range(0, x.size, BLOCK):
        part, result = x[start : start + BLOCK], y[start : start + BLOCK]
        index = np.uint32(first_index + start)
        nans += _chance(part, result, plan, index, np.uint32(before), np.uint32(between), bits, variant)
        if plan.gap_floor == 0 and _any_in_gap(part, plan.smallest):
            _chance_in_gap(part, result, plan, index, np.uint32(before), np.uint32(between), bits, variant)
    return nans


@njit(cache=True, nogil=True, error_model="numpy")
def _chance(
    x: NDArray[np.int32],
    y: NDArray[np.int32],
    plan: RoundingPlan,
    first_index: np.uint32,
    before: np.uint32,
    between: np.uint32,
    bits: int,
    variant: int,
) -> int:
    """All elements; those below the smallest value as if underflow were gradual.

    delta, the dropped part of a spacing, has 32 bits after the point. A magnitude is rounded up if delta + R >= 1, with
    R made of the upper `bits` of the word (B: plus half of their last bit); without a 33rd bit this is delta > ~R.
    """
    dropped, lowest_field = np.int32(plan.dropped), np.int32(plan.lowest_field)
    upper = np.uint32(0xFFFFFFFF << (32 - bits))
    half = np.uint32((1 << (31 - bits)) if variant == 1 else 0)
    cut, rest = np.int32(32 - bits), np.uint32(~upper >> np.uint32(1))
    nearest = np.uint32(0xFFFFFFFF if variant == 2 else 0)
    least_kept = np.int32(plan.smallest if plan.gap_floor > 0 else 0)
    nans = np.int32(0)
    for i in range(x.size):
        u = np.int32(x[i] & MAGNITUDE)
        e = max(right(u, np.int32(23)), np.int32(1))
        below = max(np.int32(lowest_field - e), np.int32(0))
        sig = np.int32(u - left(np.int32(e - 1), np.int32(23)))
        shift = np.int32(dropped + below)
        within = min(shift, np.int32(31))
        kept = right(sig, within)
        tail = np.uint32(sig & np.int32(left(np.int32(1), within) - 1))
        places_up = min(max(np.int32(32 - shift), np.int32(0)), np.int32(31))
        places_down = min(max(np.int32(shift - 32), np.int32(0)), np.int32(31))
        delta = right(left(tail, places_up), places_down)

        # Variant C rounds delta to `bits` bits, ties to even; bits lost to the right break a tie.
        lost = np.uint32(1) if right(left(delta, places_down), places_up) != tail else np.uint32(0)
        exact = np.uint32(delta | lost)
        tie = np.uint32(right(exact, cut) & np.uint32(1))
        rounded = np.uint32(exact + np.uint32(np.uint32(rest + tie) & nearest))
        carry = rounded < exact

        word = random_word(np.uint32(first_index + np.uint32(i)), before, between)
        limit = np.uint32(~np.uint32(np.uint32(word & upper) | half))
        up = np.int32(1) if (rounded > limit) | carry else np.int32(0)
        r = magnitude_of(e, np.int32(kept + up), below, plan)
        r = np.int32(0) if (r < least_kept) | (u < np.int32(plan.gap_floor)) else r
        y[i] = finish_rounding(x[i], u, r, plan)
        nans = np.int32(nans + np.int32(u > INFINITY))
    return int(nans)


@njit(cache=True, nogil=True, error_model="numpy")
def _any_in_gap(x: NDArray[np.int32], smallest: int) -> bool:
    """Whether any magnitude is below the smallest value; zeros do not count, as they are already correct."""
    least = np.uint32(0xFFFFFFFF)
    for i in range(x.size):
        least = min(least, np.uint32(np.uint32(x[i] & MAGNITUDE) - np.uint32(1)))
    return bool(least + 1 < smallest)


@njit(cache=True, nogil=True, error_model="numpy")
def _chance_in_gap(
    x: NDArray[np.int32],
    y: NDArray[np.int32],
    plan: RoundingPlan,
    first_index: np.uint32,
    before: np.uint32,
    between: np.uint32,
    bits: int,
    variant: int,
) -> None:
    """Redo the elements below the smallest value w of a format without subnormals: delta = |x| / w.

    w = W·2^g is not a power of two in CFG-5, so two products are compared instead of a quotient: with N = 2^bits - R,
    floor(delta·2^bits) >= N (A) is |x|·2^bits >= w·N, and B and C shift N by a half. Twice |x|·2^(bits+1-g) is compared
    with twice W·(2N or 2N - 1), so that the lowest bit is free for bits lost in a shift and for C's ties.
    """
    for i in range(x.size):
        u = np.int32(x[i] & MAGNITUDE)
        if u < plan.smallest:
            e = max(np.int64(u >> 23), np.int64(1))
            sig = np.int64(u) - ((e - 1) << 23)
            places = e - 149 + bits - plan.gap_exponent
            if places >= 0:
                scaled = (sig << places) * 2
            else:
                down = np.int64(min(-places, np.int64(62)))
                scaled = (sig >> down) * 2 + (1 if sig & ((np.int64(1) << down) - 1) else 0)
            word = random_word(np.uint32(first_index + np.uint32(i)), before, between)
            n = (np.int64(1) << bits) - (np.int64(word) >> (32 - bits))
            needed = 2 * plan.gap_units * (2 * n - (1 if variant > 0 else 0))
            needed += 1 if variant == 2 and n % 2 == 1 else 0
            r = np.int32(plan.smallest) if scaled >= needed else np.int32(0)
            y[i] = finish_rounding(x[i], u, r, plan)


@njit(cache=True, nogil=True, error_model="numpy")
def random_word(index: np.uint32, before: np.uint32, between: np.uint32) -> np.uint32:
    """As `randomness.word`."""
    h = np.uint32(index ^ before)
    h = np.uint32(np.uint32(h ^ right(h, S0)) * M0)
    h = np.uint32(h ^ between)
    h = np.uint32(np.uint32(h ^ right(h, S1)) * M1)
    return np.uint32(h ^ right(h, S2))


@njit(cache=True, nogil=True, error_model="numpy")
def count_nans(x: NDArray[np.int32]) -> int:
    """The number of NaN."""
    nans = 0
    for start in range(0, x.size, BLOCK):
        part = np.int32(0)
        for i in range(start, min(start + BLOCK, x.size)):
            part = np.int32(part + np.int32(np.int32(x[i] & MAGNITUDE) > INFINITY))
        nans += int(part)
    return nans
