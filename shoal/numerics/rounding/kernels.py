"""The rounding loops, compiled by numba: vectorised integer arithmetic on bit patterns, without branches.

They are written once and compiled for both carriers: bit patterns are int32 for float32 and int64 for float64. T is
this type. Numba computes with 32-bit integers in 64 bits, which would halve the number of lanes; hence the casts to T
and the shifts by `left` and `right`.

Notation: u magnitude bits, e exponent field (1 also for subnormals), so that sig = u - (e-1)·2^23 is the significand
with its leading bit, and the value is sig·2^(e-150) in float32. A format's spacing at that magnitude is 2^shift units
of sig; k is the number of spacings.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.numerics.rounding.plan import FLOAT32, FLOAT64, RoundingPlan
from shoal.numerics.rounding.randomness import MULTIPLIERS, SHIFTS, Keys

intrinsic: Any = extending.intrinsic  # which mypy takes for a function of the typing context as well

M0, M1 = np.uint32(MULTIPLIERS[0]), np.uint32(MULTIPLIERS[1])
S0, S1, S2 = np.int32(SHIFTS[0]), np.int32(SHIFTS[1]), np.int32(SHIFTS[2])
BLOCK = 4096  # elements that stay in the L1 cache between two passes over them
BEYOND, VANISHED = 1, 2  # events of a rounding: the largest value was exceeded; a nonzero number became zero


# ---- integers as wide as the carrier ---------------------------------------------------------------------------------


class Bits(NamedTuple):
    """A carrier, as numbers of type T."""

    T: Any
    width: Any
    mantissa: Any
    lowest: Any  # exponent of the smallest normal number
    infinity: Any
    magnitude: Any  # all bits but the sign


def bits_of(T: Any) -> Any:
    """The carrier whose bit patterns are of type T; all its numbers are constants."""


@extending.overload(bits_of, strict=False)
def _bits_of(T: Any) -> Any:
    width = T.dtype.bitwidth
    mantissa, lowest, highest = FLOAT32 if width == 32 else FLOAT64
    infinity, magnitude = (highest - lowest + 2) << mantissa, 2 ** (width - 1) - 1
    return lambda T: Bits(T, T(width), T(mantissa), T(lowest), T(infinity), T(magnitude))


def _shift(operation: str) -> Any:
    @intrinsic
    def shift(_typing: Any, value: Any, places: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return getattr(builder, operation)(*arguments)

        return (value(value, places), generate) if value.bitwidth == places.bitwidth else None

    return shift


left: Any = _shift("shl")  # left(value, places): value·2^places without the upper bits, for fewer places than bits

right: Any = _shift("lshr")  # right(value, places): a logical shift, with zeros shifted in


@intrinsic
def float_bits(_typing: Any, k: Any) -> Any:
    """float_bits(k): the bits of k as a floating-point number."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.FloatType() if k.bitwidth == 32 else ir.DoubleType()
        return builder.bitcast(builder.sitofp(arguments[0], kind), arguments[0].type)

    return k(k), generate


# ---- one number ------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, error_model="numpy")
def take_apart(c: Bits, x: Any, plan: RoundingPlan) -> Any:
    """(u, e, sig, number of binades below the format's lowest full one) of a bit pattern."""
    T = c.T
    u = T(x & c.magnitude)
    e = max(right(u, c.mantissa), T(1))
    sig = T(u - left(T(e - 1), c.mantissa))
    return u, e, sig, max(T(T(plan.lowest_field) - e), T(0))


@njit(cache=True, nogil=True, error_model="numpy")
def round_surely(c: Bits, x: Any, plan: RoundingPlan) -> Any:
    """The magnitude of x rounded to nearest or in a direction, and u."""
    T = c.T
    u, e, sig, below = take_apart(c, x, plan)
    negative = x < 0
    near, away = T(-plan.near), T(plan.away)
    most = T(c.mantissa + 3)  # sig is then below a quarter of the spacing
    shift = min(T(T(plan.dropped) + below), most)
    mask = T(left(T(1), shift) - 1)
    tie = T(T(right(sig, shift) | away) & mask & near & 1)
    full = T(-plan.full_negative) if negative else T(-plan.full_positive)
    add = T(T(right(mask, T(1)) & near) + T(tie + T(mask & full)))
    r = magnitude_of(c, e, right(T(sig + add), shift), below, plan)
    gap = T(plan.gap_negative) if negative else T(plan.gap_positive)
    inside = T(plan.smallest) if u >= gap else T(0)
    return inside if u < T(plan.smallest) else r, u


@njit(cache=True, nogil=True, error_model="numpy")
def chance_of(c: Bits, bits: int, variant: int) -> Any:
    """How many lower bits of a random number are not used, and masks, for `spacings_by_chance`."""
    T = c.T
    cut = T(c.width - 1 - bits)
    upper = T(c.magnitude & left(T(-1), cut))
    half = left(T(1), T(cut - 1))
    return cut, upper, half if variant == 1 else T(0), T(half - 1), T(-1) if variant == 2 else T(0)


@njit(cache=True, nogil=True, error_model="numpy")
def spacings_by_chance(c: Bits, sig: Any, shift: Any, random: Any, chance: Any) -> Any:
    """k, rounded stochastically.

    delta, the dropped part of a spacing, has all bits but the sign after the point, and so has R, the upper bits of the
    random number (B: plus half of their last bit). A magnitude is rounded up if delta + R >= 1, which sets the sign.
    Variant C first rounds delta to R's bits, ties to even; bits lost to the right break a tie.
    """
    T = c.T
    point = T(c.width - 1)
    cut, upper, half, rest, nearest = chance
    within = min(shift, point)
    tail = left(T(sig & T(left(T(1), within) - 1)), T(point - within))
    down = min(T(shift - within), point)
    delta = right(tail, down)
    lost = T(1) if left(delta, down) != tail else T(0)
    tie = T(T(right(delta, cut) & T(1)) | lost)
    rounded = T(delta + T(T(rest + tie) & nearest))
    total = T(rounded + T(T(random & upper) | half))
    return T(right(sig, within) + right(total, point))


@njit(cache=True, nogil=True, error_model="numpy")
def up_in_gap(c: Bits, e: Any, sig: Any, random: int, plan: RoundingPlan, bits: int, variant: int) -> bool:
    """Whether a magnitude below the smallest value w of a format without subnormals is rounded up: delta = |x| / w.

    w = W·2^g is not a power of two in CFG-5, so two products are compared instead of a quotient: with N = 2^bits - R,
    floor(delta·2^bits) >= N (A) is |x|·2^bits >= w·N, and B and C shift N by a half. Twice |x|·2^(bits+1-g) is compared
    with twice W·(2N or 2N - 1), so that the lowest bit is free for bits lost in a shift and for C's ties.
    """
    least = np.int64(c.lowest) - np.int64(c.mantissa)
    places: Any = np.int64(e) + least + bits - plan.gap_exponent
    down = np.int64(min(max(-places, 0), 62))
    lost = np.int64(sig) & ((np.int64(1) << down) - 1)
    scaled = 2 * ((np.int64(sig) << max(places, 0)) >> down) + (1 if lost else 0)
    n = (np.int64(1) << bits) - random
    needed = 2 * plan.gap_units * (2 * n - (1 if variant > 0 else 0)) + (n & 1 if variant == 2 else 0)
    return bool(scaled >= needed)


@njit(cache=True, nogil=True, error_model="numpy")
def magnitude_of(c: Bits, e: Any, k: Any, below: Any, plan: RoundingPlan) -> Any:
    """The bits of k spacings: in a full binade k carries into the exponent, below the lowest one it is k·2^lsb."""
    T = c.T
    mantissa, lowest = c.mantissa, c.lowest
    full = T(left(k, T(plan.dropped)) + left(T(e - 1), mantissa))
    # k·2^lsb by adding to the exponent field of float(k), which no processor mode can flush; where that would leave
    # the carrier's normal range, the bits of a subnormal are its multiple of the carrier's smallest number.
    lsb = T(plan.lsb)
    small = T(float_bits(k) + left(lsb, mantissa))
    spare = min(max(T(lsb - lowest + mantissa), T(0)), T(c.width - 1))
    least = left(T(1), min(max(T(lowest - lsb), T(0)), T(mantissa + 1)))
    small = left(k, spare) if k < least else small
    return small if below > 0 else full


@njit(cache=True, nogil=True, error_model="numpy")
def finish(c: Bits, x: Any, u: Any, r: Any, plan: RoundingPlan) -> Any:
    """The rounded bit pattern: overflow, special values and the sign."""
    T = c.T
    infinity = c.infinity
    negative = x < 0
    over = T(plan.over_negative) if negative else T(plan.over_positive)
    largest = T(plan.max_negative) if negative else T(plan.max_positive)
    infinite = T(plan.infinity_negative) if negative else T(plan.infinity_positive)
    r = over if r > largest else r
    r = infinite if u == infinity else r
    signed = T(r | T(x & left(T(1), T(c.width - 1))))
    signed = r if r < T(1 - plan.signed_zero) else signed
    signed = r if r > infinity else signed
    return T(plan.nan) if u > infinity else signed


@njit(cache=True, nogil=True, error_model="numpy")
def round_finite(x: float, plan: RoundingPlan, random: int, bits: int, variant: int) -> Any:
    """(a finite float64 rounded, BEYOND, VANISHED or 0); `bits` is 0 unless rounding is stochastic, with R."""
    c = bits_of(np.int64)
    T = c.T
    pattern: Any = np.float64(x).view(np.int64)
    if bits == 0:
        r, u = round_surely(c, pattern, plan)
    else:
        u, e, sig, below = take_apart(c, pattern, plan)
        if u < plan.smallest:
            r = plan.smallest if up_in_gap(c, e, sig, random, plan, bits, variant) else 0
        else:
            aligned = left(T(random), T(63 - bits))
            k = spacings_by_chance(c, sig, T(plan.dropped + below), aligned, chance_of(c, bits, variant))
            r = magnitude_of(c, e, k, below, plan)
    event = 0
    if r > (plan.max_negative if pattern < 0 else plan.max_positive):
        event = BEYOND
    elif r == 0 and u != 0:
        event = VANISHED
    return np.int64(finish(c, pattern, u, r, plan)).view(np.float64), event


@njit(cache=True, nogil=True, error_model="numpy")
def random_word(index: np.uint32, before: np.uint32, between: np.uint32) -> np.uint32:
    """As `randomness.word`."""
    h = np.uint32(index ^ before)
    h = np.uint32(np.uint32(h ^ right(h, S0)) * M0)
    h = np.uint32(h ^ between)
    h = np.uint32(np.uint32(h ^ right(h, S1)) * M1)
    return np.uint32(h ^ right(h, S2))


@njit(cache=True, nogil=True, error_model="numpy")
def random_number(c: Bits, index: np.uint32, keys: Keys) -> Any:
    """The upper random bits of an element, as many as T has besides the sign."""
    T = c.T
    upper = random_word(index, np.uint32(keys.upper_before), np.uint32(keys.upper_between))
    if c.width == 32:
        return T(right(upper, np.int32(1)))
    lower = random_word(index, np.uint32(keys.lower_before), np.uint32(keys.lower_between))
    return T(left(T(upper), T(31)) | T(right(lower, np.int32(1))))


# ---- arrays ----------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, error_model="numpy")
def round_nearest_or_directed(x: NDArray[Any], y: NDArray[Any], plan: RoundingPlan) -> int:
    """y = x rounded, on bit patterns; returns the number of NaN."""
    c = bits_of(x.dtype.type)
    T = c.T
    nans = T(0)
    for i in range(x.size):
        r, u = round_surely(c, x[i], plan)
        y[i] = finish(c, x[i], u, r, plan)
        nans = T(nans + T(u > c.infinity))
    return int(nans)


@njit(cache=True, nogil=True, error_model="numpy")
def round_stochastically(
    x: NDArray[Any], y: NDArray[Any], plan: RoundingPlan, first_index: int, keys: Keys, bits: int, variant: int
) -> int:
    """y = x rounded stochastically, on bit patterns; returns the number of NaN. x and y must not overlap.

    The element at position i uses the random words of index first_index + i (its lower 32 bits) under these keys;
    `variant` is 0, 1, 2 for A, B, C.
    """
    nans = 0
    for start in range(0, x.size, BLOCK):
        part, result = x[start : start + BLOCK], y[start : start + BLOCK]
        index = np.uint32(first_index + start)
        nans += _by_chance(part, result, plan, index, keys, bits, variant)
        if plan.gap_floor == 0 and _any_in_gap(part, plan.smallest):
            _by_chance_in_gap(part, result, plan, index, keys, bits, variant)
    return nans


@njit(cache=True, nogil=True, error_model="numpy")
def _by_chance(
    x: NDArray[Any], y: NDArray[Any], plan: RoundingPlan, first_index: np.uint32, keys: Keys, bits: int, variant: int
) -> int:
    """All elements; those below the smallest value as if underflow were gradual."""
    c = bits_of(x.dtype.type)
    T = c.T
    chance = chance_of(c, bits, variant)
    least_kept = T(plan.smallest if plan.gap_floor > 0 else 0)
    nans = T(0)
    for i in range(x.size):
        u, e, sig, below = take_apart(c, x[i], plan)
        random = random_number(c, np.uint32(first_index + np.uint32(i)), keys)
        k = spacings_by_chance(c, sig, T(T(plan.dropped) + below), random, chance)
        r = magnitude_of(c, e, k, below, plan)
        r = T(0) if (r < least_kept) | (u < T(plan.gap_floor)) else r
        y[i] = finish(c, x[i], u, r, plan)
        nans = T(nans + T(u > c.infinity))
    return int(nans)


@njit(cache=True, nogil=True, error_model="numpy")
def _any_in_gap(x: NDArray[Any], smallest: int) -> bool:
    """Whether any magnitude is below the smallest value; zeros do not count, as they are already correct."""
    c = bits_of(x.dtype.type)
    T = c.T
    least = c.magnitude
    for i in range(x.size):
        least = min(least, T(T(T(x[i] & c.magnitude) - T(1)) & c.magnitude))
    return bool(least < smallest - 1)


@njit(cache=True, nogil=True, error_model="numpy")
def _by_chance_in_gap(
    x: NDArray[Any], y: NDArray[Any], plan: RoundingPlan, first_index: np.uint32, keys: Keys, bits: int, variant: int
) -> None:
    """Redo the elements below the smallest value of a format without subnormals."""
    c = bits_of(x.dtype.type)
    T = c.T
    for i in range(x.size):
        u, e, sig, _ = take_apart(c, x[i], plan)
        if u < plan.smallest:
            number = random_number(c, np.uint32(first_index + np.uint32(i)), keys)
            random = np.int64(right(number, T(c.width - 1 - bits)))
            up = up_in_gap(c, e, sig, random, plan, bits, variant)
            y[i] = finish(c, x[i], u, T(plan.smallest) if up else T(0), plan)
