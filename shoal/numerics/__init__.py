"""Number formats, rounding, MAC units, emulated training and hardware cost."""

from typing import TYPE_CHECKING

from shoal.lazy import lazy
from shoal.numerics.emulation.roles import role
from shoal.numerics.formats.encodings import Encoding, operand_format
from shoal.numerics.formats.notation import parse
from shoal.numerics.formats.types import BlockFormat, FixedFormat, FloatFormat, Format

if TYPE_CHECKING:
    from shoal.numerics.emulation.emulate import Emulation, emulate, wrap
    from shoal.numerics.mac.matmul import MacStats, matmul
    from shoal.numerics.mac.unit import FixedMultiplier, FloatMultiplier, MacUnit, parse_mac
    from shoal.numerics.rounding.quantize import quantize
    from shoal.numerics.schemes.cast import Cast
    from shoal.numerics.schemes.scheme import Scheme, parse_scheme
    from shoal.numerics.schemes.training import LowPrecision, low_precision
else:  # rounding imports torch and numba; formats do not
    __getattr__ = lazy(
        __name__,
        dict.fromkeys(("Emulation", "emulate", "wrap"), "shoal.numerics.emulation.emulate")
        | dict.fromkeys(("FixedMultiplier", "FloatMultiplier", "MacUnit", "parse_mac"), "shoal.numerics.mac.unit")
        | dict.fromkeys(("MacStats", "matmul"), "shoal.numerics.mac.matmul")
        | {"quantize": "shoal.numerics.rounding.quantize", "Cast": "shoal.numerics.schemes.cast"}
        | {"Scheme": "shoal.numerics.schemes.scheme", "parse_scheme": "shoal.numerics.schemes.scheme"}
        | dict.fromkeys(("LowPrecision", "low_precision"), "shoal.numerics.schemes.training"),
    )

__all__ = [
    "BlockFormat",
    "Cast",
    "Emulation",
    "Encoding",
    "FixedFormat",
    "FixedMultiplier",
    "FloatFormat",
    "FloatMultiplier",
    "Format",
    "LowPrecision",
    "MacStats",
    "MacUnit",
    "Scheme",
    "emulate",
    "low_precision",
    "matmul",
    "operand_format",
    "parse",
    "parse_mac",
    "parse_scheme",
    "quantize",
    "role",
    "wrap",
]
