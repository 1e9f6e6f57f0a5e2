"""16-bit numbers by bit operations: float16 and bfloat16 codes to float32 and back, for loops compiled by numba."""

import numpy as np
from numpy.typing import NDArray

from shoal.compiled import njit

FLOAT16_BOUND = np.float32(65520.0)
"""The smallest magnitude that rounds to infinity: halfway between the largest float16 and what would follow it."""
BFLOAT16_BOUND = np.float32(2.0**128 - 2.0**119)  # the same for bfloat16


@njit(cache=True)
def widen_float16(code: np.uint16) -> np.float32:
    """The float32 of a float16 code, exactly; written without branches, so that the loops around it use vectors."""
    magnitude = np.uint32(code & 0x7FFF)
    bits = np.uint32((magnitude << 13) + 0x38000000)  # the exponent's bias goes from 15 to 127
    if magnitude >= 0x7C00:  # infinity and NaN
        bits = np.uint32(bits + 0x38000000)
    # A subnormal is a multiple of 2⁻²⁴; the product is a normal float32, so no processor mode flushes it to zero.
    subnormal = np.float32(np.float32(np.int32(magnitude)) * np.float32(2.0**-24)).view(np.uint32)
    bits = subnormal if magnitude < 0x400 else bits
    return np.uint32(bits | np.uint32((code & 0x8000) << 16)).view(np.float32)


@njit(cache=True)
def narrow_float16(value: np.float32) -> np.uint16:
    """The nearest float16 code, ties to even; beyond the range infinity, and NaN stays NaN."""
    bits = np.float32(value).view(np.uint32)
    sign = (bits >> 16) & 0x8000
    magnitude = np.uint32(bits & 0x7FFFFFFF)
    if magnitude > 0x7F800000:
        return np.uint16(sign | 0x7E00)
    if magnitude >= 0x477FF000:  # FLOAT16_BOUND
        return np.uint16(sign | 0x7C00)
    if magnitude < 0x38800000:  # below 2⁻¹⁴: the spacing of float32 at 0.5 is 2⁻²⁴, so adding 0.5 rounds as we need
        shifted = np.float32(magnitude.view(np.float32) + np.float32(0.5)).view(np.uint32)
        return np.uint16(sign | (shifted - 0x3F000000))
    rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1)
    return np.uint16(sign | ((rounded - 0x38000000) >> 13))


@njit(cache=True)
def widen_bfloat16(code: np.uint16) -> np.float32:
    """The float32 of a bfloat16 code, which is its upper half."""
    return np.uint32(np.uint32(code) << 16).view(np.float32)


@njit(cache=True)
def narrow_bfloat16(value: np.float32) -> np.uint16:
    """The nearest bfloat16 code, ties to even; beyond the range infinity, and NaN stays NaN."""
    bits = np.float32(value).view(np.uint32)
    if (bits & 0x7FFFFFFF) > 0x7F800000:
        return np.uint16((bits >> 16) | 0x40)
    return np.uint16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)


@njit(cache=True)
def first_beyond(values: NDArray[np.float32], bound: np.float32) -> int:
    """Flat position of the first finite value of at least this magnitude, or -1."""
    flat = values.ravel()
    for k in range(flat.size):
        if bound <= abs(flat[k]) < np.inf:
            return k
    return -1
