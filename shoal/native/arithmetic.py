"""Functions of single numbers that LLVM can vectorise, and noise by counter.

In float32 the functions are polynomials, within two units in the last place or so of the true value; in float64, which
only tests use, they are the library's. NaN stays NaN, except in `log`, which gets positive normal numbers only. Every
draw is a function of a key and a counter: it depends on neither threads nor the order in which anything is computed.
Uniform numbers have 23 bits and are never 0 or 1, so every draw is finite.
Coefficients: exp and log after Cephes (Moshier), the normal quantile after Giles (2010), the hash after Wellons
("lowbias32") and SplitMix64 (Steele et al. 2014).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from shoal.compiled import njit

f4, i4, u4, u8 = np.float32, np.int32, np.uint32, np.uint64
FLAGS: dict[str, Any] = {"fastmath": {"contract"}, "error_model": "numpy"}
"""Flags are given, because numba lets a function without any inherit those of its first caller: the last bits, and with
them those of a training, would depend on what was compiled before."""


def _coefficients(*numbers: float) -> tuple[np.float32, ...]:
    return tuple(f4(number) for number in numbers)


EXP = _coefficients(
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1
)
LOG = _coefficients(
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
TANH = _coefficients(-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
NEAR = _coefficients(
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
FAR = _coefficients(
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip
"""Of the quantile of a normal distribution, near its middle and far from it."""


@njit(**FLAGS)
def polynomial(x, coefficients):  # type: ignore[no-untyped-def]
    """By Horner's rule; the coefficient of the highest power comes first."""
    y = coefficients[0]
    for coefficient in coefficients[1:]:
        y = y * x + coefficient
    return y


def _in_float32(library: Callable[[float], float]) -> Callable[[Any], Any]:
    """Decorator: in float32 this library function is computed by the function that follows; in float64 the library's
    is used."""

    def declare(single: Any) -> Any:
        def function(x):  # type: ignore[no-untyped-def]
            return library(x)

        overload(function, jit_options=FLAGS)(lambda x: single if x is types.float32 else function)  # type: ignore[arg-type]
        return function

    return declare


@_in_float32(math.exp)
def exp(x):  # type: ignore[no-untyped-def]
    """e to the x."""
    x = f4(-87.0) if x < f4(-87.0) else x  # not max and min, which may lose NaN
    x = f4(88.0) if x > f4(88.0) else x
    shifted = f4(x * f4(1.44269504088896341) + f4(12582912.0))  # its low bits are the nearest whole number
    n = shifted - f4(12582912.0)
    x = x - n * f4(0.693359375) + n * f4(2.12194440e-4)
    y = polynomial(x, EXP) * x * x + x + f4(1)
    return y * i4(i4(shifted.view(i4) + i4(127)) << i4(23)).view(f4)


@_in_float32(math.log)
def log(x):  # type: ignore[no-untyped-def]
    """Natural logarithm of a positive normal number."""
    bits = i4(f4(x).view(i4) - i4(0x3F3504F3))
    e = f4(i4(bits >> i4(23)))
    z = i4(i4(bits & i4(0x007FFFFF)) + i4(0x3F3504F3)).view(f4) - f4(1)
    square = z * z
    y = polynomial(z, LOG) * z * square
    y = y + e * f4(-2.12194440e-4) - f4(0.5) * square
    return z + y + e * f4(0.693359375)


@_in_float32(math.tanh)
def tanh(x):  # type: ignore[no-untyped-def]
    """Hyperbolic tangent."""
    size = abs(x)
    square = x * x
    e = exp(f4(2) * (f4(20) if size > f4(20) else size))
    large = f4(1) - f4(2) / (e + f4(1))
    small = polynomial(square, TANH) * square * size + size
    y = small if size < f4(0.625) else large
    return y if x >= f4(0) else -y


@register_jitable
def softplus(x, zero):  # type: ignore[no-untyped-def]
    """log(1 + exp(x)), and x beyond 20, as torch has it; given a zero of its type."""
    return x if x > number(zero, 20.0) else max(x, zero) + log(exp(-abs(x)) + number(zero, 1.0))


@register_jitable
def number(like: Any, value: float) -> Any:
    """A value in the type of `like`."""
    return type(like)(value)


# ---- noise ----------------------------------------------------------------------------------------------------------


@njit
def mix32(x):  # type: ignore[no-untyped-def]
    """A permutation of 32-bit words in which every bit of the result depends on every bit of x."""
    x = u4(x ^ (x >> u4(16)))
    x = u4(x * u4(0x7FEB352D))
    x = u4(x ^ (x >> u4(15)))
    x = u4(x * u4(0x846CA68B))
    return u4(x ^ (x >> u4(16)))


@njit
def mix64(x):  # type: ignore[no-untyped-def]
    """Likewise of 64-bit words."""
    x = u8(u8(x ^ (x >> u8(30))) * u8(0xBF58476D1CE4E5B9))
    x = u8(u8(x ^ (x >> u8(27))) * u8(0x94D049BB133111EB))
    return u8(x ^ (x >> u8(31)))


@njit
def key_of(seed, moment, stream):  # type: ignore[no-untyped-def]
    """The key of the stream of this number at a moment, e.g. in an update."""
    key = mix64(u8(u8(seed) + u8(moment) * u8(0x9E3779B97F4A7C15)))
    return mix64(u8(key + u8(stream) * u8(0xD1342543DE82EF95)))


@njit(**FLAGS)
def uniform(key, counter):  # type: ignore[no-untyped-def]
    """A float32 number above 0 and below 1."""
    low, high = u4(key & u8(0xFFFFFFFF)), u4(key >> u8(32))
    word = mix32(u4(mix32(u4(u4(u4(counter) * u4(0x9E3779B9)) + low)) ^ high))
    return f4((f4(i4(u4(word >> u4(9)))) + f4(0.5)) * f4(2.0**-23))


@njit(**FLAGS)
def normal(key, counter):  # type: ignore[no-untyped-def]
    """A standard normal number: the quantile of a uniform one."""
    x = f4(2) * uniform(key, counter) - f4(1)
    w = -log((f4(1) - x) * (f4(1) + x))
    near, far = w - f4(2.5), np.sqrt(max(w, f4(5))) - f4(3)
    p, q = polynomial(near, NEAR), polynomial(far, FAR)
    return f4(math.sqrt(2)) * (p if w < f4(5) else q) * x
