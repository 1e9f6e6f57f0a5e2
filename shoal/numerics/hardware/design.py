"""A MAC unit as its cost sees it: formats and a configuration, by value or in the notation `E5M2:5+Q8.13`."""

import re
from dataclasses import dataclass

from shoal.errors import UserError
from shoal.numerics.formats.encodings import ENCODINGS, encoding, operand_format
from shoal.numerics.formats.notation import unit_parts
from shoal.numerics.formats.types import FixedFormat, FloatFormat
from shoal.numerics.mac.unit import FloatMultiplier, MacUnit

MOST_LUT_MANTISSA = 3  # up to here floats need no DSPs: slide 'MAC Design Space Exploration', Multiplier

Scalar = FloatFormat | FixedFormat


@dataclass(frozen=True)
class Design:
    """What the area of a MAC unit depends on: the operands' format, the multiplier's configuration, the accumulator.

    A float operand is the plain EeMm or what its CFG decodes (then `cfg` may be left out); it is kept as decoded.
    """

    operand: Scalar
    accumulator: Scalar
    cfg: int | None = None
    """CFG-1 to CFG-6 of a float multiplier; None for a fixed-point one."""
    dsps: bool = True
    """Without DSPs the significands of floats of more than three mantissa bits are multiplied in LUTs as well."""
    second: Scalar | None = None
    """The other operand's format if it is not the first one's."""

    def __post_init__(self) -> None:
        second = self.operand if self.second is None else self.second
        for what, format in {
            "operand": self.operand,
            "second operand": second,
            "accumulator": self.accumulator,
        }.items():
            if not isinstance(format, FloatFormat | FixedFormat):
                raise UserError(f"The {what} of a MAC unit is a FloatFormat or a FixedFormat, not {format!r}.")
        if isinstance(self.operand, FloatFormat) and isinstance(second, FloatFormat):
            cfg = _cfg_of(self.operand) if self.cfg is None else encoding(self.cfg).cfg
            first, second = operand_format(self.operand, cfg), operand_format(second, cfg)
            wide = max(first.mantissa, second.mantissa) > MOST_LUT_MANTISSA
            self._keep(operand=first, cfg=cfg, dsps=bool(self.dsps) or not wide)
        elif type(self.operand) is not type(second):
            raise UserError(
                f"{self.operand} and {second} cannot be multiplied: both float or both fixed point is possible."
            )
        elif self.cfg is not None:
            raise UserError(f"CFG-1 to 6 are encodings of floating-point operands, not of {self.operand!r}.")
        elif isinstance(self.accumulator, FloatFormat):
            raise UserError(
                f"There are no figures for a {self.operand} multiplier before a float accumulator ({self.accumulator})."
            )
        elif not self.dsps:
            raise UserError(f"There are no figures for a {self.operand} multiplier without DSPs; leave dsps on.")
        self._keep(second=None if second == self.operand else second)

    def __str__(self) -> str:
        """E5M2:5+Q8.13, E4M3*E5M2:5+E6M6: as `parse_design` reads it. CFG-1 is not written, `dsps` not either."""
        operands = [self.operand] if self.second is None else [self.operand, self.second]
        names = "*".join(repr(operand) for operand in operands)
        if self.cfg in (2, 3):  # these decode as CFG-1 does
            names = re.sub(r"M\d+", rf"\g<0>:{self.cfg}", names)
        return f"{names}+{self.accumulator!r}"

    def _keep(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)


def parse_design(unit: str | MacUnit | Design) -> Design:
    """The design of a unit or of its name: `E5M2:5+Q8.13` is an E5M2 multiplier in CFG-5 and a Q8.13 accumulator.

    Two operand formats are `E4M3*E5M2:5+E6M6`. Without a CFG it is CFG-1. Without an accumulator, that has the format
    of the multiplier's output: `E5M2:5` is `E5M2:5+E6M5`, and `fp32` is `fp32+fp32`. Of a `MacUnit` its formats count,
    not its order or rounding, of which no table knows the cost; a name that has such is refused.
    """
    if isinstance(unit, Design):
        return unit
    if isinstance(unit, MacUnit):
        cfg = unit.multiplier.cfg if isinstance(unit.multiplier, FloatMultiplier) else None
        return Design(unit.multiplier.a, unit.accumulator, cfg, second=unit.multiplier.b)
    operands, cfg, accumulator, options = unit_parts(unit)
    if options:
        raise UserError(
            f"'{unit}' has more than formats; cost is known by format only, so leave out what is after the comma."
        )
    if cfg is None and isinstance(operands[0], FloatFormat):
        cfg = 1
    second = operands[1] if len(operands) > 1 else None
    if accumulator is None:
        accumulator = _product_format(Design(operands[0], operands[0], cfg, second=second))
    return Design(operands[0], accumulator, cfg, second=second)


def bits_of(format: object) -> tuple[int, ...]:
    """Exponent and mantissa bits, or bits before (the sign included) and after the point."""
    if isinstance(format, FloatFormat):
        return format.exponent, format.mantissa
    assert isinstance(format, FixedFormat)
    return format.width - format.fraction, format.fraction


def product_bits(design: Design) -> tuple[int, ...]:
    """Exponent and mantissa bits of what a float multiplier gives out."""
    (e, m), (other_e, other_m) = bits_of(design.operand), bits_of(design.second or design.operand)
    assert design.cfg is not None
    if ENCODINGS[design.cfg].rounded_output:
        return max(e, other_e), max(m, other_m)
    return max(e, other_e) + 1, m + other_m + 1


def _product_format(design: Design) -> Scalar:
    if isinstance(design.operand, FloatFormat):
        exponent, mantissa = product_bits(design)
        return FloatFormat(exponent, mantissa)
    return max(design.operand, design.second or design.operand, key=lambda format: format.width)


def _cfg_of(operand: FloatFormat) -> int:
    """The first configuration that decodes operands so; CFG-1 if none does."""
    ends = (operand.nans, operand.subnormals)
    return next((cfg for cfg, given in ENCODINGS.items() if (given.nan_code, given.subnormal_inputs) == ends), 1)
