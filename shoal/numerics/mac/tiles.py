"""Which units use the fast loops, and how: decided by conditions on the formats under which they are exact."""

import math
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shoal.numerics.formats.types import FixedFormat, FloatFormat, Scalar
from shoal.numerics.mac.lanes import FUSED
from shoal.numerics.mac.plan import mac_plan
from shoal.numerics.mac.tile_kernels import (
    CHANCE,
    CHANCE_A,
    CHUNK,
    COUNT,
    FIXED,
    FLUSH,
    FREE,
    GENERAL,
    KAHAN,
    MODE,
    NATIVE,
    NEAREST,
    ODD,
    ROUGH,
    ROUND,
    SEPARATE,
    TAME,
    TREE,
    VANISH,
    WIDER,
    FloatParameters,
    IntParameters,
)
from shoal.numerics.mac.unit import FixedMultiplier, FloatMultiplier, MacUnit
from shoal.numerics.rounding.plan import FLOAT32, FLOAT64, Carrier

SINGLE = FloatFormat(8, 23)
HALF_WORD = 16
GROWTH = 4
"""Rounded to nearest, sums of products stay within this many times the sum of the products' magnitudes: adding y to a
sum, itself a value of the format, rounds by at most |y|. That is a factor of 2; another one is for the sums of chunks,
or for products that are rounded before they are added."""

LEVELS = 32  # levels of a tree, at most


class Fast(NamedTuple):
    """How the fast loops compute a unit."""

    kind: int
    scale: float  # a fixed-point sum is kept in multiples of its step: the second operand is multiplied by this
    floats: np.ndarray
    ints: np.ndarray
    marks: bool  # whether outputs may be marked for recomputation
    subnormals: bool  # whether subnormal float32 numbers may occur
    dtype: type  # type of the numbers


@lru_cache(maxsize=256)
def limits(unit: MacUnit) -> tuple[float, float]:
    """(products up to here fit the converter, sums of products whose magnitudes add up to less stay within range)."""
    sums, multiplier = unit.accumulator, unit.multiplier
    largest = sums.max
    if isinstance(multiplier, FloatMultiplier) or multiplier.rounded:
        largest = min(largest, multiplier.product.max)
    if unit.rounding != "nearest-even":
        return 0.0, 0.0
    if unit.order == "pairwise" and (1 + 2.0**-sums.significant_bits) ** LEVELS > GROWTH:  # a rounding per level
        return largest, 0.0
    return largest, largest / GROWTH


UNKNOWN, TAME_PRODUCTS, FREE_SUMS = range(3)
"""What is known of the operands: nothing; products fit the converter; sums stay within range, too."""


def known(unit: MacUnit, product: float, depth: int) -> int:
    """What is known if no product exceeds this one."""
    largest, most = limits(unit)
    if product * depth <= most:
        return FREE_SUMS
    return TAME_PRODUCTS if product <= largest and isinstance(unit.accumulator, FixedFormat) else UNKNOWN


@lru_cache(maxsize=512)
def fast(unit: MacUnit, count: bool, what: int = UNKNOWN) -> Fast | None:
    """How to compute the unit fast and exactly, or None; with `count`, events are counted.

    `what` is known of the operands, see `known`.
    """
    return _fast(unit, count, what, FLOAT32) or _fast(unit, count, what, FLOAT64)


def _fast(unit: MacUnit, count: bool, what: int, carrier: Carrier) -> Fast | None:
    multiplier, sums, free = unit.multiplier, unit.accumulator, what == FREE_SUMS
    order = _order(unit)
    if order is None:
        return None
    rough = multiplier == FloatMultiplier(SINGLE) and sums == SINGLE and unit.rounding == "nearest-even"
    if rough and carrier == FLOAT32:
        if order & KAHAN and not free:
            return None  # an infinite compensation would not be seen
        kind = ROUGH | order | (COUNT if count else 0) | (FREE if free else 0) | MODE * NATIVE
        none = np.zeros(len(FloatParameters._fields), np.float32), np.zeros(len(IntParameters._fields), np.int32)
        return Fast(kind, 1.0, *none, not free, True, np.float32)
    shift = sums.fraction if isinstance(sums, FixedFormat) else 0
    product = _product(unit, shift, carrier)
    if product is None:
        return None
    kind, limits, product_ints = product
    how = _mode(unit, carrier)
    if how is None:
        return None
    mode, more, dropped, lowest_field = how
    if more & VANISH and isinstance(sums, FloatFormat) and not isinstance(multiplier, FloatMultiplier):
        return None  # a sum may be -0; adding a zero product, which has a sign in float32 but none here, makes it +0
    kind |= more | order | (WIDER if carrier == FLOAT64 else 0)
    if kind & ROUND:
        kind |= FLUSH  # harmless where it is not needed, and saves compiling another loop
    if order & KAHAN and mode == NATIVE and not free:
        return None
    if free and mode in (NEAREST, NATIVE) and not (order & KAHAN and mode == NEAREST):
        kind |= FREE
    if what == TAME_PRODUCTS and mode == NEAREST:
        kind |= TAME
    if count or (unit.overflow != "saturate" and not kind & FREE):  # other overflows are found by counting
        kind |= COUNT
    if kind & FREE and not kind & (FLUSH | VANISH | ROUND):
        kind &= ~COUNT  # there is nothing to count
    scale = math.ldexp(1.0, shift)
    taken: Scalar = sums
    if isinstance(sums, FixedFormat) and isinstance(multiplier, FixedMultiplier) and multiplier.rounded:
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
    marks = not kind & FREE and (bool(kind & (COUNT | ROUND)) or mode == NATIVE)
    kind += MODE * mode
    kinds = (np.float32, np.int32) if carrier == FLOAT32 else (np.float64, np.int64)
    return Fast(kind, scale, np.array(floats, kinds[0]), np.array(ints, kinds[1]), marks, False, kinds[0])


def _order(unit: MacUnit) -> int | None:
    """Flags of the order of the sum."""
    stochastic = unit.rounding == "stochastic"
    if unit.order == "exact" or (stochastic and (unit.order in ("kahan", "pairwise") or unit.chunk % 2)):
        return None
    flags = {"kahan": KAHAN, "pairwise": TREE}.get(unit.order, CHUNK if unit.chunk else 0)
    separate = isinstance(unit.accumulator, FloatFormat) and not unit.fused and unit.order != "pairwise"
    return flags | (SEPARATE if separate else 0)


def _product(unit: MacUnit, shift: int, carrier: Carrier) -> tuple[int, tuple[float, ...], tuple[int, int]] | None:
    """(flags, limits, rounding) of products times 2^shift, if the carrier can represent them exactly."""
    multiplier, path = unit.multiplier, unit.datapath
    a, b = path.operands
    significant = carrier.mantissa + 1
    top = path.product_top + 1
    lowest = min(path.product_lsb + shift, b.lsb_exponent + shift, a.lsb_exponent, b.lsb_exponent)
    highest = max(top + shift, b.highest_exponent + shift + 1, a.highest_exponent + 1, b.highest_exponent + 1)
    if (
        lowest < carrier.lowest
        or highest >= carrier.highest
        or max(a.significant_bits, b.significant_bits) > significant
    ):
        return None
    if isinstance(multiplier, FixedMultiplier):
        if multiplier.rounded and not (
            # the converter's rounding is the same as the multiplier's
            isinstance(unit.accumulator, FixedFormat)
            and multiplier.product.fraction == unit.accumulator.fraction
            and multiplier.product.max <= unit.accumulator.max
            and multiplier.product_rounding == unit.rounding
        ):
            return None
        if path.exact_bits <= significant:
            return 0, (0.0, 0.0, 0.0), (0, 0)
        # Rounded to odd, if enough bits remain for the converter to round.
        enough = multiplier.rounded and unit.rounding != "stochastic" and unit.accumulator.width + 2 <= significant
        return (ODD, (0.0, 0.0, 0.0), (0, 0)) if enough and FUSED and carrier == FLOAT64 else None
    if path.exact_bits > significant:
        return None
    plan, _, _ = mac_plan(unit)
    flags = FLUSH if path.smallest_product < Fraction(plan.product_flush_before) else 0
    before, after = math.ldexp(plan.product_flush_before, shift), math.ldexp(plan.product_flush_after, shift)
    product = multiplier.product
    product_max = math.ldexp(min(product.max, float(path.largest_product)), shift)
    if not plan.product_rounded and path.largest_product <= Fraction(product.max):
        return flags, (before, after, product_max), (0, 0)
    if multiplier.encoding.rounded_output and multiplier.product_rounding != "nearest-even":
        return None
    dropped, lowest_field = carrier.mantissa - product.mantissa, 1
    chosen = multiplier.encoding
    if chosen.rounded_output and (chosen.subnormal_outputs or multiplier.flush != "after-rounding"):
        lowest_field = product.lowest_exponent + shift - carrier.lowest + 1
    if dropped < 2 or top + shift + dropped >= carrier.highest or lowest_field < 1:
        return None
    return flags | ROUND, (before, after, product_max), (dropped, lowest_field)


def _mode(unit: MacUnit, carrier: Carrier) -> tuple[int, int, int, int] | None:
    """(mode, flags, dropped mantissa bits, exponent field of the smallest normal number) of the sum.

    A fixed-point sum is kept as a whole number of steps, without the last two.
    """
    sums, path, bits = unit.accumulator, unit.datapath, carrier.mantissa + 1
    vanish, nearest = VANISH if path.drops else 0, unit.rounding == "nearest-even"
    by_chance = CHANCE_A if unit.variant == "A" else CHANCE
    if unit.rounding == "stochastic" and unit.random_bits > HALF_WORD:
        return None
    if isinstance(sums, FixedFormat):
        mode = by_chance if unit.rounding == "stochastic" else NEAREST if nearest else GENERAL
        return (mode, FIXED | vanish, 0, 0) if sums.width <= bits else None
    if sums == SINGLE and nearest and carrier == FLOAT32:
        return NATIVE, 0, 0, 0
    significant, dropped = sums.significant_bits, carrier.mantissa - sums.mantissa
    lowest_field = sums.lowest_exponent - carrier.lowest + 1
    top, lsb = path.aligned
    if sums.subnormals != "gradual" or not sums.signed_zero or dropped < 2 or sums.lsb_exponent < carrier.lowest:
        return None
    if top >= carrier.highest or lowest_field <= sums.mantissa:
        return None
    if unit.rounding == "stochastic":
        spare = 1 if unit.variant == "A" else 2
        return (by_chance, vanish, dropped, lowest_field) if significant + unit.random_bits + spare <= bits else None
    before = unit.order == "pairwise" or not unit.fused  # products are rounded by themselves first
    harmless = (before or path.product_significant_bits <= significant) and 2 * significant + 1 <= bits
    if nearest and (harmless or top - lsb <= bits) and top + dropped < carrier.highest:
        return NEAREST, vanish, dropped, lowest_field
    return (GENERAL, vanish, dropped, lowest_field) if significant + 2 <= bits else None
