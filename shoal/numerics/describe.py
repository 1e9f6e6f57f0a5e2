"""A number format as tables for a person: its properties, the ends of its range, all its values."""

import math
from dataclasses import dataclass

from shoal.errors import UserError
from shoal.numerics.encodings import operand_format
from shoal.numerics.formats import BlockFormat, FixedFormat, FloatFormat, Format, Row
from shoal.numerics.notation import parse

MOST_SHOWN = 16  # mantissa fields of the ends; of more the first and the last are shown
MOST_VALUES = 10  # bits of a format whose values are all shown

Lines = list[tuple[str, ...]]


@dataclass(frozen=True)
class Description:
    """What `shoal mac describe` prints; empty tables where a format has none."""

    format: Format
    properties: list[Row]
    ends: Lines
    """The header, then for each mantissa field what the top exponent field and field 0 hold."""
    values: Lines
    """The header, then the positive values of each exponent field; only of floats of up to `MOST_VALUES` bits."""


def describe(format: str | Format, cfg: int | None = None) -> Description:
    """A format, or what a multiplier of configuration `cfg` decodes of it, as tables."""
    made = parse(format) if isinstance(format, str) else format
    if not isinstance(made, FloatFormat | FixedFormat | BlockFormat):
        raise UserError(f"A format is a FloatFormat, a FixedFormat, a BlockFormat or a name, not {format!r}.")
    if cfg is not None:
        made = operand_format(made, cfg)  # type: ignore[arg-type]  # it refuses what is not a float
    element = made.element if isinstance(made, BlockFormat) else made
    if not isinstance(element, FloatFormat):
        return Description(made, made.describe(), [], [])
    values = value_table(element) if element.width <= MOST_VALUES else []
    return Description(made, made.describe(), ends_table(element), values)


def ends_table(format: FloatFormat) -> Lines:
    """What the two special exponent fields hold, as the slides print it."""
    top = (2**format.exponent - 1) << format.mantissa
    lines: Lines = [("mantissa", "top exponent field", "exponent field 0")]
    for t in _fields(format):
        lines.append(
            ("…",) * 3 if t is None else (_binary(t, format), number(format.decode(top + t)), number(format.decode(t)))
        )
    return lines


def encodings_table(format: FloatFormat) -> Lines:
    """The slides' 'Alternative encoding schemes', there for E5M2: both ends in all six configurations."""
    lines: Lines = [("mantissa", "top, CFG-1 to 3", "top, CFG-4 to 6", "0, CFG-1 to 4", "0, CFG-5", "0, CFG-6")]
    decoded = {cfg: ends_table(operand_format(format, cfg)) for cfg in (1, 4, 5, 6)}
    for basic, no_nan, normal, zero in list(zip(*decoded.values(), strict=True))[1:]:
        lines.append((basic[0], basic[1], no_nan[1], basic[2], normal[2], zero[2]))
    return lines


def value_table(format: FloatFormat) -> Lines:
    """All positive codes: a line for each exponent field, a column for each mantissa field."""
    if format.width > MOST_VALUES:
        raise UserError(f"{format} has {2**format.width} codes; formats of up to {MOST_VALUES} bits are shown whole.")
    fractions = range(2**format.mantissa)
    lines: Lines = [("exponent", *(_binary(t, format) for t in fractions))]
    for field in range(2**format.exponent):
        values = (number(format.decode((field << format.mantissa) + t)) for t in fractions)
        lines.append((f"{field:0{format.exponent}b}", *values))
    return lines


def number(value: float) -> str:
    """A number as the slides print it: 65,536 and 1.53E-5."""
    if not math.isfinite(value) or value == 0:
        return {"nan": "NaN"}.get(str(value), f"{value:g}")
    if abs(value) >= 1e15 or abs(value) < 1e-3:
        digits, exponent = f"{value:.2E}".split("E")
        return f"{digits}E{int(exponent)}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.6g}"


def _fields(format: FloatFormat) -> list[int | None]:
    """The mantissa fields to show; None stands for those left out."""
    last = 2**format.mantissa - 1
    if last < MOST_SHOWN:
        return list(range(last + 1))
    return [*range(4), None, *range(last - 3, last + 1)]


def _binary(field: int, format: FloatFormat) -> str:
    return f"b{field:0{max(1, format.mantissa)}b}"
