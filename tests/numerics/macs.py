"""Matrix products by the exact reference, and the random bits that go with them."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.numerics import MacStats, MacUnit, matmul, quantize
from shoal.numerics.mac.exact import dot_exact
from shoal.numerics.mac.product import Operand, Product
from shoal.numerics.rounding.randomness import MULTIPLIERS, SHIFTS, SPAN, keys, word
from tests.numerics.numbers import same

SLIDES_UNITS = [
    "fp32:1+fp32", "fp16:1+fp16", "bf16:1+bf16",
    "E6M3:5+E7M7", "E6M2:5+E7M5", "E6M1:5+E7M3", "E5M3:5+E6M7", "E5M2:5+E6M5", "E5M1:5+E6M3",
    "E6M3:5+Q8.13", "E5M2:5+Q8.13", "E5M2:5+Q11.13", "E5M1:5+Q8.13", "E4M2:5+E5M5", "E4M2:5+Q8.12",
    "E5M3:5+E5M5", "E6M3:1+E6M3", "E5M3:1+E5M3", "E4M3:1+E4M3",
    "Q16.16+Q16.16", "Q8.8+Q8.8", "Q7.7+Q7.7", "Q6.6+Q6.6",
]  # fmt: skip


def draw(unit: MacUnit, seed: int, call: int, output: int) -> Callable[[int], int]:
    """The random bits of an output's steps, after the definition in docs/numerics.md."""
    chosen = keys(seed, call, 0)
    key, bits = word(output, *chosen[:2]), unit.random_bits

    def mixed(step: int) -> int:
        x = key ^ word(step, *chosen[2:])
        x = (x ^ (x >> SHIFTS[0])) * MULTIPLIERS[0] % SPAN
        x = (x ^ (x >> SHIFTS[1])) * MULTIPLIERS[1] % SPAN
        return x ^ (x >> SHIFTS[2])

    def of_step(step: int) -> int:
        if bits > 16:
            return mixed(step) >> (32 - bits)
        both = mixed(step // 2)
        return (both % 2**16 if step % 2 else both >> 16) >> (16 - bits)

    return of_step


def reference(a: NDArray, b: NDArray, unit: MacUnit, seed: int, call: int) -> tuple[NDArray, MacStats]:
    """The product of two matrices, one number at a time."""
    rounded = []
    for operand, format in zip((a, b), unit.multiplier.formats, strict=True):
        nan = "error" if getattr(format, "nans", False) else unit.nan
        rounded.append(quantize(operand, format, nan=nan).astype(np.float64))
    x, y = rounded
    result, counts = np.zeros((a.shape[0], b.shape[1])), np.zeros(3, int)
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            value, events = dot_exact(x[i].tolist(), y[:, j].tolist(), unit, draw(unit, seed, call, i * b.shape[1] + j))
            result[i, j] = value
            counts += (events.saturated, events.overflowed, events.underflowed)
    return result, MacStats(a.shape[0] * b.shape[1] * a.shape[1], *map(int, counts))


def assert_as_defined(a: NDArray, b: NDArray, unit: MacUnit, seed: int = 1, call: int = 2) -> MacStats:
    """matmul gives the reference's bits and counts."""
    expected, happened = reference(a, b, unit, seed, call)
    got, counted = matmul(a, b, unit, stats=True, seed=seed, call=call)
    wrong = np.argwhere(~same(got.astype(np.float64), expected))
    assert wrong.size == 0, f"{unit}: {[(tuple(at), got[tuple(at)], expected[tuple(at)]) for at in wrong[:3]]}"
    assert counted == happened, f"{unit}: counted {counted}, but {happened}"
    return counted


def one_by_one(a: NDArray, b: NDArray, unit: MacUnit, seed: int) -> tuple[NDArray, MacStats]:
    """The product of two matrices by the loops in float64."""
    x, y = (
        torch.from_numpy(quantize(t.astype(np.float64), f, nan="error" if getattr(f, "nans", False) else unit.nan))
        for t, f in zip((a, b), unit.multiplier.formats, strict=True)
    )
    counts = np.zeros(4, np.int64)
    product = Product(unit, Operand.of(x[None]), Operand.of(y.T[None]), torch.float64, True, keys(seed, 0, 0), 1)
    result = product.one_by_one(counts)[0].numpy()
    return result, MacStats(result.size * a.shape[1], *map(int, counts[:3]))


def numbers(shape: tuple[int, ...], seed: int = 0, spread: int = 9, dtype: type = np.float32) -> NDArray:
    """Normal numbers over many binades."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-spread, spread, shape))).astype(dtype)
