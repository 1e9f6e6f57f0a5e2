"""Stochastic rounding: the three definitions bit by bit, their chances by χ², and nothing that depends on threads."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from shoal.errors import UserError
from shoal.numerics import quantize
from shoal.numerics.rounding.exact import neighbours, round_exact
from shoal.numerics.rounding.randomness import random_bits
from tests.numerics.numbers import SPECIALS, around, assert_same, float32_patterns, scalar

LEAST_P = 1e-4  # of a χ² test; the seeds are fixed, so a test passes always or never


@pytest.mark.parametrize("name", ["E5M2", "E5M2:5", "E5M2:6", "E6M5", "E4M3FN", "bf16:5", "Q8.13", "Q16.16", "E3M20:5"])
@pytest.mark.parametrize("variant", ["A", "B", "C"])
def test_stochastic_rounding_matches_exact_fractions(name: str, variant: str) -> None:
    format = scalar(name)
    rng = np.random.default_rng(6)
    x = np.concatenate([rng.choice(float32_patterns(), 150), rng.choice(around(format), 100), SPECIALS])
    for bits in (1, 2, 7, 30):
        for underflow in ("round", "truncate"):
            rules = {"underflow": underflow, "nan": "zero", "random_bits": bits, "variant": variant}
            got = quantize(x, format, "stochastic", seed=11, call=5, **rules)
            exact = [
                round_exact(float(v), format, "stochastic", random=random_bits(11, 5, i, bits), **rules)
                for i, v in enumerate(x)
            ]
            assert_same(got.astype(np.float64), np.array(exact), x)


@pytest.mark.parametrize("name", ["E5M2", "E5M2:5", "fp32", "Q16.16"])
@pytest.mark.parametrize("variant", ["A", "B", "C"])
def test_stochastic_rounding_of_float64_matches_exact_fractions(name: str, variant: str) -> None:
    rng = np.random.default_rng(7)
    x = np.ldexp(rng.standard_normal(200), rng.integers(-60, 20, 200))
    for bits in (3, 31, 57):
        rules = {"random_bits": bits, "variant": variant}
        got = quantize(x, name, "stochastic", seed=12, **rules)
        exact = [
            round_exact(float(v), scalar(name), "stochastic", random=random_bits(12, 0, i, bits), **rules)
            for i, v in enumerate(x)
        ]
        assert_same(got, np.array(exact), x)


def test_bits_far_below_a_spacing_break_ties() -> None:
    """Variant C: 2^-10 of a spacing and very little more, with 9 random bits, goes up once in 512 times, not never."""
    x = np.full(4096, 2.0**-26 * (1 + 2.0**-23), np.float32)
    got = quantize(x, "E5M2", "stochastic", seed=1, random_bits=9, variant="C")
    ups = np.array([random_bits(1, 0, i, 9) == 2**9 - 1 for i in range(x.size)])
    assert 0 < ups.sum() < 30 and np.array_equal(got > 0, ups)


def chance(delta: Fraction, bits: int, variant: str) -> Fraction:
    """How many of the 2^bits random numbers round up."""
    if variant == "A":
        return Fraction(math.floor(delta * 2**bits), 2**bits)
    if variant == "B":
        return Fraction((math.floor(delta * 2 ** (bits + 1)) + 1) // 2, 2**bits)
    return Fraction(round(delta * 2**bits), 2**bits)


@pytest.mark.parametrize("variant", ["A", "B", "C"])
@pytest.mark.parametrize("bits", range(1, 31))
def test_probabilities_for_each_number_of_random_bits(bits: int, variant: str) -> None:
    """Eight numbers between two neighbours, 8,192 draws each: rounded up as often as the definition says."""
    draws = 2**13
    rng = np.random.default_rng(bits)
    numbers = (1 + rng.random(8) / 4).astype(np.float32)
    x = np.repeat(numbers, draws)
    ups = (quantize(x, "E5M2", "stochastic", seed=bits, random_bits=bits, variant=variant) > x).reshape(8, draws).sum(1)
    statistic, freedom = 0.0, 0
    for number, up in zip(numbers, ups, strict=True):
        p = float(chance((Fraction(float(number)) - 1) * 4, bits, variant))
        if p in (0.0, 1.0):
            assert up == p * draws
            continue
        statistic += (up - draws * p) ** 2 / (draws * p * (1 - p))
        freedom += 1
    assert freedom == 0 or stats.chi2.sf(statistic, freedom) > LEAST_P


@pytest.mark.parametrize("name", ["E5M2", "E5M2:5", "E5M2:6", "Q8.8"])
def test_unbiased_with_all_discarded_bits(name: str) -> None:
    """The mean of many roundings of one number is that number, also below the smallest value."""
    format = scalar(name)
    draws = 2**16
    for factor in (0.3, 0.7, 1.1, 2.3, 37.7):
        value = float(np.float32(format.min_positive * factor))
        lo, hi, _ = neighbours(Fraction(value), format)
        p = float((Fraction(value) - lo) / (hi - lo))
        ups = (quantize(np.full(draws, value, np.float32), format, "stochastic", seed=3) > value).sum()
        assert abs(ups - draws * p) < 5 * math.sqrt(draws * p * (1 - p))


def test_variants_agree_where_all_bits_are_covered() -> None:
    """23 - 2 bits are dropped; from there on A, B and C are the same."""
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    a, b, c = (quantize(x, "E5M2", "stochastic", seed=1, random_bits=21, variant=variant) for variant in "ABC")
    assert np.array_equal(a, b) and np.array_equal(a, c)
    assert not np.array_equal(a, quantize(x, "E5M2", "stochastic", seed=1, random_bits=3))


@pytest.mark.parametrize("name", ["E5M2", "E5M2:5", "Q8.13"])
def test_values_of_the_format_are_unchanged(name: str) -> None:
    values = scalar(name).values()[:: 1 if name != "Q8.13" else 97].astype(np.float32)
    for variant in "ABC":
        assert np.array_equal(quantize(values, name, "stochastic", seed=2, random_bits=1, variant=variant), values)


def test_threads_and_offsets_change_nothing() -> None:
    x = np.random.default_rng(1).standard_normal(200_003).astype(np.float32)
    whole = quantize(x, "E5M2:5", "stochastic", seed=9, threads=1)
    for threads in (2, 3, 7):
        assert np.array_equal(quantize(x, "E5M2:5", "stochastic", seed=9, threads=threads), whole)
    cuts = [0, 1, 4096, 4097, 77_777, x.size]
    pieces = [quantize(x[a:b], "E5M2:5", "stochastic", seed=9, offset=a) for a, b in pairwise(cuts)]
    assert np.array_equal(np.concatenate(pieces), whole)
    turned = np.asfortranarray(x[:200_000].reshape(400, 500))
    assert np.array_equal(quantize(turned, "E5M2:5", "stochastic", seed=9).reshape(-1), whole[:200_000])


def test_indices_beyond_32_bits_have_distinct_keys() -> None:
    x = np.full(3000, 1.1, np.float32)
    first = 2**32 - 1000
    across = quantize(x, "E5M2", "stochastic", seed=4, offset=first)
    exact = []
    for i, value in enumerate(x):
        random = random_bits(4, 0, first + i, 30)
        exact.append(round_exact(float(value), scalar("E5M2"), "stochastic", random=random, random_bits=30))
    assert np.array_equal(across, np.array(exact, np.float32))
    assert np.array_equal(
        across, quantize(x.astype(np.float64), "E5M2", "stochastic", seed=4, offset=first, random_bits=30)
    )
    assert not np.array_equal(across[1000:], quantize(x[1000:], "E5M2", "stochastic", seed=4))


def test_wrong_arguments_of_stochastic_rounding_are_refused() -> None:
    x = np.ones(3, np.float32)
    for wrong in (
        {},
        {"seed": 1, "random_bits": 0},
        {"seed": 1, "random_bits": 31},
        {"seed": 1, "variant": "D"},
        {"seed": 1.5},
        {"seed": 1, "offset": -1},
    ):
        with pytest.raises(UserError):
            quantize(x, "E5M2", "stochastic", **wrong)
    assert np.array_equal(quantize(x.astype(np.float64), "E5M2", "stochastic", seed=1, random_bits=60), x)
