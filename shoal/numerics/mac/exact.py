"""The definition of a MAC unit, one number at a time, in exact fractions: the reference for the compiled loops.

Values are Python floats, which can represent every number of every format; sums and products are fractions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from shoal.errors import UserError
from shoal.numerics.formats.types import FixedFormat, FloatFormat, Scalar
from shoal.numerics.mac.unit import FixedMultiplier, FloatMultiplier, MacUnit
from shoal.numerics.rounding.exact import exponent_of, keep_to_range, round_exact, round_magnitude

Draw = Callable[[int], int]  # the random bits R of a step; `dot_exact` numbers the steps


@dataclass
class Events:
    """How often a finite result exceeded the largest value, and a nonzero result became zero."""

    saturated: int = 0
    overflowed: int = 0
    underflowed: int = 0


def multiply_exact(x: float, y: float, multiplier: FloatMultiplier | FixedMultiplier, events: Events) -> float:
    """The multiplier's output for two values of its operand formats."""
    if isinstance(multiplier, FixedMultiplier):
        exact = Fraction(x) * Fraction(y)
        return _round(exact, multiplier.product, multiplier.product_rounding, "saturate", events)
    negative = math.copysign(1.0, x) * math.copysign(1.0, y) < 0
    if math.isnan(x) or math.isnan(y):
        return math.nan
    if math.isinf(x) or math.isinf(y):
        if x == 0 or y == 0:
            if multiplier.encoding.nan_code:
                return math.nan
            if multiplier.zero_times_infinity == "zero":
                return -0.0 if negative else 0.0
        return -math.inf if negative else math.inf
    if x == 0 or y == 0:
        return -0.0 if negative else 0.0
    exact = Fraction(x) * Fraction(y)
    if multiplier.encoding.rounded_output:
        magnitude = _rounded_product(exact, multiplier, events)
    else:
        magnitude = _exact_product(abs(exact), multiplier.product, events)
    return -magnitude if negative else magnitude


def _exact_product(magnitude: Fraction, product: FloatFormat, events: Events) -> float:
    """CFG 3 to 6: the product itself, unless it is outside the range of the product format."""
    if magnitude > product.max:
        events.overflowed += 1
        return math.inf
    if magnitude < product.min_positive:
        events.underflowed += 1
        return 0.0
    value = float(magnitude)
    product.encode(value)  # raises if it is not a value of the format
    return value


def _rounded_product(exact: Fraction, multiplier: FloatMultiplier, events: Events) -> float:
    """CFG 1 and 2: the magnitude of the product, rounded."""
    product, rounding = multiplier.product, multiplier.product_rounding
    if not multiplier.encoding.subnormal_outputs:
        smallest, seen = Fraction(product.min_normal), abs(exact)
        if multiplier.flush == "after-rounding":
            scale = Fraction(2) ** exponent_of(abs(exact))  # rounded in [1, 2), where nothing underflows
            wide = FloatFormat(8, product.mantissa)
            seen = abs(Fraction(round_exact(exact / scale, wide, rounding))) * scale
        elif multiplier.flush == "subnormal-grid":
            seen = abs(Fraction(round_exact(exact, product, rounding, "saturate")))
        if seen < smallest:
            events.underflowed += 1
            return 0.0
    return abs(_round(exact, product, rounding, "infinity", events))


def add_exact(x: float, y: float, unit: MacUnit, events: Events, random: int = 0) -> float:
    """The accumulator x after the addition of y, which may be an exact product; the exact sum is rounded once."""
    sums = unit.accumulator
    if isinstance(sums, FixedFormat):
        return _round(Fraction(x) + Fraction(y), sums, "nearest-even", unit.overflow, events)  # already on the grid
    if math.isnan(x) or math.isnan(y):
        return math.nan
    if math.isinf(x) and math.isinf(y) and x != y:
        return math.nan if sums.nans else x
    if math.isinf(x) or math.isinf(y):
        infinite = x if math.isinf(x) else y
        return infinite if sums.infinities else round_exact(infinite, sums, unit.rounding, unit.overflow)
    exact = Fraction(x) + Fraction(y)
    if exact == 0:
        both_negative = math.copysign(1.0, x) < 0 and math.copysign(1.0, y) < 0
        return -0.0 if both_negative and sums.signed_zero else 0.0
    return _round(exact, sums, unit.rounding, unit.overflow, events, random, unit.random_bits, unit.variant)


def take_in_exact(product: float, unit: MacUnit, events: Events, random: int = 0) -> float:
    """The product rounded to the accumulator: by the converter of a fixed-point one, or because `fused` is False."""
    sums = unit.accumulator
    if isinstance(sums, FloatFormat):
        start = -0.0 if math.copysign(1.0, product) < 0 else 0.0  # keeps the sign of zero
        return add_exact(start, product, unit, events, random)
    if math.isinf(product):
        return round_exact(product, sums, unit.rounding, unit.overflow)
    return _round(Fraction(product), sums, unit.rounding, unit.overflow, events, random, unit.random_bits, unit.variant)


def dot_exact(xs: Sequence[float], ys: Sequence[float], unit: MacUnit, draw: Draw = lambda step: 0) -> tuple:
    """(the sum of products in the unit's order, the events).

    For stochastic rounding the roundings of an output are numbered. Product k is step k in sequential, chunked and
    pairwise order; chunk c is step K + c; node i of level L of the tree is step L·K + i; the four Kahan sums of product
    k are steps 4k to 4k + 3; the single rounding of the exact order is step 0. A sum with an operand that is not finite
    counts no events.
    """
    events = Events()
    products = [_known(multiply_exact(x, y, unit.multiplier, events), unit) for x, y in zip(xs, ys, strict=True)]
    if unit.order == "exact":
        value = _round_sum(products, unit, events, draw(0))
    elif unit.order == "kahan":
        value = _kahan(products, unit, events, draw)
    elif unit.order == "pairwise":
        value = _pairwise(products, unit, events, draw)
    elif not unit.chunk:
        value = _sequential(products, unit, events, 0, draw)
    else:
        value, firsts = 0.0, range(0, len(products), unit.chunk)
        parts = [_sequential(products[k : k + unit.chunk], unit, events, k, draw) for k in firsts]
        for c, partial in enumerate(parts, len(products)):
            value = add_exact(value, partial, unit, events, draw(c))
    finite = all(math.isfinite(operand) for operand in (*xs, *ys))
    return value, events if finite else Events()


def _sequential(products: Sequence[float], unit: MacUnit, events: Events, first: int, draw: Draw) -> float:
    total = 0.0
    for k, product in enumerate(products, first):
        if unit.fused:
            total = add_exact(total, product, unit, events, draw(k))
        else:
            total = add_exact(total, take_in_exact(product, unit, events, draw(k)), unit, events, draw(k))
    return total


def _pairwise(products: Sequence[float], unit: MacUnit, events: Events, draw: Draw) -> float:
    nodes = [take_in_exact(product, unit, events, draw(k)) + 0.0 for k, product in enumerate(products)]
    level = 0
    while len(nodes) > 1:
        level += 1
        pairs = [
            add_exact(nodes[i], nodes[i + 1], unit, events, draw(level * len(products) + i // 2))
            for i in range(0, len(nodes) - 1, 2)
        ]
        nodes = pairs + nodes[2 * len(pairs) :]  # an odd one out moves up unchanged
    return nodes[0] if nodes else 0.0


def _kahan(products: Sequence[float], unit: MacUnit, events: Events, draw: Draw) -> float:
    total = compensation = 0.0
    for k, product in enumerate(products):
        if not unit.fused:
            product = take_in_exact(product, unit, events, draw(4 * k))
        y = add_exact(product, -compensation, unit, events, draw(4 * k))
        new = add_exact(total, y, unit, events, draw(4 * k + 1))
        gained = add_exact(new, -total, unit, events, draw(4 * k + 2))
        compensation = add_exact(gained, -y, unit, events, draw(4 * k + 3))
        total = new
    return total


def _round_sum(products: Sequence[float], unit: MacUnit, events: Events, random: int) -> float:
    """All products summed exactly, then rounded once."""
    sums = unit.accumulator
    infinite = [product for product in products if math.isinf(product)]
    if any(math.isnan(product) for product in products):
        return math.nan
    if infinite:
        if isinstance(sums, FloatFormat) and sums.nans and len(set(infinite)) > 1:
            return math.nan
        infinities = isinstance(sums, FloatFormat) and sums.infinities
        return infinite[0] if infinities else round_exact(infinite[0], sums, unit.rounding, unit.overflow)
    exact = sum(map(Fraction, products), Fraction(0))
    return _round(exact, sums, unit.rounding, unit.overflow, events, random, unit.random_bits, unit.variant)


def _known(product: float, unit: MacUnit) -> float:
    """The product, with NaN replaced if the accumulator has none."""
    sums = unit.accumulator
    if not math.isnan(product) or (isinstance(sums, FloatFormat) and sums.nans):
        return product
    if unit.nan == "error":
        raise UserError(f"A product is NaN, which accumulator {sums} cannot represent; nan='zero' treats it as zero.")
    return 0.0 if unit.nan == "zero" else math.inf


def _round(
    exact: Fraction, format: Scalar, rounding: str, overflow: str, events: Events,
    random: int = 0, random_bits: int = 1, variant: str = "A",
) -> float:  # fmt: skip
    """`round_exact`, with events counted."""
    negative = exact < 0
    free = round_magnitude(abs(exact), negative, format, rounding, "round", random, random_bits, variant)
    if free > (-format.min if negative else format.max):
        if overflow == "saturate":
            events.saturated += 1
        else:
            events.overflowed += 1
    elif exact != 0 and free == 0:
        events.underflowed += 1
    return keep_to_range(free, negative, format, rounding, overflow)
