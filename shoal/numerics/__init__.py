"""Number formats and rounding: what a narrow number can be, and how a wide one becomes one of them."""

from typing import TYPE_CHECKING

from shoal.lazy import lazy
from shoal.numerics.encodings import Encoding, operand_format
from shoal.numerics.formats import BlockFormat, FixedFormat, FloatFormat, Format
from shoal.numerics.notation import parse
from shoal.numerics.roles import role

if TYPE_CHECKING:
    from shoal.numerics.emulation import Emulation, emulate, wrap
    from shoal.numerics.mac import FixedMultiplier, FloatMultiplier, MacUnit, parse_mac
    from shoal.numerics.products import MacStats, matmul
    from shoal.numerics.rounding import quantize
else:  # the rounding loads torch and numba; formats and their tables do not
    __getattr__ = lazy(
        __name__,
        dict.fromkeys(("Emulation", "emulate", "wrap"), "shoal.numerics.emulation")
        | dict.fromkeys(("FixedMultiplier", "FloatMultiplier", "MacUnit", "parse_mac"), "shoal.numerics.mac")
        | dict.fromkeys(("MacStats", "matmul"), "shoal.numerics.products")
        | {"quantize": "shoal.numerics.rounding"},
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
