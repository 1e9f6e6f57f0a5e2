"""Shifts of 32-bit integers by 0 to 31 places, for loops compiled by numba.

Numba itself shifts in 64 bits, which halves the number of lanes of a vectorised loop.
"""

from typing import Any

from numba import types
from numba.extending import intrinsic


def _is_32_bits(value: Any, places: Any) -> bool:
    return value in (types.int32, types.uint32) and places == types.int32


@intrinsic
def _left(_typing: Any, value: Any, places: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.shl(*arguments)

    return (value(value, places), generate) if _is_32_bits(value, places) else None


@intrinsic
def _right(_typing: Any, value: Any, places: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.lshr(*arguments)

    return (value(value, places), generate) if _is_32_bits(value, places) else None


left: Any = _left
"""left(value, places): value·2^places without the upper bits; `places` is an int32."""

right: Any = _right
"""right(value, places): a logical shift, with zeros shifted in; `places` is an int32."""
