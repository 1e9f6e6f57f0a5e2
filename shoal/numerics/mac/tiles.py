"""Which units use the fast loops, and how: decided by conditions on the formats under which they are exact."""

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from shoal.numerics.formats.types import FixedFormat, FloatFormat, Scalar
from shoal.numerics.mac.plan import mac_plan
from shoal.numerics.mac.tile_kernels import (
    CHANCE,
    CHANCE_A,
    CHUNK,
    COUNT,
    FIXED,
    FLUSH,
    GENERAL,
    MODE,
    NATIVE,
    NEAREST,
    ROUGH,
    ROUND,
    VANISH,
    FloatParameters,
    IntParameters,
    make_tile,
)
from shoal.numerics.mac.unit import FloatMultiplier, MacUnit
from shoal.numerics.rounding.plan import FLOAT32

SINGLE = FloatFormat(8, 23)
SIGNIFICANT = FLOAT32.mantissa + 1
HALF_WORD = 16


class Fast(NamedTuple):
    """How the fast loops compute a unit."""

    kind: int
    scale: float
    """A fixed-point sum is kept in multiples of its step: the first operand is multiplied by this."""
    floats: np.ndarray
    ints: np.ndarray
    marks: bool
    """Whether outputs may be marked for recomputation."""
    subnormals: bool
    """Whether subnormal float32 numbers may occur."""


@lru_cache(maxsize=64)
def tile(kind: int) -> Any:
    """The compiled tile for a kind."""
    return make_tile(kind)


@lru_cache(maxsize=256)
def fast(unit: MacUnit, count: bool) -> Fast | None:
    """How to compute the unit fast and exactly, or None; with `count`, events are counted."""
    multiplier, sums = unit.multiplier, unit.accumulator
    fixed = isinstance(sums, FixedFormat)
    if not (unit.order == "sequential" or (unit.chunk and unit.chunk % 2 == 0)):
        return None
    if not fixed and not unit.fused:
        return None
    if unit.multiplier == FloatMultiplier(SINGLE) and sums == SINGLE and unit.rounding == "nearest-even":
        kind = ROUGH | (COUNT if count else 0) | (CHUNK if unit.chunk else 0) | MODE * NATIVE
        zeros = len(FloatParameters._fields), len(IntParameters._fields)
        return Fast(kind, 1.0, np.zeros(zeros[0], np.float32), np.zeros(zeros[1], np.int32), True, True)
    shift = sums.fraction if isinstance(sums, FixedFormat) else 0
    product = _product(unit, shift)
    if product is None:
        return None
    kind, limits, product_ints = product
    how = _fixed_mode(unit) if isinstance(sums, FixedFormat) else _float_mode(unit)
    if how is None:
        return None
    mode, more, dropped, lowest_field = how
    if more & VANISH and not fixed and not isinstance(multiplier, FloatMultiplier):
        return None  # a sum may be -0; adding a zero product, which has a sign in float32 but none here, makes it +0
    kind |= more | (FIXED if fixed else 0) | (CHUNK if unit.chunk else 0)
    if count or unit.overflow != "saturate":  # other overflows are found by counting, and recomputed
        kind |= COUNT
    if kind & ROUND:
        kind |= FLUSH  # harmless where it is not needed, and saves compiling another loop
    scale = math.ldexp(1.0, shift)
    taken: Scalar = sums
    if fixed and not isinstance(multiplier, FloatMultiplier) and multiplier.rounded:
        taken = multiplier.product
    floats = FloatParameters(sums.min * scale, sums.max * scale, taken.min * scale, taken.max * scale, *limits)
    rounding = unit.rounding
    ints = IntParameters(
        dropped,
        lowest_field,
        *product_ints,
        random_bits=unit.random_bits,
        near=-int(rounding.startswith("nearest")),
        away=int(rounding == "nearest-away"),
        full_positive=-int(rounding == "up"),
        full_negative=-int(rounding == "down"),
        variant_c=-int(unit.variant == "C"),
    )
    marks = bool(kind & (COUNT | ROUND)) or mode == NATIVE
    kind += MODE * mode
    return Fast(kind, scale, np.array(floats, np.float32), np.array(ints, np.int32), marks, False)


def _product(unit: MacUnit, shift: int) -> tuple[int, tuple[float, float, float], tuple[int, int]] | None:
    """(flags, limits, rounding) of products times 2^shift, if float32 can represent them exactly."""
    multiplier, path = unit.multiplier, unit.datapath
    a, b = path.operands
    top = path.product_top + 1
    lowest = min(path.product_lsb + shift, a.lsb_exponent + shift, a.lsb_exponent, b.lsb_exponent)
    highest = max(top + shift, a.highest_exponent + shift + 1, a.highest_exponent + 1, b.highest_exponent + 1)
    if path.exact_bits > SIGNIFICANT or lowest < FLOAT32.lowest or highest >= FLOAT32.highest:
        return None
    if not isinstance(multiplier, FloatMultiplier):
        if multiplier.rounded and not (
            # the converter's rounding is the same as the multiplier's
            isinstance(unit.accumulator, FixedFormat)
            and multiplier.product.fraction == unit.accumulator.fraction
            and multiplier.product.max <= unit.accumulator.max
            and multiplier.product_rounding == unit.rounding
        ):
            return None
        return 0, (0.0, 0.0, 0.0), (0, 0)
    plan, _, _ = mac_plan(unit)
    flags = FLUSH if path.smallest_product < Fraction(plan.product_flush_before) else 0
    before, after = math.ldexp(plan.product_flush_before, shift), math.ldexp(plan.product_flush_after, shift)
    product = multiplier.product
    product_max = math.ldexp(min(product.max, float(path.largest_product)), shift)
    if not plan.product_rounded and path.largest_product <= Fraction(product.max):
        return flags, (before, after, product_max), (0, 0)
    if multiplier.encoding.rounded_output and multiplier.product_rounding != "nearest-even":
        return None
    dropped, lowest_field = FLOAT32.mantissa - product.mantissa, 1
    chosen = multiplier.encoding
    if chosen.rounded_output and (chosen.subnormal_outputs or multiplier.flush != "after-rounding"):
        lowest_field = product.lowest_exponent + shift - FLOAT32.lowest + 1
    if dropped < 2 or top + shift + dropped >= FLOAT32.highest or lowest_field < 1:
        return None
    return flags | ROUND, (before, after, product_max), (dropped, lowest_field)


def _float_mode(unit: MacUnit) -> tuple[int, int, int, int] | None:
    """(mode, flags, dropped mantissa bits, exponent field of the smallest normal number) of a floating-point sum."""
    sums, path = unit.accumulator, unit.datapath
    assert isinstance(sums, FloatFormat)
    if sums == SINGLE and unit.rounding == "nearest-even":
        return NATIVE, 0, 0, 0
    significant, dropped = sums.significant_bits, FLOAT32.mantissa - sums.mantissa
    lowest_field = sums.lowest_exponent - FLOAT32.lowest + 1
    vanish = VANISH if path.drops else 0
    top, lsb = path.aligned
    if sums.subnormals != "gradual" or not sums.signed_zero or dropped < 2 or sums.lsb_exponent < FLOAT32.lowest:
        return None
    if top >= FLOAT32.highest or lowest_field <= sums.mantissa:
        return None
    if unit.rounding == "stochastic":
        spare = 1 if unit.variant == "A" else 2
        if unit.random_bits > HALF_WORD or significant + unit.random_bits + spare > SIGNIFICANT:
            return None
        return CHANCE_A if unit.variant == "A" else CHANCE, vanish, dropped, lowest_field
    harmless = path.product_significant_bits <= significant and 2 * significant + 1 <= SIGNIFICANT
    exact = top - lsb <= SIGNIFICANT
    if unit.rounding == "nearest-even" and (harmless or exact) and top + dropped < FLOAT32.highest:
        return NEAREST, vanish, dropped, lowest_field
    return (GENERAL, vanish, dropped, lowest_field) if significant + 2 <= SIGNIFICANT else None


def _fixed_mode(unit: MacUnit) -> tuple[int, int, int, int] | None:
    """(mode, flags, 0, 0) of a fixed-point sum, kept as a whole number of steps."""
    if unit.accumulator.width > SIGNIFICANT:
        return None
    if unit.rounding != "stochastic":
        return NEAREST if unit.rounding == "nearest-even" else GENERAL, VANISH, 0, 0
    if unit.random_bits > HALF_WORD:
        return None
    return CHANCE_A if unit.variant == "A" else CHANCE, VANISH, 0, 0
