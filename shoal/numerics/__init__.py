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
else:  # rounding imports torch and numba; formats do not
    __getattr__ = lazy(
        __name__,
        dict.fromkeys(("Emulation", "emulate", "wrap"), "shoal.numerics.emulation.emulate")
        | dict.fromkeys(("FixedMultiplier", "FloatMultiplier", "MacUnit", "parse_mac"), "shoal.numerics.mac.unit")
        | dict.fromkeys(("MacStats", "matmul"), "shoal.numerics.mac.matmul")
        | {"quantize": "shoal.numerics.rounding.quantize"},
    )

__all__ = [
    "BlockFormat",
    "Emulation",
    "Encoding",
    "FixedFormat",
    "FixedMultiplier",
    "FloatFormat",
    "FloatMultiplier",
    "Format",
    "MacStats",
    "MacUnit",
    "emulate",
    "matmul",
    "operand_format",
    "parse",
    "parse_mac",
    "quantize",
    "role",
    "wrap",
]
