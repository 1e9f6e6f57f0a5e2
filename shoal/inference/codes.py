"""Weights as codes of symmetric grids, one scale per output channel, and low-bit codes packed into bytes.

Shape letters: N agents, I inputs, U outputs.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.errors import check_range
from shoal.inference.grid import TOO_SMALL, Grid, code_range
from shoal.inference.layers import Conv2d, Layer
from shoal.system.processors import has_vnni


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
    check_range("--bits", bits, 2, 8)
    weight = np.ascontiguousarray(weight, np.float32)
    codes, scales = np.empty(weight.shape, np.int8), np.empty((weight.shape[0], weight.shape[2]), np.float32)
    _encode(weight, np.float32(code_range(bits, "symmetric")[1]), codes, scales)
    return codes, _symmetric(scales[:, None], bits)


def layer_codes(layer: Layer, bits: int) -> tuple[NDArray[np.int8], Grid]:
    """A layer's codes and their grid: the frozen ones if they take no more bits than this, else new ones."""
    frozen = layer.quantized
    if frozen is not None and frozen.bits <= bits:
        return frozen.weight.encode(layer.weight), frozen.weight
    if isinstance(layer, Conv2d):
        codes, grid = encode(layer.weight.reshape(layer.outputs, -1).T[None], bits)
        scale = grid.scale.reshape(-1, 1, 1, 1)
        return np.ascontiguousarray(codes[0].T).reshape(layer.weight.shape), _symmetric(scale, bits)
    return encode(layer.weight, bits)


def _symmetric(scale: NDArray[np.float32], bits: int) -> Grid:
    return Grid(scale, np.zeros(scale.shape, np.int32), bits, "symmetric")


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
        part = (positive >> below) & (2**width - 1)
        whole = np.zeros(-(-part.size // (8 // width)) * (8 // width), np.uint8)
        whole[: part.size] = part
        shifts = np.arange(0, 8, width, dtype=np.uint8)
        packed.append(np.bitwise_or.reduce(whole.reshape(-1, 8 // width) << shifts, axis=1))
    return packed
