"""Activation functions of one number, for compiled loops: Mish, SiLU and both forms of GELU.

They compute in float64 and without calls to the library, except for erf, so that LLVM vectorises the loops around them.
"""

import math

import numpy as np

from shoal.compiled import njit

LN2 = math.log(2)
FARTHEST = 80.0
"""Beyond ±80, exp(x) neither changes a float32 sum with 1 nor is changed by it."""
SQRT_HALF = math.sqrt(0.5)
GELU_SLOPE, GELU_CUBE = 2 * math.sqrt(2 / math.pi), 0.044715
"""GELU's tanh form: x · sigmoid(GELU_SLOPE · (x + GELU_CUBE · x³))."""


@njit(inline="always")
def _exp(x):  # type: ignore[no-untyped-def]
    """exp(x) = 2^n exp(r) with |r| <= ln(2) / 2, within 1e-9 of its value."""
    x = min(max(x, -FARTHEST), FARTHEST)
    n = np.rint(x * (1 / LN2))
    r = x - n * LN2
    exp = 1 / 40320
    for factorial in (5040, 720, 120, 24, 6, 2, 1, 1):
        exp = exp * r + 1 / factorial
    return exp * np.int64((np.int64(n) + 1023) << 52).view(np.float64)


@njit(inline="always")
def mish(x):  # type: ignore[no-untyped-def]
    """x · tanh(log(1 + exp(x))), which is x · n / (n + 2) with n = exp(x) (exp(x) + 2)."""
    exp = _exp(np.float64(x))
    n = exp * (exp + 2)
    return np.float32(x * (n / (n + 2)))


@njit(inline="always")
def silu(x):  # type: ignore[no-untyped-def]
    """x · sigmoid(x)."""
    return np.float32(x / (1 + _exp(-np.float64(x))))


@njit(inline="always")
def gelu_tanh(x):  # type: ignore[no-untyped-def]
    """GELU's tanh form."""
    wide = np.float64(x)
    return np.float32(wide / (1 + _exp(-GELU_SLOPE * (wide + GELU_CUBE * wide * wide * wide))))


@njit(inline="always")
def gelu(x):  # type: ignore[no-untyped-def]
    """x · (share of a standard normal distribution below x)."""
    return np.float32(0.5 * x * math.erfc(-SQRT_HALF * np.float64(x)))
