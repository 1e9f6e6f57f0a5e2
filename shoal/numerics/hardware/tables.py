"""The figures from the slides that the hardware cost is based on, each with its slide.

Slides: S. Filip, "Exploring Low-Precision Formats in MAC Units for DNN Training" (with O. Sentieys, S. Ben Ali,
M. Tatsumi, G. Lemieux). Areas: Vitis HLS 2020.2 for a Xilinx ZCU104. A float name is EeMm, so fp32 is E8M23.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Figure = TypeVar("Figure")
Resources = tuple[int, int]
"""LUTs and DSPs."""


@dataclass(frozen=True)
class PublishedTable(Generic[Figure]):
    """Figures by name, and where they are in the slides."""

    source: str
    rows: Mapping[str, Figure]


_EXPLORATION = "slide 'MAC Design Space Exploration'"

MULTIPLIER: PublishedTable[Resources] = PublishedTable(
    f"{_EXPLORATION}, table 'I/O precision'; EeMm in CFG-1",
    {
        "fp32": (374, 2), "fp16": (195, 1), "bf16": (180, 1), "E6M3": (115, 0), "E5M3": (86, 0), "E4M3": (78, 0),
        "Q16.16": (279, 4), "Q8.8": (106, 1), "Q7.7": (93, 1), "Q6.6": (81, 1),
    },
)  # fmt: skip

MULTIPLIER_WITHOUT_DSPS: PublishedTable[Resources] = PublishedTable(
    f"{_EXPLORATION}, table 'I/O precision', row 'FP32 (no DSP)'", {"fp32": (987, 0)}
)

ACCUMULATOR: PublishedTable[Resources] = PublishedTable(
    f"{_EXPLORATION}, table 'Area of accumulator'",
    {
        "fp32": (189, 2), "E7M7": (255, 0), "E7M5": (185, 0), "E7M3": (187, 0), "E6M7": (242, 0), "E6M5": (187, 0),
        "E6M3": (165, 0), "Q16.16": (89, 0), "Q8.13": (55, 0), "Q8.8": (43, 0), "Q7.7": (35, 0), "Q6.6": (32, 0),
    },
)  # fmt: skip

CONVERTER_TARGET = "Q8.13"
CONVERTER: PublishedTable[Resources] = PublishedTable(  # by the format of the product
    f"{_EXPLORATION}, table 'Area of accumulator and data converter', column 'Converter (to Q8.13)'",
    {"E7M7": (116, 0), "E7M5": (103, 0), "E7M3": (72, 0), "E6M7": (97, 0), "E6M5": (81, 0), "E6M3": (67, 0)},
)

SYSTEM_PES = 64  # a 16x4 systolic array, one kernel, 280 MHz: slide 'Archimedes-MPO Overview'
SYSTEM: PublishedTable[Resources] = PublishedTable(
    "slide 'Full MAC configuration: system-level area and test accuracy'",
    {
        "fp32+fp32": (58_420, 320),
        "E5M2:5+E6M5": (42_640, 0),
        "E5M2:5+Q8.13": (43_471, 0),
        "E5M2:5+Q11.13": (44_876, 0),
    },
)

_GOOD = "slide 'Quantization effects: the good' (M. Horowitz, 45 nm)"
ADD_ENERGY: PublishedTable[float] = PublishedTable(
    f"{_GOOD}, table 'ADD energy (pJ)'", {"INT8": 0.03, "INT32": 0.1, "FP16": 0.4, "FP32": 0.9}
)
MULTIPLY_ENERGY: PublishedTable[float] = PublishedTable(
    f"{_GOOD}, table 'MULT energy (pJ)'", {"INT8": 0.2, "INT32": 3.1, "FP16": 1.1, "FP32": 3.7}
)
ADD_AREA: PublishedTable[float] = PublishedTable(
    f"{_GOOD}, table 'ADD area (μm²)'", {"INT8": 36, "INT32": 137, "FP16": 1360, "FP32": 4184}
)
MULTIPLY_AREA: PublishedTable[float] = PublishedTable(
    f"{_GOOD}, table 'MULT area (μm²)'", {"INT8": 282, "INT32": 3495, "FP16": 1640, "FP32": 7700}
)
MEMORY_ENERGY: PublishedTable[tuple[float, float]] = PublishedTable(  # lowest and highest pJ of an access to 64 bits
    f"{_GOOD}, table 'Memory access energy (pJ)'",
    {"8KB": (10, 10), "32KB": (20, 20), "1MB": (100, 100), "DRAM": (1300, 2600)},
)

CFG_SHARES = {1: 1.0, 2: 0.8625, 3: 0.725, 4: 0.5875, 5: 0.45, 6: 0.45}
"""LUTs of a multiplier in each configuration, as a fraction of CFG-1: an assumption, not a table.

The slides' text says "over 50% area reduction going from CFG-1 to CFG-5/CFG-6"; the LUTs of each configuration are only
in a figure. "Over 50 %" is read as 50 to 60 %, with CFG-2 to 4 at equal steps in between.
"""
CFG_SHARE_ERROR = 0.05
