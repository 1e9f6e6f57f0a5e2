"""Units whose cost is asked for, by value or by name: `E5M2:5+Q8.13`."""

from shoal.errors import UserError
from shoal.numerics.formats.notation import unit_parts
from shoal.numerics.formats.types import FixedFormat, FloatFormat, Scalar
from shoal.numerics.mac.datapath import Datapath
from shoal.numerics.mac.unit import MacUnit

AnyUnit = str | MacUnit | Datapath


def datapath_of(unit: AnyUnit) -> Datapath:
    """The datapath of a unit or of its name: `E5M2:5+Q8.13` is an E5M2 multiplier in CFG-5 and a Q8.13 accumulator.

    Two operand formats are written `E4M3*E5M2:5+E6M6`. The default configuration is CFG-1, the default accumulator has
    the format of the multiplier's output: `E5M2:5` is `E5M2:5+E6M5`, and `fp32` is `fp32+fp32`. Cost depends on the
    formats of a `MacUnit` only, not on its order or rounding, for which there are no figures; a name with such options
    is refused.
    """
    if isinstance(unit, Datapath):
        path = unit
    elif isinstance(unit, MacUnit):
        path = unit.datapath
    else:
        path = _read(unit)
    operand = path.operands[0]
    if isinstance(operand, FixedFormat) and isinstance(path.accumulator, FloatFormat):
        raise UserError(
            f"There are no figures for a {operand} multiplier before a float accumulator ({path.accumulator})."
        )
    return path


def _read(name: str) -> Datapath:
    operands, cfg, accumulator, options = unit_parts(name)
    if options:
        raise UserError(f"'{name}' has options; cost depends on formats only, so leave out what is after the comma.")
    both: tuple[Scalar, Scalar] = (operands[0], operands[-1])
    if accumulator is not None:
        return Datapath(both, accumulator, cfg)
    path = Datapath(both, operands[0], cfg)
    kind = FloatFormat if isinstance(operands[0], FloatFormat) else FixedFormat
    return Datapath(both, kind(*path.product_bits), cfg)
