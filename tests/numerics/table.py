"""A second reference, vectorised, and by another way than the first: neighbours are looked up in the list of values."""

import numpy as np
from numpy.typing import NDArray

from shoal.numerics import FixedFormat, FloatFormat
from shoal.numerics.rounding.randomness import MULTIPLIERS, SHIFTS, keys

RANDOM_BITS = 7
"""Of stochastic rounding here: few, so that floor(δ · 2^r) is exact in float64 also where a gap is no power of two."""


def random_numbers(count: int, seed: int) -> NDArray[np.int64]:
    """R of elements 0 to count - 1: the upper RANDOM_BITS bits of the hash that randomness.py defines."""
    before, between = (np.uint64(key) for key in keys(seed, 0, 0)[:2])
    x = np.arange(count, dtype=np.uint64) ^ before
    for shift, multiplier, key in zip(SHIFTS[:2], MULTIPLIERS, (between, np.uint64(0)), strict=True):
        x ^= x >> np.uint64(shift)
        x = x * np.uint64(multiplier) % np.uint64(2**32) ^ key
    x ^= x >> np.uint64(SHIFTS[2])
    return (x >> np.uint64(32 - RANDOM_BITS)).astype(np.int64)


class Table:
    """The non-negative values of a format up to 20 bits, two more beyond the largest, and which of them are even.

    Even is an even code; with no subnormals zero counts as even against the smallest value.
    """

    def __init__(self, format: FloatFormat) -> None:
        values = format.values()
        values = values[values >= 0]
        spacing = 2.0 ** (np.frexp(values[-1])[1] - 1 - format.mantissa)
        self.format = format
        self.values = np.concatenate([values, values[-1] + spacing * np.arange(1, 3)])
        first = format.encode(values[1])
        self.even = (first + np.arange(-1, self.values.size - 1)) % 2 == 0
        self.even[0] = True

    def round(
        self, x: NDArray[np.float64], rounding: str, overflow: str, random: NDArray[np.int64] | int = 0
    ) -> NDArray[np.float64]:
        """Finite float32 numbers, as float64, rounded; what is beyond the largest value follows `overflow`."""
        size = np.minimum(np.abs(x), self.values[-1])
        below = np.clip(np.searchsorted(self.values, size, side="right") - 1, 0, self.values.size - 2)
        lo, hi = self.values[below], self.values[below + 1]
        negative = np.signbit(x)
        down, up = size - lo, hi - size  # exact wherever they are nearly equal
        chosen_up = {
            "nearest-even": (down > up) | ((down == up) & ~self.even[below]),
            "nearest-away": down >= up,
            "toward-zero": np.zeros_like(negative),
            "up": (down > 0) & ~negative,
            "down": (down > 0) & negative,
            "stochastic": np.floor(np.ldexp(down, RANDOM_BITS) / (hi - lo)) + random >= 2**RANDOM_BITS,
        }[rounding]
        magnitude = np.where(chosen_up, hi, lo)
        inward = {"toward-zero": np.ones_like(negative), "up": negative, "down": ~negative}.get(rounding, False)
        beyond = np.where(inward | (overflow == "saturate"), self.format.max, np.inf)
        magnitude = np.where(magnitude > self.format.max, beyond, magnitude)
        return np.copysign(magnitude, x)


def round_fixed(
    x: NDArray[np.float64], format: FixedFormat, rounding: str, random: NDArray[np.int64] | int = 0
) -> NDArray[np.float64]:
    """Finite float32 numbers, as float64, rounded and saturated: multiples of the step are exact in float64."""
    multiple = np.ldexp(x, format.fraction)
    away = np.copysign(np.floor(np.abs(multiple) + 0.5), multiple)
    whole = np.floor(np.abs(multiple))
    risen = np.floor(np.ldexp(np.abs(multiple) - whole, RANDOM_BITS)) + random >= 2**RANDOM_BITS
    small = np.abs(multiple) < 2.0**51  # beyond, there is nothing to round, but adding a half would
    rounded = {
        "nearest-even": np.rint(multiple),
        "nearest-away": np.where(small, np.where(np.abs(multiple) < 0.5, 0.0, away), multiple),
        "toward-zero": np.trunc(multiple),
        "up": np.ceil(multiple),
        "down": np.floor(multiple),
        "stochastic": np.copysign(whole + risen, multiple),
    }[rounding]
    return np.clip(np.ldexp(rounded, -format.fraction), format.min, format.max) + 0.0
