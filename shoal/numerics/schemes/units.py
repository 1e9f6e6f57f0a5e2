"""MAC units as a training uses them."""

from dataclasses import replace

from shoal.numerics.formats.types import FloatFormat
from shoal.numerics.mac.unit import MacUnit


def lenient(unit: MacUnit | None) -> MacUnit | None:
    """The unit, with NaN read as infinity instead of refused, so that a step that overflows is skipped, not an error.

    Where an operand has no infinities, NaN reads as zero.
    """
    if unit is None or unit.nan != "error":
        return unit
    lacking = [format for format in unit.multiplier.formats if not (isinstance(format, FloatFormat) and format.nans)]
    infinite = all(isinstance(format, FloatFormat) and format.infinities for format in lacking)
    return replace(unit, nan="infinity" if infinite else "zero")
