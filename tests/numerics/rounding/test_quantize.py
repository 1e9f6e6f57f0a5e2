"""Rounding of whole arrays against two references: exact fractions, and a look-up among all values of a format."""

from functools import cache

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.numerics import FixedFormat, FloatFormat, quantize
from shoal.numerics.rounding.exact import round_exact
from shoal.numerics.rounding.plan import check_rules
from shoal.numerics.rounding.randomness import random_bits
from tests.numerics.numbers import (
    EDGES,
    ROUNDINGS,
    SLIDES,
    SPECIALS,
    around,
    assert_same,
    float16_values,
    float32_patterns,
    scalar,
)
from tests.numerics.table import RANDOM_BITS, Table, random_numbers, round_fixed


@cache
def inputs() -> np.ndarray:
    values = np.concatenate([float16_values(), float32_patterns()])
    return values[np.isfinite(values)]


@cache
def table(name: str) -> Table:
    format = scalar(name)
    assert isinstance(format, FloatFormat)
    return Table(format)


def expected(name: str, x: np.ndarray, rounding: str, random: np.ndarray | int = 0) -> np.ndarray:
    """x rounded by the vectorised reference, with the format's usual overflow rule."""
    format = scalar(name)
    wide = x.astype(np.float64)
    if isinstance(format, FixedFormat):
        return round_fixed(wide, format, rounding, random)
    if name == "fp32":
        return wide
    return table(name).round(wide, rounding, "infinity" if format.infinities else "saturate", random)


@pytest.mark.parametrize("name", SLIDES)
def test_all_float16_values_and_float32_patterns_match_the_list_of_values(name: str) -> None:
    x = np.concatenate([inputs(), around(scalar(name))])
    x = x[np.isfinite(x)]
    for rounding in ROUNDINGS:
        assert_same(quantize(x, name, rounding).astype(np.float64), expected(name, x, rounding), x)


@pytest.mark.parametrize("name", SLIDES)
def test_list_of_values_with_stochastic_rounding_and_hysteresis(name: str) -> None:
    x = np.concatenate([inputs(), around(scalar(name))])
    x = x[np.isfinite(x)]
    got = quantize(x, name, "stochastic", seed=5, random_bits=RANDOM_BITS)
    assert_same(got.astype(np.float64), expected(name, x, "stochastic", random_numbers(x.size, 5)), x)
    previous = quantize(np.random.default_rng(0).permutation(x), name)
    got = quantize(x, name, "hysteresis", previous=previous)
    floor, ceiling = expected(name, x, "down"), expected(name, x, "up")
    assert_same(got.astype(np.float64), np.where(x > previous, floor, ceiling), x)


@pytest.mark.parametrize("name", SLIDES)
def test_the_list_of_values_agrees_with_exact_fractions(name: str) -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.choice(inputs(), 60), around(scalar(name))[::4]])
    x = x[np.isfinite(x)]
    for rounding in ROUNDINGS:
        exact = np.array([round_exact(float(v), scalar(name), rounding) for v in x])
        assert_same(expected(name, x, rounding), exact, x)
    drawn = random_numbers(x.size, 9)
    rules = {"random_bits": RANDOM_BITS, "variant": "A"}
    exact = np.array(
        [
            round_exact(float(v), scalar(name), "stochastic", random=int(r), **rules)
            for v, r in zip(x, drawn, strict=True)
        ]
    )
    assert_same(expected(name, x, "stochastic", drawn), exact, x)
    assert drawn.tolist() == [random_bits(9, 0, i, RANDOM_BITS) for i in range(x.size)]


@pytest.mark.parametrize("name", [*EDGES, "E5M2", "E5M2:4", "E5M2:5", "E5M2:6", "Q8.13", "Q16.16"])
def test_every_rule_matches_exact_fractions(name: str) -> None:
    format = scalar(name)
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.choice(float32_patterns(), 150), rng.choice(around(format), 60), SPECIALS])
    for rounding in ROUNDINGS:
        for overflow in (None, "saturate", "nan", "wrap", "infinity"):
            for underflow in ("round", "truncate"):
                try:
                    check_rules(format, rounding, overflow, underflow, "zero")
                except UserError:
                    continue
                exact = [round_exact(float(v), format, rounding, overflow, underflow=underflow, nan="zero") for v in x]
                got = quantize(x, format, rounding, overflow, underflow=underflow, nan="zero")
                assert_same(got.astype(np.float64), np.array(exact), x)


@pytest.mark.parametrize("name", ["E5M2", "E5M2:5", "E6M5", "bf16", "fp32", "Q8.13", "E11M20", "fp64"])
def test_float64_is_rounded_once(name: str) -> None:
    rng = np.random.default_rng(3)
    x = np.ldexp(rng.standard_normal(300), rng.integers(-160, 140, 300))
    near = around(scalar(name)).astype(np.float64)
    x = np.concatenate([x, near, np.nextafter(near, 0), np.nextafter(near, np.inf), [5e-324, 1.7e308, np.inf]])
    x = x[~np.isnan(x)]
    for rounding in ROUNDINGS:
        exact = np.array([round_exact(float(v), scalar(name), rounding) for v in x])
        got = quantize(x, name, rounding)
        assert got.dtype == np.float64
        assert_same(got, exact, x)


def test_a_number_just_above_a_tie_is_not_rounded_twice() -> None:
    """9216 is the tie of 8192 and 10240; in float32 the sum with 2^-16 is 9216 itself, and would go to 8192."""
    total = np.array([9216.0 + 2.0**-16])
    assert quantize(total, "E5M2")[0] == 10240.0
    assert quantize(total.astype(np.float32), "E5M2")[0] == 8192.0
    assert round_exact(9216.0 + 2.0**-16, scalar("E5M2")) == 10240.0


def test_flushed_subnormals_change_nothing() -> None:
    import torch

    x = float32_patterns(5)
    wanted = {name: quantize(x, name) for name in ("bf16", "E8M20", "E6M5")}
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        got = {name: quantize(x, name) for name in wanted}
    finally:
        torch.set_flush_denormal(False)
    for name, values in wanted.items():
        assert_same(got[name], values, x)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLIDES)
def test_millions_of_patterns(name: str) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(0, 2**32, 4_000_000, dtype=np.uint32).view(np.float32)
    x = x[np.isfinite(x)]
    for rounding in ROUNDINGS:
        assert_same(quantize(x, name, rounding).astype(np.float64), expected(name, x, rounding), x)
