"""The one definition of uniform affine quantization: real = scale * (code - zero_point).

    asymmetric   codes 0 to 2^bits - 1, scale = (max(x, 0) - min(x, 0)) / (2^bits - 1), 0 is the code `zero_point`
    symmetric    codes ±(2^(bits - 1) - 1), scale = max|x| / (2^(bits - 1) - 1), 0 is the code 0
    paper        QuaRL's formula: scale = (max(x, 0) - min(x, 0)) / 2^bits, 0 is the code 0, codes without limits

Quotients are rounded to the nearest code, ties to even. Numbers are numpy arrays or torch tensors; torch itself is not
imported here. Arithmetic is in the type of the numbers: codes of float32 numbers are exact if these are widened to
float64 first, and may be off by one next to a tie if they are not.
The fast implementations (`codes.encode`, `qat.rounded`, the nodes in `graph`) are tested to be equal to this one.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

Kind = Literal["asymmetric", "symmetric", "paper"]
Numbers = Any
"""A numpy array or a torch tensor."""
TOO_SMALL = float(np.nextafter(np.finfo(np.float32).tiny, np.float32(0)))
"""The largest of the subnormal float32 numbers: a range whose scale would be one of them gets the scale 1."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Evenly spaced real numbers that have codes."""

    scale: Numbers
    """In the shape of the numbers to be rounded, with 1 for every axis that shares a scale."""
    zero_point: Numbers
    """The code of 0: whole numbers in the shape of the scale."""
    bits: int = 8
    kind: Kind = "asymmetric"

    @classmethod
    def of_range(cls, low: Numbers, high: Numbers, bits: int, kind: Kind = "asymmetric") -> "Grid":
        """The grid from low to high, where low <= 0 <= high; a symmetric one reaches as far on both sides."""
        if kind == "symmetric":
            return cls.of_magnitude(_library(low).maximum(-low, high), bits)
        wide = _cast(low, np.float64)
        steps = 2**bits if kind == "paper" else code_range(bits, kind)[1]
        scale = _scale(_cast(high, np.float64) - wide, steps, low)
        zero = _no_codes(scale)
        if kind == "asymmetric":
            library = _library(wide)
            zero = _cast(library.clip(library.round(-wide / _cast(scale, np.float64)), 0, steps), np.int32)
        return cls(scale, zero, bits, kind)

    @classmethod
    def of_magnitude(cls, largest: Numbers, bits: int) -> "Grid":
        """The symmetric grid of numbers up to this magnitude."""
        scale = _scale(_cast(largest, np.float64), code_range(bits, "symmetric")[1], largest)
        return cls(scale, _no_codes(scale), bits, "symmetric")

    @classmethod
    def of_numbers(cls, x: Numbers, bits: int, kind: Kind = "asymmetric", keep: Sequence[int] = ()) -> "Grid":
        """The grid that these numbers fill, with one scale for each index of the axes in `keep`."""
        if kind == "symmetric":
            axes = _other_axes(x, keep)
            largest = abs(x)
            return cls.of_magnitude(_library(x).amax(largest, axis=axes, keepdims=True) if axes else largest, bits)
        return cls.of_range(*value_range(x, keep), bits, kind)

    @property
    def lowest(self) -> float:
        """The lowest code."""
        return code_range(self.bits, self.kind)[0]

    @property
    def highest(self) -> float:
        """The highest code."""
        return code_range(self.bits, self.kind)[1]

    @property
    def code_type(self) -> str:
        """The name of the smallest integer type that holds all codes."""
        return ("int" if self.kind == "symmetric" else "uint") + ("8" if self.bits <= 8 else "16")

    def codes(self, x: Numbers) -> Numbers:
        """The nearest code of each number: whole numbers in the floating-point type of x."""
        library = _library(x)
        steps = library.round(x / _cast(self.scale, x.dtype))
        return library.clip(steps + _cast(self.zero_point, x.dtype), self.lowest, self.highest)

    def values(self, codes: Numbers) -> Numbers:
        """The real numbers that codes in a floating-point type stand for."""
        return (codes - _cast(self.zero_point, codes.dtype)) * _cast(self.scale, codes.dtype)

    def round(self, x: Numbers) -> Numbers:
        """The nearest number of the grid to each number."""
        return self.values(self.codes(x))

    def encode(self, x: Numbers) -> Numbers:
        """The codes as integers of the smallest type that holds them."""
        return _cast(self.codes(x), np.dtype(self.code_type))

    def part(self, *index: slice) -> "Grid":
        """The grid of a part of the numbers."""
        return replace(self, scale=self.scale[index], zero_point=self.zero_point[index])


def code_range(bits: int, kind: Kind) -> tuple[float, float]:
    """The lowest and the highest code."""
    if kind == "paper":
        return -math.inf, math.inf
    if kind == "symmetric":
        return 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1
    return 0, 2**bits - 1


def value_range(x: Numbers, keep: Sequence[int] = ()) -> tuple[Numbers, Numbers]:
    """min(x, 0) and max(x, 0) over all axes but those in `keep`, which stay as axes of the result."""
    library, axes, low, high = _library(x), _other_axes(x, keep), x, x
    if axes:
        low, high = library.amin(x, axis=axes, keepdims=True), library.amax(x, axis=axes, keepdims=True)
    return library.clip(low, None, 0), library.clip(high, 0, None)


def _scale(extent: Numbers, steps: float, like: Numbers) -> Numbers:
    """The size of one of so many steps, in the type of `like`; 1 where there is nothing to divide."""
    scale = _cast(extent / steps, like.dtype)
    return _library(scale).where(scale > TOO_SMALL, scale, 1.0)


def _no_codes(scale: Numbers) -> Numbers:
    library = _library(scale)
    return library.zeros_like(scale, dtype=library.int32)


def _other_axes(x: Numbers, keep: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis for axis in range(x.ndim) if axis not in keep)


def _library(x: Numbers) -> Any:
    """numpy, or torch: which is loaded where there is a tensor."""
    return np if isinstance(x, np.ndarray | np.generic) else sys.modules["torch"]


def _cast(x: Numbers, dtype: Any) -> Numbers:
    """The numbers in another type, which may be given as numpy's."""
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x, dtype)
    library = sys.modules["torch"]
    return x.to(dtype if isinstance(dtype, library.dtype) else getattr(library, np.dtype(dtype).name))
