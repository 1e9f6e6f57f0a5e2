"""The parameters of a rounding loop, computed once per call: a format and its rules as bit patterns of the carrier.

A carrier is the IEEE type that holds the numbers, float32 or float64. Non-negative floats are ordered like their bit
patterns, so every comparison with a limit is an integer comparison, and no processor mode (flushed subnormals) can
change a result.
"""

import math
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from shoal.errors import UserError, check_choice
from shoal.numerics.formats.types import FixedFormat, FloatFormat
from shoal.numerics.rounding.exact import exponent_of

ROUNDINGS = ("nearest-even", "nearest-away", "toward-zero", "up", "down", "stochastic", "hysteresis")
OVERFLOWS = ("infinity", "saturate", "nan", "wrap")
UNDERFLOWS = ("round", "truncate")
NANS = ("error", "zero", "infinity")
VARIANTS = ("A", "B", "C")


class Carrier(NamedTuple):
    """An IEEE type: mantissa bits, exponent of the smallest normal number, exponent of the largest."""

    mantissa: int
    lowest: int
    highest: int

    @property
    def infinity(self) -> int:
        """The bits of +inf."""
        return (self.highest - self.lowest + 2) << self.mantissa

    @property
    def nan(self) -> int:
        """The bits of the only NaN that is ever returned: quiet, positive, no payload."""
        return self.infinity + (1 << (self.mantissa - 1))

    def bits_below(self, value: Fraction) -> int:
        """The bits of the largest number <= `value`, which is >= 0."""
        binade, multiple = self._position(value)
        return ((binade - self.lowest) << self.mantissa) + math.floor(multiple)

    def bits_from(self, value: Fraction) -> int:
        """The bits of the smallest number >= `value`, which is >= 0."""
        binade, multiple = self._position(value)
        return ((binade - self.lowest) << self.mantissa) + math.ceil(multiple)

    def _position(self, value: Fraction) -> tuple[int, Fraction]:
        """The binade, and the value as a multiple of the spacing there."""
        binade = max(exponent_of(value), self.lowest) if value else self.lowest
        return binade, value / Fraction(2) ** (binade - self.mantissa)


FLOAT16, BFLOAT16 = Carrier(10, -14, 15), Carrier(7, -126, 127)
FLOAT32, FLOAT64 = Carrier(23, -126, 127), Carrier(52, -1022, 1023)


class RoundingPlan(NamedTuple):
    """A format and its rules as integers; magnitudes are bit patterns of the carrier without the sign."""

    dropped: int
    """Mantissa bits that the carrier has and the format lacks."""
    lowest_field: int
    """The carrier's exponent field of the format's lowest full binade; below it the spacing is constant."""
    lsb: int
    """That spacing is 2^lsb."""
    near: int
    """1 for the two round-to-nearest modes, else 0."""
    away: int
    """1 if ties go away from zero."""
    full_positive: int
    """1 if any dropped bit rounds the magnitude of a positive number up."""
    full_negative: int
    smallest: int
    """The smallest positive value if there is a gap between it and zero; 0 if underflow is gradual."""
    gap_positive: int
    """Positive magnitudes below `smallest` become `smallest` from this threshold on, and zero below it."""
    gap_negative: int
    gap_floor: int
    """Stochastic: 0, or with truncating underflow the bits of the lowest full binade, below which all becomes zero."""
    gap_units: int
    """Stochastic, rounding underflow: `smallest` is gap_units·2^gap_exponent."""
    gap_exponent: int
    max_positive: int
    max_negative: int
    over_positive: int
    """Result for a positive number beyond the largest value."""
    over_negative: int
    infinity_positive: int
    """Result for +inf."""
    infinity_negative: int
    nan: int
    """Result for NaN."""
    signed_zero: int


@lru_cache(maxsize=512)
def rounding_plan(
    format: FloatFormat | FixedFormat, carrier: Carrier, rounding: str, overflow: str, underflow: str, nan: str
) -> RoundingPlan:
    """The plan for any rounding mode except hysteresis; with `wrap` the plan has no largest value."""
    if isinstance(format, FixedFormat):  # constant spacing; above this binade the carrier itself is coarser
        mantissa, lowest = carrier.mantissa, carrier.mantissa - format.fraction
        infinities = nans = signed_zero = gap = False
    else:
        mantissa, lowest = format.mantissa, format.lowest_exponent
        infinities, nans, signed_zero = format.infinities, format.nans, format.signed_zero
        gap = format.subnormals != "gradual"
    smallest = Fraction(format.min_positive)
    zero_end = min(Fraction(2) ** lowest, smallest) if underflow == "truncate" else Fraction(0)
    middle = (zero_end + smallest) / 2
    thresholds = {
        "nearest-even": (carrier.bits_below(middle) + 1,) * 2,
        "nearest-away": (carrier.bits_from(middle),) * 2,
        "up": (carrier.bits_below(zero_end) + 1, carrier.bits_from(smallest)),
        "down": (carrier.bits_from(smallest), carrier.bits_below(zero_end) + 1),
    }
    gap_positive, gap_negative = thresholds.get(rounding, (carrier.bits_from(smallest),) * 2)
    odd = smallest.numerator // (smallest.numerator & -smallest.numerator)
    max_positive, max_negative = (carrier.bits_below(Fraction(end)) for end in (format.max, -format.min))
    beyond = {"infinity": carrier.infinity, "nan": carrier.nan}.get(overflow)
    inward_positive, inward_negative = rounding in ("toward-zero", "down"), rounding in ("toward-zero", "up")
    unlimited = overflow == "wrap"
    infinite = carrier.infinity if infinities else carrier.nan
    kept = infinite if overflow != "saturate" and (infinities or overflow == "nan") else None
    plan = RoundingPlan(
        dropped=carrier.mantissa - mantissa,
        lowest_field=lowest - carrier.lowest + 1,
        lsb=lowest - mantissa,
        near=rounding.startswith("nearest"),
        away=rounding == "nearest-away",
        full_positive=rounding == "up",
        full_negative=rounding == "down",
        smallest=carrier.bits_below(smallest) if gap else 0,
        gap_positive=gap_positive,
        gap_negative=gap_negative,
        gap_floor=carrier.bits_below(Fraction(2) ** lowest) if gap and underflow == "truncate" else 0,
        gap_units=odd,
        gap_exponent=exponent_of(smallest / odd),
        max_positive=carrier.infinity if unlimited else max_positive,
        max_negative=carrier.infinity if unlimited else max_negative,
        over_positive=max_positive if beyond is None or inward_positive else beyond,
        over_negative=max_negative if beyond is None or inward_negative else beyond,
        infinity_positive=max_positive if kept is None else kept,
        infinity_negative=max_negative if kept is None else kept,
        nan=carrier.nan if nans else carrier.infinity if nan == "infinity" else 0,
        signed_zero=signed_zero,
    )
    return RoundingPlan(*map(int, plan))  # one type for the compiled loops


@lru_cache(maxsize=512)
def fits(format: FloatFormat | FixedFormat, carrier: Carrier) -> bool:
    """Whether the carrier can represent every value of the format."""
    return (
        format.significant_bits <= carrier.mantissa + 1
        and format.lsb_exponent >= carrier.lowest - carrier.mantissa
        and format.highest_exponent <= carrier.highest
    )


@lru_cache(maxsize=512)
def rounds_in(format: FloatFormat | FixedFormat, carrier: Carrier) -> bool:
    """Whether a plan for this carrier is possible: it can represent the format without subnormal full binades."""
    lowest = carrier.lowest if isinstance(format, FixedFormat) else format.lowest_exponent
    return fits(format, carrier) and lowest >= carrier.lowest


def check_rules(
    format: FloatFormat | FixedFormat, rounding: str, overflow: str | None, underflow: str, nan: str
) -> str:
    """The overflow rule in effect; rules that do not apply to the format are refused."""
    check_choice("rounding", rounding, ROUNDINGS)
    check_choice("underflow", underflow, UNDERFLOWS)
    check_choice("nan", nan, NANS)
    infinities = isinstance(format, FloatFormat) and format.infinities
    if nan == "infinity" and not infinities:
        raise UserError(f"nan is 'infinity', but {format} has no infinities; choose 'error' or 'zero'.")
    if overflow is None:
        return "infinity" if infinities else "saturate"
    check_choice("overflow", overflow, OVERFLOWS)
    if overflow == "infinity" and not infinities:
        raise UserError(f"overflow is 'infinity', but {format} has no infinities; choose 'saturate'.")
    if overflow == "nan" and not (isinstance(format, FloatFormat) and format.nans):
        raise UserError(f"overflow is 'nan', but {format} has no NaN; choose 'saturate'.")
    if overflow == "wrap" and not isinstance(format, FixedFormat):
        raise UserError(f"overflow is 'wrap', which is for fixed-point formats, not {format}.")
    return overflow
