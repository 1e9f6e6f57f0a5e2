"""A number format, a MAC unit or a scheme as text tables: properties, special exponent fields, all values."""

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from shoal.errors import UserError, printable
from shoal.numerics.formats.encodings import operand_format
from shoal.numerics.formats.notation import NotAFormat, parse
from shoal.numerics.formats.types import BlockFormat, FixedFormat, FloatFormat, Format, Row
from shoal.numerics.mac.unit import FloatMultiplier, MacUnit, parse_mac
from shoal.numerics.schemes.scheme import SCHEMES, parse_scheme
from shoal.results import Result, Table

SCHEME_NAMES = set(SCHEMES) - {"float32", "bf16", "fp16"}  # these are formats, too

MOST_SHOWN = 16  # mantissa fields; of more, only the first and the last are shown
MOST_VALUES = 10  # widest format, in bits, whose values are all shown

Lines = list[tuple[str, ...]]


@dataclass(frozen=True)
class Description:
    """A format as tables, some of which may be empty."""

    format: Format
    properties: list[Row]
    ends: Lines
    """The header, then for each mantissa field the values in the top exponent field and in field 0."""
    values: Lines
    """The header, then the positive values by exponent field; only for floats of up to `MOST_VALUES` bits."""


def describe_name(name: str, cfg: int | None = None) -> Result:
    """Describe a format (`E5M2`, decoded by configuration `cfg` if given), a unit or a scheme by name."""
    if ";" in name or name.strip().lower() in SCHEME_NAMES:
        scheme = parse_scheme(name)
        if cfg is not None:
            raise UserError(f"{scheme} is a scheme; `cfg` is for formats.")
        table = Table.of_texts(str(scheme), [("role", "format"), *scheme.describe()])
        return Result("mac describe", str(scheme), [table], data={"scheme": str(scheme), **scheme.to_json()})
    if "+" not in name:
        try:
            description = describe(name, cfg)
        except NotAFormat:
            raise UserError(
                f"'{printable(name)}' is not a format, unit or scheme; E5M2, E5M2:5, E4M3FN, Q8.13, Q1.7/row and bf16 "
                f"are formats, E5M2:5+E6M5 is a unit, and the schemes are {', '.join(SCHEMES)}."
            ) from None
        tables = _tables(description, with_encodings=cfg is None)
        return Result("mac describe", str(description.format), tables, data=description_json(description))
    if cfg is not None:
        raise UserError(f"The configuration of a unit is part of its name: E5M2:{cfg}+E6M5; omit `cfg`.")
    unit = parse_mac(name)
    properties, formats = unit_properties(unit), dict.fromkeys([*unit.multiplier.formats])
    operands = [describe(format) for format in formats]
    own = Table.of_texts(str(unit), [("property", "value"), *properties])
    tables = [own, *(table for operand in operands for table in _tables(operand, with_encodings=False))]
    as_json = {"unit": str(unit), "properties": dict(properties), "operands": [description_json(o) for o in operands]}
    return Result("mac describe", str(unit), tables, data=as_json)


def unit_properties(unit: MacUnit) -> list[Row]:
    """A unit's operands, product, accumulator and rules, as rows of (property, value)."""
    multiplier, sums = unit.multiplier, unit.accumulator
    product, fixed = multiplier.product, isinstance(sums, FixedFormat)
    rounded = multiplier.encoding.rounded_output if isinstance(multiplier, FloatMultiplier) else multiplier.rounded
    how = f"rounded ({multiplier.product_rounding})" if rounded else "exact"
    cfg = f"CFG-{multiplier.cfg}: {multiplier.encoding.change}" if isinstance(multiplier, FloatMultiplier) else ""
    added = "the product before it is added" + ("" if fixed else ", then the sum")
    return [
        ("operands", " and ".join(map(repr, dict.fromkeys(multiplier.formats)))),
        *([("configuration", cfg)] if cfg else []),
        ("product", f"{product!r}, {how}"),
        ("largest product", number(product.max)),
        ("smallest product", number(product.min_positive)),
        ("accumulator", repr(sums)),
        ("largest sum", number(sums.max)),
        ("smallest sum above zero", number(sums.min_positive)),
        ("order of the sum", unit.order),
        ("rounding", unit.rounding + (f", {unit.random_bits} random bits" if unit.rounding == "stochastic" else "")),
        ("rounded", "the sum" if unit.fused else added),
        ("beyond the largest sum", unit.overflow),
    ]


def description_json(description: Description) -> dict[str, Any]:
    """A format as plain values; for narrow floats with the list of all values, indexed by code without the sign."""
    format = description.format
    element = format.element if isinstance(format, BlockFormat) else format
    values = None
    if description.values:
        decoded = map(element.decode, range(2 ** (element.width - 1)))
        values = [value if math.isfinite(value) else number(value) for value in decoded]
    return {
        "format": str(format),
        "properties": dict(description.properties),
        "bits": element.width,
        "max": element.max,
        "min_positive": element.min_positive,
        "values": values,
    }


def _tables(description: Description, with_encodings: bool) -> list[Table]:
    """The tables of a format; for a plain EeMm including its special fields in all six configurations."""
    name, encodings = str(description.format), Lines()
    if with_encodings:
        with suppress(UserError):  # fp64, E4M3FN, Q8.13: these configurations do not decode them
            encodings = encodings_table(description.format)  # type: ignore[arg-type]
    tables: dict[str, Lines] = {
        name: [("property", "value"), *description.properties],
        f"{name}: special exponent fields in the six configurations": encodings,
        f"{name}: special exponent fields": [] if encodings else description.ends,
        f"{name}: positive values": description.values,
    }
    return [Table.of_texts(title, lines) for title, lines in tables.items() if lines]


def describe(format: str | Format, cfg: int | None = None) -> Description:
    """A format as tables, as decoded by a multiplier of configuration `cfg` if given."""
    made = parse(format) if isinstance(format, str) else format
    if not isinstance(made, FloatFormat | FixedFormat | BlockFormat):
        raise UserError(f"A format is a FloatFormat, a FixedFormat, a BlockFormat or a name, not {format!r}.")
    if cfg is not None:
        made = operand_format(made, cfg)  # type: ignore[arg-type]  # raises unless it is a float
    element = made.element if isinstance(made, BlockFormat) else made
    if not isinstance(element, FloatFormat):
        return Description(made, made.describe(), [], [])
    return Description(made, made.describe(), ends_table(element), value_table(element))


def ends_table(format: FloatFormat) -> Lines:
    """Values in the two special exponent fields, as printed in the slides."""
    top, last = (2**format.exponent - 1) << format.mantissa, 2**format.mantissa - 1
    lines = [
        (_binary(t, format), number(format.decode(top + t)), number(format.decode(t)))
        for t in (range(last + 1) if last < MOST_SHOWN else [*range(4), *range(last - 3, last + 1)])
    ]
    if last >= MOST_SHOWN:
        lines.insert(4, ("…", "…", "…"))
    return [("mantissa", "top exponent field", "exponent field 0"), *lines]


def encodings_table(format: FloatFormat) -> Lines:
    """The slides' table 'Alternative encoding schemes' for any format: special fields in all six configurations."""
    decoded = zip(*(ends_table(operand_format(format, cfg))[1:] for cfg in (1, 4, 5, 6)), strict=True)
    return [
        ("mantissa", "top, CFG-1 to 3", "top, CFG-4 to 6", "0, CFG-1 to 4", "0, CFG-5", "0, CFG-6"),
        *((one[0], one[1], four[1], one[2], five[2], six[2]) for one, four, five, six in decoded),
    ]


def value_table(format: FloatFormat) -> Lines:
    """All positive codes of a narrow format: one line per exponent field, one column per mantissa field."""
    if format.width > MOST_VALUES:
        return []
    fractions = range(2**format.mantissa)
    lines: Lines = [("exponent", *(_binary(t, format) for t in fractions))]
    for field in range(2**format.exponent):
        values = (number(format.decode((field << format.mantissa) + t)) for t in fractions)
        lines.append((f"{field:0{format.exponent}b}", *values))
    return lines


def number(value: float) -> str:
    """A number as printed in the slides: 65,536 and 1.53E-5."""
    if not math.isfinite(value) or value == 0:
        return {"nan": "NaN"}.get(str(value), f"{value:g}")
    if abs(value) >= 1e15 or abs(value) < 1e-3:
        digits, exponent = f"{value:.2E}".split("E")
        return f"{digits}E{int(exponent)}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.6g}"


def _binary(field: int, format: FloatFormat) -> str:
    return f"b{field:0{max(1, format.mantissa)}b}"
