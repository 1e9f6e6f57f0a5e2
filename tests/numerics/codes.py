"""A second reference for multipliers, vectorised, in integers: significands and exponents out of the codes' fields."""

import numpy as np
from numpy.typing import NDArray

from shoal.numerics import FloatFormat


def fields(format: FloatFormat, cfg: int) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """(sign, significand, exponent, special) of every code of EeMm: ±significand·2^exponent; 1 is inf, 2 NaN."""
    e, m = format.exponent, format.mantissa
    code = np.arange(2 ** (1 + e + m))
    sign, f, t = code >> (e + m), (code >> m) % 2**e, code % 2**m
    b = 2 ** (e - 1) - 1
    significand, exponent = np.where(f > 0, t + 2**m, t), np.maximum(f, 1) - b - m
    if cfg == 5:
        significand, exponent = np.where((f == 0) & (t > 0), t + 2**m, significand), np.where(f == 0, -b - m, exponent)
    if cfg == 6:
        significand = np.where(f == 0, 0, significand)
    top = f == 2**e - 1
    if cfg <= 3:
        special = np.where(top, np.where(t == 0, 1, 2), 0)
    else:
        special = np.where(top & (t == 2**m - 1), 1, 0)
    return sign, significand, exponent, special


def all_products(format: FloatFormat, cfg: int) -> NDArray[np.float64]:
    """The product of every pair of codes under the default switches; by codes."""
    sign, significand, exponent, special = fields(format, cfg)
    m, b = format.mantissa, 2 ** (format.exponent - 1) - 1
    negative = sign[:, None] ^ sign
    integer, power = significand[:, None] * significand, exponent[:, None] + exponent
    if cfg <= 2:
        length = np.frexp(integer.astype(np.float64))[1]  # bits of the integer
        drop = np.maximum(length - 1 - m, 0)
        if cfg == 1:
            drop = np.clip(1 - b - m - power, drop, 62)
        kept, rest, half = integer >> drop, integer & ((1 << drop) - 1), (1 << drop) >> 1
        kept += (rest > half) | ((rest == half) & (drop > 0) & (kept % 2 == 1))
        magnitude = np.ldexp(kept.astype(np.float64), power + drop)
        magnitude = np.where(magnitude > np.ldexp(2.0 - 2.0**-m, b), np.inf, magnitude)
        if cfg == 2:
            magnitude = np.where(magnitude < np.ldexp(1.0, 1 - b), 0.0, magnitude)
    else:
        magnitude = np.ldexp(integer.astype(np.float64), power)
        if cfg <= 4:
            magnitude = np.where(magnitude < np.ldexp(1.0, 1 - 2 * b), 0.0, magnitude)
    infinite = (special[:, None] == 1) | (special == 1)
    zero = (significand[:, None] == 0) & (special[:, None] == 0) | (significand == 0) & (special == 0)
    magnitude = np.where(infinite, np.inf, magnitude)
    if cfg <= 3:
        magnitude = np.where(infinite & zero, np.nan, magnitude)
    magnitude = np.where((special[:, None] == 2) | (special == 2), np.nan, magnitude)
    return np.where(negative == 1, -magnitude, magnitude)
