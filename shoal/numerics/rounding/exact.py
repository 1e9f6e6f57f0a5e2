"""The definition of rounding, one number at a time, in exact fractions: slow, and the reference for all tests.

A number is rounded in three steps. It lies between two neighbours of the format, taken as if the format had no largest
value; the rounding chooses one of them; and if that one is beyond the format's largest value, `overflow` decides.
"""

import math
from fractions import Fraction

from shoal.errors import UserError
from shoal.numerics.formats.types import FixedFormat, FloatFormat, Scalar


def round_exact(
    value: float | Fraction,
    format: Scalar,
    rounding: str = "nearest-even",
    overflow: str | None = None,
    *,
    underflow: str = "round",
    nan: str = "error",
    random: int = 0,
    random_bits: int = 1,
    variant: str = "A",
    previous: float | None = None,
    start: str = "nearest-even",
) -> float:
    """`value` rounded to the format; arguments as in `quantize`, with `random` as the random bits R."""
    infinities = isinstance(format, FloatFormat) and format.infinities
    nans = isinstance(format, FloatFormat) and format.nans
    if overflow is None:
        overflow = "infinity" if infinities else "saturate"
    if math.isnan(value):
        if nans or nan == "zero":
            return math.nan if nans else 0.0
        if nan == "infinity" and infinities:
            return math.inf
        raise UserError("This format has no NaN.")
    negative = math.copysign(1.0, value) < 0
    if rounding == "hysteresis":
        rounding = start if previous is None else "down" if value > previous else "up"
    if math.isinf(value):
        if overflow in ("saturate", "wrap"):
            return format.min if negative else format.max
        return math.copysign(math.inf, value) if infinities else math.nan
    magnitude = round_magnitude(
        abs(Fraction(value)), negative, format, rounding, underflow, random, random_bits, variant
    )
    return keep_to_range(magnitude, negative, format, rounding, overflow)


def keep_to_range(magnitude: Fraction, negative: bool, format: Scalar, rounding: str, overflow: str) -> float:
    """Apply `overflow` to a rounded number."""
    if overflow == "wrap" and isinstance(format, FixedFormat):
        return _wrap(-magnitude if negative else magnitude, format)
    largest = -format.min if negative else format.max
    inward = {"toward-zero": True, "up": negative, "down": not negative}.get(rounding, False)
    if magnitude <= largest:
        kept = float(magnitude)
    elif overflow == "saturate" or inward:
        kept = largest
    elif overflow == "infinity":
        kept = math.inf
    else:
        return math.nan
    signed_zero = isinstance(format, FloatFormat) and format.signed_zero
    if kept == 0 and not signed_zero:
        return 0.0
    return -kept if negative else kept


def neighbours(magnitude: Fraction, format: Scalar) -> tuple[Fraction, Fraction, bool]:
    """lo <= magnitude < hi on the format without its largest value, and whether lo is the even one of the two.

    Even means an even multiple of the spacing; below the smallest value of a format without subnormals, zero is even.
    """
    if isinstance(format, FloatFormat):
        smallest = Fraction(format.min_positive)
        if format.subnormals != "gradual" and magnitude < smallest:
            return Fraction(0), smallest, True
        binade = max(exponent_of(magnitude), format.lowest_exponent) if magnitude else format.lowest_exponent
        spacing = Fraction(2) ** (binade - format.mantissa)
    else:
        spacing = Fraction(2) ** -format.fraction
    multiple = math.floor(magnitude / spacing)
    return multiple * spacing, (multiple + 1) * spacing, multiple % 2 == 0


def round_magnitude(
    magnitude: Fraction, negative: bool, format: Scalar, rounding: str, underflow: str,
    random: int, random_bits: int, variant: str,
) -> Fraction:  # fmt: skip
    """The neighbour that the rounding chooses."""
    below: FloatFormat | None = None
    if underflow == "truncate" and isinstance(format, FloatFormat) and format.subnormals != "gradual":
        # A converter that only rounds mantissas: it handles binades from field 0 upwards, and a result that has no
        # code (2^-b in CFG-5) becomes zero.
        if magnitude < Fraction(2) ** format.lowest_exponent:
            return Fraction(0)
        below, bias = format, 1 - format.lowest_exponent
        format = FloatFormat(format.exponent, format.mantissa, bias, infinities=False, nans=False)

    lo, hi, lo_is_even = neighbours(magnitude, format)
    delta = (magnitude - lo) / (hi - lo)
    if rounding == "nearest-even":
        up = delta > Fraction(1, 2) or (delta == Fraction(1, 2) and not lo_is_even)
    elif rounding == "nearest-away":
        up = delta >= Fraction(1, 2)
    elif rounding in ("toward-zero", "up", "down"):
        up = delta > 0 and {"toward-zero": False, "up": not negative, "down": negative}[rounding]
    elif rounding == "stochastic":
        if variant == "A":
            drawn = math.floor(delta * 2**random_bits) + random
        elif variant == "B":
            drawn = (math.floor(delta * 2 ** (random_bits + 1)) + 2 * random + 1) // 2
        else:
            drawn = round(delta * 2**random_bits) + random  # Python rounds a Fraction's ties to even
        up = drawn >= 2**random_bits
    else:
        raise UserError(f"Unknown rounding '{rounding}'.")
    chosen = hi if up else lo
    return Fraction(0) if below is not None and chosen < below.min_positive else chosen


def _wrap(value: Fraction, format: FixedFormat) -> float:
    """Two's complement: drop the upper bits."""
    half = 2 ** (format.width - 1)
    multiple = value * 2**format.fraction
    return math.ldexp((int(multiple) + half) % (2 * half) - half, -format.fraction)


def exponent_of(magnitude: Fraction) -> int:
    """The e with 2^e <= magnitude < 2^(e+1)."""
    e = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return e if Fraction(2) ** e <= magnitude else e - 1
