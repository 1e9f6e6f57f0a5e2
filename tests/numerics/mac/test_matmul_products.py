"""Multipliers: every pair of codes of every format of up to 8 bits, in every configuration."""

import math

import numpy as np
import pytest

from shoal.numerics import FixedFormat, FixedMultiplier, FloatFormat, FloatMultiplier, MacUnit, matmul, parse, parse_mac
from shoal.numerics.mac.exact import Events, dot_exact, multiply_exact
from tests.numerics.codes import all_products
from tests.numerics.numbers import MULTIPLIER_INPUTS, ROUNDINGS, same, scalar

FORMATS = [FloatFormat(e, m) for e in range(1, 7) for m in range(1, 8 - e)]
CFGS = range(1, 7)


def values(multiplier: FloatMultiplier) -> np.ndarray:
    format = multiplier.a
    return np.array([format.decode(code) for code in range(2**format.width)])


def by_reference(multiplier: FloatMultiplier, pairs: list[tuple[int, int]]) -> np.ndarray:
    decoded = values(multiplier).tolist()
    return np.array([multiply_exact(decoded[i], decoded[j], multiplier, Events()) for i, j in pairs])


@pytest.mark.parametrize("cfg", CFGS)
@pytest.mark.parametrize("format", FORMATS, ids=repr)
def test_every_pair_of_codes(format: FloatFormat, cfg: int) -> None:
    """matmul with K = 1 against the integer reference; the sign of zero products is lost in a sum that starts at +0."""
    multiplier = FloatMultiplier(format, cfg=cfg)
    codes = values(multiplier).astype(np.float32)
    wide = FloatFormat(7 if format.exponent <= 5 else 8, 15)  # the fast loops, and those in float64
    got = matmul(codes[:, None], codes[None, :], MacUnit(multiplier, wide), cast=False)
    assert same(got.astype(np.float64), all_products(format, cfg) + 0.0).all()


@pytest.mark.parametrize("cfg", CFGS)
@pytest.mark.parametrize("format", FORMATS, ids=repr)
def test_integer_reference_matches_the_exact_one(format: FloatFormat, cfg: int) -> None:
    multiplier = FloatMultiplier(format, cfg=cfg)
    rng = np.random.default_rng(cfg)
    pairs = [tuple(pair) for pair in rng.integers(0, 2**format.width, (300, 2)).tolist()]
    pairs += [(i, j) for i in range(6) for j in range(6)]
    table = all_products(format, cfg)
    assert same(by_reference(multiplier, pairs), np.array([table[pair] for pair in pairs])).all()


@pytest.mark.slow
@pytest.mark.parametrize("cfg", CFGS)
@pytest.mark.parametrize("name", MULTIPLIER_INPUTS)
def test_integer_reference_matches_the_exact_one_exhaustively(name: str, cfg: int) -> None:
    format = scalar(name)
    assert isinstance(format, FloatFormat)
    multiplier = FloatMultiplier(format, cfg=cfg)
    pairs = [(i, j) for i in range(2**format.width) for j in range(2 ** (format.width - 1))]
    expected = all_products(format, cfg)[:, : 2 ** (format.width - 1)].reshape(-1)
    assert same(by_reference(multiplier, pairs), expected).all()


@pytest.mark.parametrize("name", MULTIPLIER_INPUTS)
def test_product_formats_and_closure(name: str) -> None:
    """CFG-5 and CFG-6 products are all values of the product format; what CFG-3 and CFG-4 lose is what was counted."""
    format = scalar(name)
    assert isinstance(format, FloatFormat) and format.bias is not None
    lost = {1: 1, 2: 16, 3: 97}[format.mantissa]
    overflow = {1: 0, 2: 1, 3: 19}[format.mantissa]
    for cfg in (3, 4, 5, 6):
        for bias, underflows, overflows in [
            ("sum", lost if cfg <= 4 else 0, 0),
            ("ieee", {1: 0, 2: 5, 3: 45}[format.mantissa] if cfg <= 4 else 0, 0 if cfg == 3 else overflow),
        ]:
            multiplier = FloatMultiplier(format, cfg=cfg, product_bias=bias)
            product = multiplier.product
            assert (product.exponent, product.mantissa) == (format.exponent + 1, 2 * format.mantissa + 1)
            assert product.bias == (2 * format.bias if bias == "sum" else 2**format.exponent - 1)
            magnitudes = values(multiplier)[: 2 ** (format.width - 1)]
            magnitudes = magnitudes[np.isfinite(magnitudes) & (magnitudes > 0)]
            exact = np.outer(magnitudes, magnitudes)
            assert (exact < product.min_positive).sum() == underflows
            assert (exact > product.max).sum() == overflows


@pytest.mark.parametrize(
    ("name", "expected"), [("E4M2", 272), ("E4M3", 1449), ("E5M1", 99), ("E5M2", 632), ("E6M1", 211)]
)
def test_values_flushed_by_cfg_2(name: str, expected: int) -> None:
    format = scalar(name)
    assert isinstance(format, FloatFormat)
    half = 2 ** (format.width - 1)
    first, second = (all_products(format, cfg)[:half, :half] for cfg in (1, 2))
    assert ((first > 0) & (second == 0)).sum() == expected


@pytest.mark.parametrize(("name", "before", "grid"), [("E4M2", 14, 16), ("E4M3", 14, 42), ("E5M1", 0, 30)])
def test_flush_options_of_cfg_2(name: str, before: int, grid: int) -> None:
    """How many pairs differ from the default, by matmul and by the exact reference."""
    format = scalar(name)
    assert isinstance(format, FloatFormat)
    units = {
        flush: FloatMultiplier(format, cfg=2, flush=flush)
        for flush in ("after-rounding", "before-rounding", "subnormal-grid")
    }
    magnitudes = [v for v in values(units["after-rounding"])[: 2 ** (format.width - 1)].tolist() if math.isfinite(v)]
    tables = {}
    for flush, multiplier in units.items():
        a = np.array(magnitudes, np.float32)
        tables[flush] = matmul(a[:, None], a[None, :], MacUnit(multiplier, FloatFormat(8, 15)))
    default = tables["after-rounding"]
    assert (tables["before-rounding"] != default).sum() == before
    assert (tables["subnormal-grid"] != default).sum() == grid
    for flush, multiplier in units.items():
        for i, j in np.argwhere(tables["before-rounding"] != tables["subnormal-grid"]).tolist():
            assert multiply_exact(magnitudes[i], magnitudes[j], multiplier, Events()) == tables[flush][i, j]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("flush", ["after-rounding", "before-rounding", "subnormal-grid"])
def test_overflow_in_cfg_2(flush: str, rounding: str) -> None:
    """Inward they are cut to the largest value, as everywhere."""
    multiplier = FloatMultiplier(FloatFormat(4, 4), cfg=2, flush=flush, product_rounding=rounding)
    for x in (248.0, -248.0):
        got = matmul(np.array([[x]]), np.array([[14.0]]), MacUnit(multiplier, FloatFormat(8, 15)))
        assert got == multiply_exact(x, 14.0, multiplier, Events())


def test_special_values_of_multipliers() -> None:
    nan, inf = math.nan, math.inf
    for cfg in CFGS:
        multiplier = FloatMultiplier(FloatFormat(5, 2), cfg=cfg)
        zero_inf = multiply_exact(0.0, -inf, multiplier, Events())
        assert math.isnan(zero_inf) if cfg <= 3 else zero_inf == -inf
        assert multiply_exact(-2.0, inf, multiplier, Events()) == -inf
        assert math.copysign(1, multiply_exact(-0.0, 2.0, multiplier, Events())) == -1
    zero = FloatMultiplier(FloatFormat(5, 2), cfg=5, zero_times_infinity="zero")
    assert multiply_exact(0.0, -inf, zero, Events()) == 0
    unit = MacUnit(zero, FloatFormat(6, 5))
    a = np.array([[0.0, 1.0]], np.float32)
    assert matmul(a, np.array([[inf], [2.0]], np.float32), unit) == 2
    assert matmul(a, np.array([[inf], [2.0]], np.float32), "E5M2:5+E6M5") == inf
    assert math.isnan(matmul(a, np.array([[inf], [2.0]], np.float32), "E5M2:3+E6M5")[0, 0])
    assert math.isnan(matmul(a, np.array([[nan], [2.0]], np.float32), "E5M2:3+E6M5")[0, 0])


@pytest.mark.parametrize("name", ["Q2.6+E3M2", "Q2.6+E3M2(subnormals=zero)", "Q9.6*Q1.11+E3M3"])
def test_fixed_point_zero_has_no_sign(name: str) -> None:
    """-2^-12 rounds to -0, and the product of 0 and -1, which float32 has as -0, makes +0 of it."""
    unit = parse_mac(f"{name}, rounded=False")
    a, b = np.array([[2.0**-6, 0.0]]), np.array([[-(2.0**-6)], [-1.0]])
    got = matmul(a, b, unit)
    assert got == 0 and not np.signbit(got) and np.signbit(matmul(a[:, :1], b[:1], unit))
    assert same(got, np.array([[dot_exact(a[0].tolist(), b[:, 0].tolist(), unit)[0]]])).all()


def test_two_operand_formats() -> None:
    multiplier = FloatMultiplier(FloatFormat(4, 3), FloatFormat(5, 2), cfg=5)
    assert repr(multiplier) == "E4M3*E5M2:5"
    assert multiplier.formats == (parse("E4M3:5"), parse("E5M2:5"))
    assert (multiplier.product.exponent, multiplier.product.mantissa, multiplier.product.bias) == (6, 6, 22)
    assert FloatMultiplier(FloatFormat(4, 3), FloatFormat(5, 2), cfg=1).product == FloatFormat(5, 3)
    assert FloatMultiplier(FloatFormat(5, 2), FloatFormat(5, 2)).b is None
    a, b = (np.array([f.decode(c) for c in range(256)]) for f in multiplier.formats)
    got = matmul(a[:, None], b[None, :], MacUnit(multiplier, FloatFormat(8, 15)))
    finite = np.isfinite(np.outer(np.where(np.isfinite(a), 1, np.nan), np.where(np.isfinite(b), 1, np.nan)))
    exact = np.outer(np.where(np.isfinite(a), a, 0), np.where(np.isfinite(b), b, 0))
    assert (got[finite] == exact[finite]).all() and np.isinf(got[~finite]).all()


@pytest.mark.parametrize("rounding", ["nearest-even", "nearest-away", "toward-zero", "up", "down"])
def test_every_pair_of_a_fixed_format(rounding: str) -> None:
    format = FixedFormat(3, 4)
    multiplier = FixedMultiplier(format, product_rounding=rounding)
    all_values = format.values()
    got, counted = matmul(all_values[:, None], all_values[None, :], MacUnit(multiplier, format), stats=True)
    events = Events()
    expected = [[multiply_exact(x, y, multiplier, events) for y in all_values.tolist()] for x in all_values.tolist()]
    assert (got == np.array(expected)).all()
    assert (counted.saturated, counted.underflowed) == (events.saturated, events.underflowed)
    exact = MacUnit(FixedMultiplier(format, rounded=False), FixedFormat(6, 8))
    assert (matmul(all_values[:, None], all_values[None, :], exact) == np.outer(all_values, all_values)).all()
