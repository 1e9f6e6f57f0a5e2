"""Loops for any MAC unit, one output at a time, in float64: every order, rounding and special value.

Sums are rounded to odd first: if x + y is not a float64, the result is the one of its two neighbours whose last bit is
1. Such a number is on the same side of every value and tie of the accumulator's format as the exact sum, provided that
float64 has at least two bits more than the format (plus its random bits).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.numerics.mac.plan import CHUNKED, EXACT, KAHAN, LIMB, PAIRWISE
from shoal.numerics.rounding.kernels import BEYOND, VANISHED, random_word, round_finite
from shoal.numerics.rounding.randomness import Keys

SATURATED, OVERFLOWED, UNDERFLOWED, NANS = 0, 1, 2, 3  # indices of the counters
DEPTH = 64
SPLIT = 134217729.0  # 2^27 + 1


def multiply_outputs(
    begin: int, end: int, a: Any, b: Any, c: Any, outputs: Any, rules: Any, first: int, keys: Keys
) -> NDArray[np.int64]:
    """c[o], flat, for the outputs[begin:end] o = i·columns + j: the dot product of a[i] and b[j]; returns counters.

    Stochastic: output o uses the word of index first + o under the upper keys, its steps words under the lower ones.
    """
    counts = np.zeros(4, np.int64)
    loop = {PAIRWISE: _pairwise, KAHAN: _kahan, EXACT: _exact}.get(rules[0].order, _in_order)
    loop(a, b, c, outputs[begin:end], rules, first, keys, counts)
    return counts


@njit(cache=True, nogil=True, error_model="numpy")
def _chance(first: int, o: int, keys: Any) -> Any:
    """The keys of an output and of its steps."""
    key = random_word(np.uint32(first + o), np.uint32(keys.upper_before), np.uint32(keys.upper_between))
    return key, np.uint32(keys.lower_before), np.uint32(keys.lower_between)


@njit(cache=True, nogil=True, error_model="numpy")
def _in_order(a: Any, b: Any, c: Any, outputs: Any, rules: Any, first: int, keys: Any, counts: Any) -> None:
    """Sequential or chunked order."""
    plan, product, sums = rules
    for o in outputs:
        x, y, chance = a[o // b.shape[0]], b[o % b.shape[0]], _chance(first, o, keys)
        total = partial = 0.0
        chunks = 0
        for k in range(x.size):
            p = _multiply(x[k], y[k], plan, product, counts)
            if not plan.fused:
                p = _take_in(p, plan, sums, chance, k, counts)
            partial = _add(partial, p, plan, sums, chance, k, counts)
            if plan.order == CHUNKED and ((k + 1) % plan.chunk == 0 or k + 1 == x.size):
                total = _add(total, partial, plan, sums, chance, x.size + chunks, counts)
                partial = 0.0
                chunks += 1
        c[o] = total if plan.order == CHUNKED else partial


@njit(cache=True, nogil=True, error_model="numpy")
def _pairwise(a: Any, b: Any, c: Any, outputs: Any, rules: Any, first: int, keys: Any, counts: Any) -> None:
    """Nodes wait for their sibling, one per level, like the digits of a binary counter."""
    plan, product, sums = rules
    for o in outputs:
        x, y, chance = a[o // b.shape[0]], b[o % b.shape[0]], _chance(first, o, keys)
        waiting = np.zeros(DEPTH, np.float64)
        for k in range(x.size):
            node = _take_in(_multiply(x[k], y[k], plan, product, counts), plan, sums, chance, k, counts) + 0.0
            level = 0
            while (k >> level) & 1:
                step = (level + 1) * x.size + (k >> (level + 1))
                node = _add(waiting[level], node, plan, sums, chance, step, counts)
                level += 1
            waiting[level] = node
        node, found = 0.0, False
        for level in range(DEPTH - 1):
            if (x.size >> level) & 1:
                if found:
                    step = (level + 1) * x.size + ((x.size - 1) >> (level + 1))
                    node = _add(waiting[level], node, plan, sums, chance, step, counts)
                else:
                    node, found = waiting[level], True
        c[o] = node


@njit(cache=True, nogil=True, error_model="numpy")
def _kahan(a: Any, b: Any, c: Any, outputs: Any, rules: Any, first: int, keys: Any, counts: Any) -> None:
    plan, product, sums = rules
    for o in outputs:
        x, y, chance = a[o // b.shape[0]], b[o % b.shape[0]], _chance(first, o, keys)
        total = compensation = 0.0
        for k in range(x.size):
            p = _multiply(x[k], y[k], plan, product, counts)
            if not plan.fused:
                p = _take_in(p, plan, sums, chance, 4 * k, counts)
            fresh = _add(p, -compensation, plan, sums, chance, 4 * k, counts)
            new = _add(total, fresh, plan, sums, chance, 4 * k + 1, counts)
            gained = _add(new, -total, plan, sums, chance, 4 * k + 2, counts)
            compensation = _add(gained, -fresh, plan, sums, chance, 4 * k + 3, counts)
            total = new
        c[o] = total


@njit(cache=True, nogil=True, error_model="numpy")
def _exact(a: Any, b: Any, c: Any, outputs: Any, rules: Any, first: int, keys: Any, counts: Any) -> None:
    """All products as integers, in limbs of 32 bits; the sum is rounded once."""
    plan, product, sums = rules
    limbs = np.zeros(rules[0].exact_limbs, np.int64)
    for o in outputs:
        x, y, chance = a[o // b.shape[0]], b[o % b.shape[0]], _chance(first, o, keys)
        limbs[:] = 0
        infinite, nan = 0.0, False
        for k in range(x.size):
            p = _multiply(x[k], y[k], plan, product, counts)
            if np.isnan(p):
                nan = True
            elif np.isinf(p):
                if infinite == 0:
                    infinite = p
                elif infinite != p and plan.takes_nan:
                    nan = True
            elif p != 0:
                bits = np.float64(p).view(np.int64)
                u = bits & 0x7FFFFFFFFFFFFFFF
                place = (u >> 52) - 1075 - plan.exact_base  # p is significand·2^(exact_base + place)
                significand = (u & ((1 << 52) - 1)) | (1 << 52)
                if place < 0:  # its last bits are zeros
                    significand >>= -place
                    place = np.int64(0)
                limb, shift = place // LIMB, place % LIMB
                low, high = significand & 0xFFFFFFFF, significand >> 32
                sign = -1 if bits < 0 else 1
                limbs[limb] += sign * ((low << shift) & 0xFFFFFFFF)
                limbs[limb + 1] += sign * ((low >> (32 - shift)) + ((high << shift) & 0xFFFFFFFF))
                limbs[limb + 2] += sign * (high >> (32 - shift))
        way = -1.0 if _settle(limbs) else 1.0
        if nan:
            c[o] = np.nan
        elif infinite != 0:
            c[o] = plan.infinite_positive if infinite > 0 else plan.infinite_negative
        elif plan.wraps:  # only the lower bits matter; higher ones are split off, as float64 could not hold them all
            beyond = -plan.lowest * _cut(limbs, plan.exact_cut)
            c[o] = _wrapped(way * _odd_limbs(limbs, plan.exact_base), way * beyond, plan, sums, chance, 0, counts)
        else:
            c[o] = _round(way * _odd_limbs(limbs, plan.exact_base), plan, sums, chance, 0, counts)


@njit(cache=True, nogil=True, error_model="numpy")
def add_exactly(high: NDArray[np.float64], low: NDArray[np.float64], more: NDArray[np.float64]) -> None:
    """high + low += more, element by element; low has what high lost."""
    for o in range(high.size):
        x, y = high[o], more[o]
        s = x + y
        other = s - x
        low[o] += (x - (s - other)) + (y - other)
        high[o] = s


@njit(cache=True, nogil=True, error_model="numpy")
def round_sums(begin: int, end: int, high: Any, low: Any, rules: Any, keys: Keys) -> NDArray[np.int64]:
    """high[begin:end] = the exact sums high + low rounded to the accumulator; returns counters."""
    plan, _, sums = rules
    counts = np.zeros(4, np.int64)
    for o in range(begin, end):
        s = high[o] + low[o]
        value = s if s == 0 else _odd_sum(high[o], low[o], s)
        high[o] = _round(value + 0.0, plan, sums, _chance(0, o, keys), 0, counts)
    return counts


@njit(cache=True, nogil=True, error_model="numpy")
def _settle(limbs: Any) -> bool:
    """Whether the integer in the limbs is negative; the limbs become its magnitude, 32 bits each."""
    carry = np.int64(0)
    for n in range(limbs.size):
        limbs[n] += carry
        carry = limbs[n] >> LIMB
        limbs[n] &= 0xFFFFFFFF
    negative = carry < 0
    if negative:
        carry = np.int64(1)
        for n in range(limbs.size):
            limbs[n] = (limbs[n] ^ 0xFFFFFFFF) + carry
            carry = limbs[n] >> LIMB
            limbs[n] &= 0xFFFFFFFF
    return bool(negative)


@njit(cache=True, nogil=True, error_model="numpy")
def _cut(limbs: Any, place: int) -> int:
    """Remove the bits from `place` upwards: returns the lowest of them, plus 2 if any other was set."""
    if place >= limbs.size * LIMB:
        return 0
    first, shift = place // LIMB, place % LIMB
    above, more = limbs[first] >> shift, limbs[first + 1 :].any()
    limbs[first] &= (1 << shift) - 1
    limbs[first + 1 :] = 0
    return int((above & 1) + (2 if more or above > 1 else 0))


@njit(cache=True, nogil=True, error_model="numpy")
def _odd_limbs(limbs: Any, base: int) -> Any:
    """The magnitude in the limbs times 2^base, rounded to odd."""
    top = limbs.size - 1
    while top > 0 and limbs[top] == 0:
        top -= 1
    if limbs[top] == 0:
        return 0.0
    # The leading 53 bits; any remaining bit makes the last one odd.
    kept, have, exponent, rest = limbs[top], 0, top * LIMB, False
    while kept >> have:
        have += 1
    for n in range(top - 1, -1, -1):
        take = min(LIMB, 53 - have)
        if take > 0:
            kept = (kept << take) | (limbs[n] >> (LIMB - take))
            have, exponent = have + take, (n + 1) * LIMB - take
        rest |= (limbs[n] & ((1 << (LIMB - take)) - 1)) != 0
    return math.ldexp(float(kept | (1 if rest else 0)), base + exponent)


@njit(cache=True, nogil=True, error_model="numpy")
def _multiply(x: float, y: float, plan: Any, product: Any, counts: Any) -> Any:
    """The multiplier's output; NaN already replaced if the accumulator has none."""
    p = x * y
    if np.isnan(p):  # an operand is NaN, or 0 × inf
        if np.isnan(x) or np.isnan(y) or plan.nan_code:
            if plan.takes_nan:
                return np.nan
            counts[NANS] += 1
            return plan.nan_as
        return math.copysign(0.0 if plan.zero_infinity else np.inf, x) * math.copysign(1.0, y)
    if np.isinf(p):
        return p
    if p == 0:
        return p if plan.product_saturates == 0 else 0.0  # fixed-point operands have one zero
    if abs(p) < plan.product_flush_before:
        counts[UNDERFLOWED] += 1
        return math.copysign(0.0, p)
    if plan.product_rounded:
        p, event = round_finite(_odd_product(x, y), product, 0, 0, 0)
        if event == BEYOND:
            counts[SATURATED if plan.product_saturates else OVERFLOWED] += 1
            return p
        if abs(p) < plan.product_flush_after or p == 0:
            counts[UNDERFLOWED] += 1
            return math.copysign(0.0, p) if plan.product_saturates == 0 else 0.0
    if abs(p) > plan.product_max:
        counts[OVERFLOWED] += 1
        return plan.product_beyond_positive if p > 0 else plan.product_beyond_negative
    return p


@njit(cache=True, nogil=True, error_model="numpy")
def _take_in(p: float, plan: Any, sums: Any, chance: Any, step: int, counts: Any) -> Any:
    """The product rounded to the accumulator's format."""
    if np.isnan(p):
        return p
    if np.isinf(p):
        return plan.infinite_positive if p > 0 else plan.infinite_negative
    return _round(p, plan, sums, chance, step, counts)


@njit(cache=True, nogil=True, error_model="numpy")
def _add(x: float, y: float, plan: Any, sums: Any, chance: Any, step: int, counts: Any) -> Any:
    """The accumulator x after the addition of y."""
    if plan.fixed:
        return _limit(x + y, plan, counts)
    s = x + y
    if np.isnan(s):
        return np.nan if plan.takes_nan else x  # without NaN, only inf - inf gets here
    if np.isinf(s):
        return plan.infinite_positive if s > 0 else plan.infinite_negative
    if s == 0:
        return s if plan.signed_zero else 0.0
    return _round(_odd_sum(x, y, s), plan, sums, chance, step, counts)


@njit(cache=True, nogil=True, error_model="numpy")
def _limit(value: float, plan: Any, counts: Any) -> Any:
    """A multiple of the fixed-point step, limited to the accumulator's range."""
    if plan.lowest <= value <= plan.highest:
        return value + 0.0
    if plan.wraps:
        counts[OVERFLOWED] += 1
        period = -2 * plan.lowest
        value = np.fmod(value, period)
        if value > plan.highest:
            value -= period
        elif value < plan.lowest:
            value += period
        return value + 0.0
    counts[SATURATED] += 1
    return plan.highest if value > 0 else plan.lowest


@njit(cache=True, nogil=True, error_model="numpy")
def _round(x: float, plan: Any, sums: Any, chance: Any, step: int, counts: Any) -> Any:
    """A finite number rounded to the accumulator's format."""
    if plan.wraps:
        return _wrapped(x, 0.0, plan, sums, chance, step, counts)
    value, event = round_finite(x, sums, *_random(plan, chance, step))
    if event == BEYOND:
        counts[SATURATED if plan.saturates else OVERFLOWED] += 1
    elif event == VANISHED:
        counts[UNDERFLOWED] += 1
    return value


@njit(cache=True, nogil=True, error_model="numpy")
def _wrapped(x: float, beyond: float, plan: Any, sums: Any, chance: Any, step: int, counts: Any) -> Any:
    """x + beyond rounded to a wrapping accumulator; `beyond` is a multiple of half its period, of the same sign."""
    value, _ = round_finite(x, sums, *_random(plan, chance, step))
    if value == 0 and x != 0 and beyond == 0:
        counts[UNDERFLOWED] += 1
    return _limit(value + beyond, plan, counts)


@njit(cache=True, nogil=True, error_model="numpy")
def _odd_sum(x: float, y: float, s: float) -> Any:
    """x + y rounded to odd; s is x + y rounded to nearest, and neither zero nor infinite."""
    other = s - x
    error = (x - (s - other)) + (y - other)
    return _odd(s, error)


@njit(cache=True, nogil=True, error_model="numpy")
def _odd_product(x: float, y: float) -> Any:
    """x·y rounded to odd."""
    p = x * y
    c, d = SPLIT * x, SPLIT * y
    x1, y1 = c - (c - x), d - (d - y)
    x2, y2 = x - x1, y - y1
    error = ((x1 * y1 - p) + x1 * y2 + x2 * y1) + x2 * y2
    return _odd(p, error)


@njit(cache=True, nogil=True, error_model="numpy")
def _odd(s: float, error: float) -> Any:
    """s, or its neighbour towards the error if there is one and s is even."""
    bits = np.float64(s).view(np.int64)
    if error != 0 and bits & 1 == 0:
        bits += 1 if (error > 0) == (s > 0) else -1
    return np.int64(bits).view(np.float64)


@njit(cache=True, nogil=True, error_model="numpy")
def _random(plan: Any, chance: Any, step: int) -> Any:
    """(R of a step, its bits, variant); up to 16 bits are half a word, the upper one for even steps."""
    if not plan.stochastic:
        return np.int64(0), 0, 0
    key, before, between = chance
    halves = plan.random_bits <= 16
    drawn = key ^ random_word(np.uint32(step >> 1 if halves else step), before, between)
    word = np.int64(random_word(np.uint32(drawn), np.uint32(0), np.uint32(0)))
    if halves:
        word = (word & 0xFFFF) if step & 1 else (word >> 16)
    return word >> ((16 if halves else 32) - plan.random_bits), plan.random_bits, plan.variant
