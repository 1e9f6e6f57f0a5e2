"""Activation functions and heads of policies in compiled loops.

Mish, SiLU, GELU and `fast_tanh` compute in float64 and without calls to the library, except for erf, so that LLVM
vectorises the loops around them.
"""

import math

import numpy as np

from shoal.compiled import njit
from shoal.inference.layers import ACTIVATIONS, BOUND, LEAK

RELU, TANH, ELU, LEAKY, SIGMOID, NONE, MISH, SILU, GELU, GELU_TANH, CLIP_2 = range(11)
assert (LEAK, BOUND, *ACTIVATIONS) == (
    0.01, 2.0, "relu", "tanh", "elu", "leaky-relu", "sigmoid", "none", "mish", "silu", "gelu", "gelu-tanh", "clip-2",
)  # fmt: skip
SQUASHES = ("none", "clip", "tanh")
LN2 = math.log(2)
FARTHEST = 80.0  # beyond ±80, exp(x) neither changes a float32 sum with 1 nor is changed by it
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
    return np.float32(x / (1 + _exp(-np.float64(x))))


@njit(inline="always")
def gelu_tanh(x):  # type: ignore[no-untyped-def]
    wide = np.float64(x)
    return np.float32(wide / (1 + _exp(-GELU_SLOPE * (wide + GELU_CUBE * wide * wide * wide))))


@njit(inline="always")
def gelu(x):  # type: ignore[no-untyped-def]
    """x · (share of a standard normal distribution below x)."""
    return np.float32(0.5 * x * math.erfc(-SQRT_HALF * np.float64(x)))


@njit(inline="always")
def fast_tanh(x):  # type: ignore[no-untyped-def]
    """tanh(x) = 1 - 2 / (exp(2x) + 1), within 0.51 ulp of float32: eight times as fast as the library's."""
    size = np.float64(min(abs(x), np.float32(10)))  # beyond, it is 1
    y = 1 - 2 / (_exp(2 * size) + 1) if size > 1e-3 else size - size * size * size / 3
    return np.float32(y if x >= 0 else -y)


@njit(inline="always")
def library_tanh(x):  # type: ignore[no-untyped-def]
    return np.tanh(x)


@njit(inline="always")
def activate(y, activation, tanh):  # type: ignore[no-untyped-def]
    """Apply an activation function, given by its position in `ACTIVATIONS`, to all of y in place."""
    one = np.float32(1)
    if activation == RELU:
        for u in range(y.size):
            y[u] = max(y[u], np.float32(0))
    elif activation == TANH:
        for u in range(y.size):
            y[u] = tanh(y[u])
    elif activation == ELU:
        for u in range(y.size):
            y[u] = y[u] if y[u] > 0 else np.expm1(y[u])
    elif activation == LEAKY:
        for u in range(y.size):
            y[u] = y[u] if y[u] > 0 else y[u] * np.float32(LEAK)
    elif activation == SIGMOID:
        for u in range(y.size):
            y[u] = one / (one + np.exp(-y[u]))
    elif activation == MISH:
        for u in range(y.size):
            y[u] = mish(y[u])
    elif activation == SILU:
        for u in range(y.size):
            y[u] = silu(y[u])
    elif activation == GELU:
        for u in range(y.size):
            y[u] = gelu(y[u])
    elif activation == GELU_TANH:
        for u in range(y.size):
            y[u] = gelu_tanh(y[u])
    elif activation == CLIP_2:
        for u in range(y.size):
            y[u] = min(max(y[u], np.float32(-BOUND)), np.float32(BOUND))


@njit(inline="always")
def choose(outputs, noise, seen, masked):  # type: ignore[no-untyped-def]
    """The largest of an agent's outputs (A,), after uniform noise (A,) that makes it a sample if there is any.

    Only legal choices count, if the observation (O,) begins with a mask.
    """
    best, choice = np.float32(-np.inf), 0
    for a in range(outputs.size):
        if masked and seen[a] <= 0:
            continue
        value = outputs[a]
        if noise.size:
            value -= np.log(-np.log(noise[a]))
        if value > best:
            best, choice = value, a
    return choice


@njit(inline="always")
def to_box(outputs, squash, low, high, tanh, action):  # type: ignore[no-untyped-def]
    """Write the action (A,) of an agent's outputs, squashed as `SQUASHES[squash]` says."""
    for a in range(low.size):
        if squash == 0:
            action[a] = outputs[a]
        elif squash == 1:
            action[a] = min(max(outputs[a], low[a]), high[a])
        else:
            middle, half = (high[a] + low[a]) / np.float32(2), (high[a] - low[a]) / np.float32(2)
            action[a] = middle + half * tanh(outputs[a])
