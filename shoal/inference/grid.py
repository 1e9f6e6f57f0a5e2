"""The one definition of uniform affine quantization: real = scale * (code - zero_point).

    asymmetric   codes 0 to 2^bits - 1, scale = (max(x, 0) - min(x, 0)) / (2^bits - 1), 0 is the code `zero_point`
    symmetric    codes ±(2^(bits - 1) - 1), scale = max|x| / (2^(bits - 1) - 1), 0 is the code 0
    paper        QuaRL's formula: scale = (max(x, 0) - min(x, 0)) / 2^bits, 0 is the code 0, codes unbounded

Quotients are rounded to the nearest code, ties to even. Values are numpy arrays or torch tensors; torch itself is not
imported here. Arithmetic is in the dtype of the values: codes of float32 values are exact if these are widened to
float64 first, and may be off by one next to a tie otherwise.
`encode` is the compiled form for the weights of linear layers; it and the nodes in `graph` are tested to be equal.
Shape letters: N agents, I inputs of a layer, U its outputs.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.errors import check_range
from shoal.system.processors import has_vnni

GridKind = Literal["asymmetric", "symmetric", "paper"]
Numbers = Any  # a numpy array or a torch tensor
TOO_SMALL = float(np.nextafter(np.finfo(np.float32).tiny, np.float32(0)))
"""The largest subnormal float32 number: a range whose scale would be subnormal gets the scale 1."""


@dataclass(frozen=True, eq=False)
class Grid:
    """A uniform quantization grid: evenly spaced real values and their integer codes."""

    scale: Numbers  # broadcastable to the values: size 1 along every axis that shares a scale
    zero_point: Numbers  # the code of 0: integers in the shape of the scale
    bits: int = 8
    kind: GridKind = "asymmetric"

    @classmethod
    def of_range(cls, low: Numbers, high: Numbers, bits: int, kind: GridKind = "asymmetric") -> "Grid":
        """The grid from low to high, where low <= 0 <= high; a symmetric one covers the larger magnitude."""
        if kind == "symmetric":
            return cls.of_magnitude(_library(low).maximum(-low, high), bits)
        wide = _cast(low, np.float64)
        steps = 2**bits if kind == "paper" else code_range(bits, kind)[1]
        scale = _scale(_cast(high, np.float64) - wide, steps, low)
        library = _library(wide)
        if kind == "asymmetric":
            zero = _cast(library.clip(library.round(-wide / _cast(scale, np.float64)), 0, steps), np.int32)
        else:
            zero = library.zeros_like(scale, dtype=library.int32)
        return cls(scale, zero, bits, kind)

    @classmethod
    def of_magnitude(cls, largest: Numbers, bits: int) -> "Grid":
        """The symmetric grid of values up to this magnitude."""
        return cls.symmetric(_scale(_cast(largest, np.float64), code_range(bits, "symmetric")[1], largest), bits)

    @classmethod
    def symmetric(cls, scale: Numbers, bits: int) -> "Grid":
        """The symmetric grid with these scales."""
        library = _library(scale)
        return cls(scale, library.zeros_like(scale, dtype=library.int32), bits, "symmetric")

    @classmethod
    def of_numbers(cls, x: Numbers, bits: int, kind: GridKind = "asymmetric", keep: Sequence[int] = ()) -> "Grid":
        """The grid that covers these values, with one scale per index of the axes in `keep`."""
        if kind == "symmetric":
            axes = _other_axes(x, keep)
            largest = abs(x)
            return cls.of_magnitude(_library(x).amax(largest, axis=axes, keepdims=True) if axes else largest, bits)
        return cls.of_range(*value_range(x, keep), bits, kind)

    @property
    def highest(self) -> float:
        """The highest code."""
        return code_range(self.bits, self.kind)[1]

    def codes(self, x: Numbers) -> Numbers:
        """The nearest code of each value, as integers in the floating-point dtype of x."""
        library, steps = _library(x), _cast(x / _cast(self.scale, x.dtype), x.dtype)
        # in place: new arrays would take several times as long; autograd cannot
        reused = None if getattr(steps, "requires_grad", False) else steps
        steps = library.round(steps, out=reused)
        steps += _cast(self.zero_point, x.dtype)
        return library.clip(steps, *code_range(self.bits, self.kind), out=reused)

    def values(self, codes: Numbers) -> Numbers:
        """Dequantize codes given in a floating-point dtype."""
        return (codes - _cast(self.zero_point, codes.dtype)) * _cast(self.scale, codes.dtype)

    def round(self, x: Numbers) -> Numbers:
        """Quantize and dequantize: the nearest grid value."""
        values = self.codes(x)
        values -= _cast(self.zero_point, x.dtype)
        values *= _cast(self.scale, x.dtype)
        return values

    def encode(self, x: Numbers) -> Numbers:
        """The codes in the smallest integer type that holds them."""
        kind, size = "int" if self.kind == "symmetric" else "uint", 8 if self.bits <= 8 else 16
        return _cast(self.codes(x), np.dtype(f"{kind}{size}"))

    def part(self, *index: slice | list[int]) -> "Grid":
        """The grid of a slice of the values."""
        return replace(self, scale=self.scale[index], zero_point=self.zero_point[index])


def code_range(bits: int, kind: GridKind) -> tuple[float, float]:
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
    """The step size, in the dtype of `like`; 1 where the extent is (nearly) zero."""
    scale = _cast(extent / steps, like.dtype)
    return _library(scale).where(scale > TOO_SMALL, scale, 1.0)


def _other_axes(x: Numbers, keep: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis for axis in range(x.ndim) if axis not in keep)


def _library(x: Numbers) -> Any:
    """numpy, or torch, which is already imported if there is a tensor."""
    return np if isinstance(x, np.ndarray | np.generic) else sys.modules["torch"]


def _cast(x: Numbers, dtype: Any) -> Numbers:
    """The values in another dtype, which may be numpy's."""
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x, dtype)
    library = sys.modules["torch"]
    return x.to(dtype if isinstance(dtype, library.dtype) else getattr(library, np.dtype(dtype).name))


def safe_bits() -> int:
    """Weight bits whose products with 8-bit inputs never saturate on this CPU: 2 · 255 · 63 fits into 16 bits."""
    return 8 if has_vnni() else 7


@njit(cache=True, nogil=True, error_model="numpy")
def _encode(weight, most, codes, scales):  # type: ignore[no-untyped-def]
    """(N, I, U): the scales (N, U), then the codes. `Grid.of_numbers` and `Grid.encode` in two passes."""
    agents, inputs, outputs = weight.shape
    for n in range(agents):
        largest = scales[n]
        largest[:] = 0
        for i in range(inputs):
            row = weight[n, i]
            for u in range(outputs):
                largest[u] = max(largest[u], abs(row[u]))
        for u in range(outputs):
            largest[u] = largest[u] / most
            if largest[u] <= TOO_SMALL:
                largest[u] = 1
        for i in range(inputs):
            row, out = weight[n, i], codes[n, i]
            for u in range(outputs):
                out[u] = np.int8(min(max(np.rint(row[u] / largest[u]), -most), most))


def encode(weight: NDArray[np.float32], bits: int) -> tuple[NDArray[np.int8], Grid]:
    """Codes (N, I, U) of the weights of linear layers, and their grid with scales (N, 1, U)."""
    check_range("bits", bits, 2, 8)
    weight = np.ascontiguousarray(weight, np.float32)
    codes, scales = np.empty(weight.shape, np.int8), np.empty((weight.shape[0], weight.shape[2]), np.float32)
    _encode(weight, np.float32(code_range(bits, "symmetric")[1]), codes, scales)
    return codes, Grid.symmetric(scales[:, None], bits)


def fields(bits: int) -> list[int]:
    """The field widths (4, 2 and 1) that add up to this many bits; each divides a byte evenly."""
    return [width for width in (4, 2, 1) if bits & width]


def pack(codes: NDArray[Any], bits: int) -> list[NDArray[np.uint8]]:
    """One byte array per field: symmetric codes, shifted to be non-negative, most significant bits first.

    Each byte of a field of width w holds the bits of 8 / w consecutive codes, the first one in the lowest bits.
    """
    positive = (codes.ravel().astype(np.int16) + code_range(bits, "symmetric")[1]).astype(np.uint8)
    packed, below = [], bits
    for width in fields(bits):
        below -= width
        field = np.unpackbits((positive >> np.uint8(below))[:, None], axis=1, count=width, bitorder="little")
        packed.append(np.packbits(field, bitorder="little"))
    return packed
