"""Energy and silicon area of an operation at 45 nm, and the energy of moving an operand, from the slides' tables.

The tables have 8-bit and 32-bit integers, FP16 and FP32. Other widths follow a power law through the two figures: in
the width of integers (a fixed binary point costs nothing), and in the significand bits of floats. Two figures determine
such a law, so there is no error estimate.
"""

import math
from dataclasses import dataclass

from shoal.errors import check_choice
from shoal.numerics.formats.types import FloatFormat, Scalar
from shoal.numerics.hardware import tables
from shoal.numerics.hardware.area import KINDS, AnyUnit, datapath_of


@dataclass(frozen=True)
class Operation:
    """Cost of a multiplication and an addition: energy in pJ, or silicon area in μm²."""

    multiply: float
    add: float
    kind: str  # `tabulated`, `interpolated` or `extrapolated`: the less certain of the two

    @property
    def total(self) -> float:
        """Cost of one multiply-accumulate; a converter is not in the tables and not counted."""
        return self.multiply + self.add


def energy(unit: AnyUnit) -> Operation:
    """Energy in pJ of a multiplication of the unit's operands and an addition in its accumulator, whatever the CFG."""
    return _operation(unit, tables.MULTIPLY_ENERGY, tables.ADD_ENERGY)


def silicon_area(unit: AnyUnit) -> Operation:
    """Area in μm² of a multiplier for the unit's operands and an adder in its accumulator's format."""
    return _operation(unit, tables.MULTIPLY_AREA, tables.ADD_AREA)


def access_energy(format: Scalar, memory: str) -> tuple[float, float]:
    """Lowest and highest energy in pJ of moving one number, 64 bits at a time: from `8KB`, `32KB`, `1MB` or `DRAM`."""
    check_choice("memory", memory, list(tables.MEMORY_ENERGY.rows))
    low, high = tables.MEMORY_ENERGY.rows[memory]
    return low * format.width / 64, high * format.width / 64


def _operation(unit: AnyUnit, multiply: tables.PublishedTable[float], add: tables.PublishedTable[float]) -> Operation:
    path = datapath_of(unit)
    added, kind = _between(path.accumulator, add)
    multiplied, *other = (_between(format, multiply) for format in dict.fromkeys(path.operands))
    if other:  # mean of the multipliers for either format
        return Operation((multiplied[0] + other[0][0]) / 2, added, "extrapolated")
    return Operation(multiplied[0], added, max(kind, multiplied[1], key=KINDS.index))


def _between(format: Scalar, table: tables.PublishedTable[float]) -> tuple[float, str]:
    if isinstance(format, FloatFormat):
        bits, low, high, names = format.mantissa + 1, 11, 24, ("FP16", "FP32")
        known = {(5, 10): "FP16", (8, 23): "FP32"}.get((format.exponent, format.mantissa))
    else:
        bits, low, high, names = format.width, 8, 32, ("INT8", "INT32")
        known = {8: "INT8", 32: "INT32"}.get(bits)
    if known:
        return table.rows[known], "tabulated"
    first, last = (table.rows[name] for name in names)
    power = math.log(last / first) / math.log(high / low)
    return first * (bits / low) ** power, "interpolated" if low <= bits <= high else "extrapolated"
