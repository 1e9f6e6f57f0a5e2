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
from shoal.numerics.mac.plan import CHUNKED, EXACT, KAHAN, PAIRWISE, MacPlan
from shoal.numerics.rounding.kernels import BEYOND, M0, M1, S0, S1, S2, VANISHED, random_word, right, round_finite
from shoal.numerics.rounding.plan import RoundingPlan
from shoal.numerics.rounding.randomness import Keys

SATURATED, OVERFLOWED, UNDERFLOWED, NANS = 0, 1, 2, 3
"""Indices of the counters."""
DEPTH = 64
PARTS = 48
"""So many numbers of 53 bits that do not overlap have all bits of float64."""
SPLIT = 134217729.0  # 2^27 + 1


def multiply_outputs(
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    c: NDArray[np.float64],
    outputs: NDArray[np.int64],
    rules: tuple[MacPlan, RoundingPlan, RoundingPlan],
    first: int,
    keys: Keys,
    counts: NDArray[np.int64],
) -> None:
    """c[o], flat, for each of the outputs o = i·columns + j: the dot product of a[i] and b[j].

    Stochastic: output o uses the word of index first + o under the upper keys, its steps words under the lower ones.
    Events are added to `counts`.
    """
    loop = {PAIRWISE: _pairwise, KAHAN: _kahan, EXACT: _exact}.get(rules[0].order, _in_order)
    loop(a, b, c, outputs, rules, first, keys, counts)


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
    """All products are added up exactly, as a few numbers whose bits do not overlap; their sum is rounded once."""
    plan, product, sums = rules
    parts, rest = np.zeros(PARTS, np.float64), np.zeros(PARTS, np.float64)
    for o in outputs:
        x, y, chance = a[o // b.shape[0]], b[o % b.shape[0]], _chance(first, o, keys)
        size, infinite, nan = 0, 0.0, False
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
                size = _add_part(parts, size, p)
        total = _odd_parts(parts, size)
        if nan:
            c[o] = np.nan
        elif infinite != 0:
            c[o] = plan.infinite_positive if infinite > 0 else plan.infinite_negative
        elif plan.wraps and total != 0:  # only the lower bits matter; float64 could not hold them all
            sign, half, beyond, left_over = math.copysign(1.0, total), -plan.lowest, 0.0, 0
            for n in range(size):
                left_over = _add_part(rest, left_over, np.fmod(sign * parts[n], 2 * half))
            while _odd_parts(rest, left_over) < 0:
                left_over = _add_part(rest, left_over, 2 * half)
            while _odd_parts(rest, left_over) >= half:
                left_over = _add_part(rest, left_over, -half)
                beyond = half - beyond
            if abs(total) >= 2 * half:
                beyond += 2 * half
            lower = sign * _odd_parts(rest, left_over)
            c[o] = _wrapped(lower, sign * beyond, plan, sums, chance, 0, counts)
        else:
            c[o] = _round(total, plan, sums, chance, 0, counts)


@njit(cache=True, nogil=True, error_model="numpy")
def _add_part(parts: NDArray[np.float64], size: int, more: float) -> int:
    """Add a number exactly to numbers whose bits do not overlap, the smallest first; returns how many there are."""
    kept = 0
    for n in range(size):
        s = more + parts[n]
        other = s - more
        error = (more - (s - other)) + (parts[n] - other)
        if error != 0:
            parts[kept] = error
            kept += 1
        more = s
    parts[kept] = more
    return kept + 1


@njit(cache=True, nogil=True, error_model="numpy")
def _odd_parts(parts: NDArray[np.float64], size: int) -> Any:
    """The sum of such numbers, rounded to odd: the first one that does not fit into it decides."""
    total = 0.0
    for n in range(size - 1, -1, -1):
        s = total + parts[n]
        error = parts[n] - (s - total)
        if error != 0:
            return _odd(s, error)
        total = s
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def add_exactly(high: NDArray[np.float64], low: NDArray[np.float64], more: NDArray[np.float64]) -> int:
    """high + low += more, element by element; low has what high lost. Returns 0."""
    for o in range(high.size):
        x, y = high[o], more[o]
        s = x + y
        other = s - x
        low[o] += (x - (s - other)) + (y - other)
        high[o] = s
    return 0


@njit(cache=True, nogil=True, error_model="numpy")
def round_sums(
    high: NDArray[np.float64],
    low: NDArray[np.float64],
    rules: Any,
    first: int,
    keys: Keys,
    share: tuple[int, int],
    counts: NDArray[np.int64],
) -> int:
    """high = the exact sum high + low rounded to the accumulator, for outputs share[0] to share[1]. Returns 0."""
    plan, _, sums = rules
    for o in range(share[0], share[1]):
        s = high[o] + low[o]
        value = s if s == 0 else _odd_sum(high[o], low[o], s)
        high[o] = _round(value + 0.0, plan, sums, _chance(first, o, keys), 0, counts)
    return 0


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
    if plan.random_bits > 16:
        word = np.int64(_mix(np.uint32(key ^ random_word(np.uint32(step), before, between))))
        return word >> (32 - plan.random_bits), plan.random_bits, plan.variant
    word = np.int64(_mix(np.uint32(key ^ random_word(np.uint32(step >> 1), before, between))))
    half = (word & 0xFFFF) if step & 1 else (word >> 16)
    return half >> (16 - plan.random_bits), plan.random_bits, plan.variant


@njit(cache=True, nogil=True, error_model="numpy")
def _mix(x: np.uint32) -> Any:
    h = np.uint32(np.uint32(x ^ right(x, S0)) * M0)
    h = np.uint32(np.uint32(h ^ right(h, S1)) * M1)
    return np.uint32(h ^ right(h, S2))


@njit(cache=True, nogil=True, error_model="numpy")
def step_words(steps: NDArray[np.int64], before: int, between: int) -> NDArray[np.uint32]:
    """The random words of steps (or of pairs of steps)."""
    words = np.empty(steps.size, np.uint32)
    for n in range(steps.size):
        words[n] = random_word(np.uint32(steps[n]), np.uint32(before), np.uint32(between))
    return words
