"""Inputs that try a rounding, the formats of the slides, and equality to the last bit."""

import numpy as np
from numpy.typing import NDArray

from shoal.numerics import FixedFormat, FloatFormat, parse

MULTIPLIER_INPUTS = "E6M3 E6M2 E6M1 E5M3 E5M2 E5M1 E4M3 E4M2".split()
SLIDES = [
    *"fp32 fp16 tf32 bf16".split(),
    *MULTIPLIER_INPUTS,
    *[f"{name}:{cfg}" for name in MULTIPLIER_INPUTS for cfg in (4, 5, 6)],
    *"E7M7 E7M5 E7M3 E6M7 E6M5 E5M5".split(),  # products and accumulators
    *"E6M9 E3M4 E2M5 E2M5F(bias=2)".split(),  # training schemes
    *"Q16.16 Q8.8 Q7.7 Q6.6 Q8.12 Q8.13 Q11.13".split(),
]
EDGES = [
    "E4M3FN", "E4M3FNUZ", "E4M3B11FNUZ", "E2M1F", "E1M2", "E4M0:5", "E4M0:6", "bf16:5", "bf16:6", "E8M22",
    "E8M20(bias=126)", "E8M0F(bias=149)", "E3M20:5", "E5M2(subnormals=zero, infinities=False)",
    "E5M2(subnormals=normal)", "Q1.7", "Q1.1", "Q0.8(sign_extra=True)", "Q25.0", "fp64",
]  # fmt: skip
ROUNDINGS = ("nearest-even", "nearest-away", "toward-zero", "up", "down")
SPECIALS = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)


def scalar(name: str) -> FloatFormat | FixedFormat:
    format = parse(name)
    assert isinstance(format, FloatFormat | FixedFormat)
    return format


def same(a: NDArray, b: NDArray) -> NDArray[np.bool_]:
    """Equal numbers with equal signs, or both NaN."""
    return ((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))


def assert_same(got: NDArray, expected: NDArray, given: NDArray) -> None:
    wrong = np.flatnonzero(~same(got, expected))
    lines = [f"{float(given[i]).hex()}: {float(got[i])!r} instead of {float(expected[i])!r}" for i in wrong[:5]]
    assert wrong.size == 0, f"{wrong.size} of {got.size} differ, such as {lines}"


def float16_values() -> NDArray[np.float32]:
    """All 65,536 of them."""
    return np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)


def float32_patterns(seed: int = 0) -> NDArray[np.float32]:
    """About 20,000: every exponent with random, short and nearly short mantissas, both signs; ties and neighbours.

    A mantissa whose last one sits at place j is a tie of the formats with j - 1 mantissa bits, and a number of those
    with more; one unit more or less is next to it.
    """
    rng = np.random.default_rng(seed)
    exponents = np.repeat(np.arange(256, dtype=np.uint32), 80)
    places = rng.integers(0, 24, exponents.size)
    mantissas = rng.integers(0, 2**23, exponents.size) >> places << places
    mantissas = (mantissas + rng.integers(-1, 2, exponents.size)) % 2**23
    signs = rng.integers(0, 2, exponents.size).astype(np.uint32) << np.uint32(31)
    patterns = signs | (exponents << np.uint32(23)) | mantissas.astype(np.uint32)
    return np.concatenate([patterns.view(np.float32), SPECIALS])


def around(format: FloatFormat | FixedFormat) -> NDArray[np.float32]:
    """Float32 numbers at and next to the ends of a format: its largest and smallest values, and between."""
    ends = np.array([format.max, format.min_positive, -format.min, getattr(format, "min_normal", 1.0)])
    factors = np.array([1, 0.5, 0.25, 0.75, 1.125, 1.5, 2, 1.03125, 1.0625, 0.9375, 1.75, 1.25])
    with np.errstate(over="ignore", under="ignore"):
        points = np.outer(ends, factors).reshape(-1).astype(np.float32)
        points = np.concatenate([points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(np.inf))])
    return np.concatenate([points, -points])
