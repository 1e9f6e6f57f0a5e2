"""The parameters of the loops for a MAC unit, computed once per unit: its rules as float64 numbers."""

import math
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from shoal.numerics.formats.types import FixedFormat, FloatFormat
from shoal.numerics.mac.unit import FloatMultiplier, MacUnit
from shoal.numerics.rounding.exact import exponent_of, round_exact
from shoal.numerics.rounding.plan import FLOAT64, VARIANTS, RoundingPlan, rounding_plan

SEQUENTIAL, CHUNKED, PAIRWISE, KAHAN, EXACT = range(5)
LIMB = 32
"""Bits of a limb of the exact sum."""


class MacPlan(NamedTuple):
    """A unit as numbers; flags are 0 or 1."""

    order: int
    chunk: int
    fixed: int
    fused: int
    nan_code: int
    zero_infinity: int
    """Without a NaN code: whether 0 × inf is 0."""
    takes_nan: int
    nan_as: float
    """Result for a NaN product if the accumulator has no NaN."""
    signed_zero: int
    infinite_positive: float
    """Result for an infinite sum."""
    infinite_negative: float
    saturates: int
    wraps: int
    lowest: float
    highest: float
    stochastic: int
    random_bits: int
    variant: int
    exact_base: int
    """Exact order: every product is a multiple of 2^exact_base."""
    exact_limbs: int
    exact_cut: int
    """Exact order, wrapping: the bit of the sum from which half periods of the accumulator are counted."""
    product_rounded: int = 1
    product_saturates: int = 0
    """Fixed point: multiplier overflow saturates instead of becoming infinite, and zero has no sign."""
    product_flush_before: float = 0.0
    """Exact products below this magnitude become zero."""
    product_flush_after: float = 0.0
    """Rounded products below this magnitude become zero."""
    product_max: float = math.inf
    """Products beyond this become one of the next two."""
    product_beyond_positive: float = math.inf
    """Infinity, or the largest product where the multiplier rounds inward."""
    product_beyond_negative: float = -math.inf


@lru_cache(maxsize=256)
def mac_plan(unit: MacUnit) -> tuple[MacPlan, RoundingPlan, RoundingPlan]:
    """Plans of the unit, of its multiplier's rounding and of its accumulator's rounding."""
    multiplier, sums = unit.multiplier, unit.accumulator
    fixed, order = isinstance(sums, FixedFormat), unit.order.partition("(")[0]
    nans = isinstance(sums, FloatFormat) and sums.nans
    infinities = isinstance(sums, FloatFormat) and sums.infinities
    ends = [sign * math.inf for sign in (1, -1)]
    if not infinities:
        ends = [round_exact(end, sums, unit.rounding, unit.overflow) for end in ends]
    path = unit.datapath
    span = path.product_top - path.product_lsb + 41  # a sum of 2^31 products and a sign
    product_plan, product = _product_rules(unit)
    plan = MacPlan(
        order=("sequential", "chunked", "pairwise", "kahan", "exact").index(order),
        chunk=unit.chunk,
        fixed=int(fixed),
        fused=int(bool(unit.fused)),
        nan_code=int(not isinstance(multiplier, FloatMultiplier) or multiplier.encoding.nan_code),
        zero_infinity=int(isinstance(multiplier, FloatMultiplier) and multiplier.zero_times_infinity == "zero"),
        takes_nan=int(nans),
        nan_as=math.inf if unit.nan == "infinity" else 0.0,
        signed_zero=int(isinstance(sums, FloatFormat) and sums.signed_zero),
        infinite_positive=ends[0],
        infinite_negative=ends[1],
        saturates=int(unit.overflow == "saturate"),
        wraps=int(unit.overflow == "wrap"),
        lowest=sums.min,
        highest=sums.max,
        stochastic=int(unit.rounding == "stochastic"),
        random_bits=unit.random_bits,
        variant=VARIANTS.index(unit.variant),
        exact_base=path.product_lsb,
        exact_limbs=math.ceil(span / LIMB) + 3,
        exact_cut=exponent_of(Fraction(-sums.min)) - path.product_lsb,
        **product,  # type: ignore[arg-type]
    )
    return plan, product_plan, rounding_plan(sums, FLOAT64, unit.rounding, unit.overflow, "round", "zero")


def _product_rules(unit: MacUnit) -> tuple[RoundingPlan, dict[str, float]]:
    """The plan of the multiplier's rounding, and the rules of products that differ from their defaults."""
    multiplier = unit.multiplier
    product, rounding, overflow = multiplier.product, multiplier.product_rounding, "infinity"
    grid, rules = product, dict[str, float]()
    if not isinstance(multiplier, FloatMultiplier):
        overflow, rules = "saturate", {"product_rounded": int(multiplier.rounded), "product_saturates": 1}
    elif not multiplier.encoding.rounded_output:
        rules = {"product_rounded": 0, "product_flush_before": product.min_positive, "product_max": product.max}
        rounding = "nearest-even"
    elif unit.datapath.holds_products:
        rules, rounding = {"product_rounded": 0}, "nearest-even"
    elif not multiplier.encoding.subnormal_outputs:
        when = "product_flush_before" if multiplier.flush == "before-rounding" else "product_flush_after"
        rules[when] = multiplier.product.min_normal
        if multiplier.flush == "after-rounding":  # an exponent so wide that it never overflows
            grid = FloatFormat(11, multiplier.product.mantissa)
            beyond = [round_exact(2 * end, product, rounding) for end in (product.max, product.min)]
            rules |= {"product_max": product.max}
            rules |= {"product_beyond_positive": beyond[0], "product_beyond_negative": beyond[1]}
    return rounding_plan(grid, FLOAT64, rounding, overflow, "round", "zero"), rules
