"""Tiles for every plan give the bits of the same sums in order; plans fit into the registers; functions and noise."""

import math

import numpy as np
import pytest
from numba import njit
from scipy import special, stats

from shoal.native import arithmetic
from shoal.native.arithmetic import key_of, normal, uniform
from shoal.native.kernels import product
from shoal.native.tile import ADD, BIAS, MASK, NARROW, PANEL, PLAIN, RELU, ZERO, Plan, host_plan, make_tile, plan_for
from tests.native.noise import fill_noise


def registers_of(plan, columns, rows):
    """Vector registers of such a tile: its sums, a row of B, and one number of A in all lanes."""
    vectors = columns // plan.vector(columns)
    return rows * vectors + vectors + 1


@pytest.mark.parametrize(
    ("features", "lanes", "registers"),
    [("avx2 fma avx512f avx512vl", 16, 32), ("avx2 fma", 8, 16), ("arm64 neon", 4, 32), ("arm64", 4, 32)],
)
def test_tiles_fit_into_the_registers(features, lanes, registers):
    plan = plan_for(set(features.split()))
    assert plan is not None and plan.lanes == lanes
    for columns, sizes in ((PANEL, plan.rows), (NARROW, plan.narrow_rows)):
        assert all(registers_of(plan, columns, rows) <= registers for rows in sizes)
        assert sizes[-1] == 1 and list(sizes) == sorted(sizes, reverse=True)


@pytest.mark.parametrize("features", ["sse4.2", "avx2", "fma avx", ""])
def test_processors_without_fma_are_unsupported(features):
    assert plan_for(set(features.split())) is None


def test_this_processor_has_a_plan():
    assert host_plan() is not None


def tile_function(rows, columns, lanes):
    tile = make_tile(rows, columns, lanes)

    @njit
    def run(like, c, ldc, a, row_step, k_step, b, ldb, depth, bias, mask, start, end):
        tile(like, c, ldc, a, row_step, k_step, b, ldb, depth, bias, mask, start, end)

    return run


@pytest.mark.parametrize(("rows", "columns"), [(12, 16), (6, 16), (3, 16), (8, 8), (1, 8)])
def test_lanes_change_no_bit(rows, columns):
    """4, 8 and 16 lanes all run here, on this processor's registers; the sums are those of a loop in order."""
    rng, depth = np.random.default_rng(0), 37
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((rows, depth), (depth, columns)))
    c, bias, mask = (rng.normal(size=shape).astype(np.float32) for shape in ((rows, columns), columns, (rows, columns)))
    for start in (ZERO, ADD, BIAS):
        for end in (PLAIN, RELU, MASK):
            found = []
            for lanes in (4, 8, 16):
                if lanes <= columns:
                    out = c.copy()
                    addresses = [x.ctypes.data for x in (out, a, b, bias, mask)]
                    tile_function(rows, columns, lanes)(
                        np.float32(0), addresses[0], columns, addresses[1], depth, 1, addresses[2], columns, depth,
                        addresses[3], addresses[4], start, end,
                    )  # fmt: skip
                    found.append(out)
            assert all(np.array_equal(found[0], other) for other in found)
            total = [np.zeros_like(c), c, np.broadcast_to(bias, c.shape)][start].astype(np.float64) + a @ b.astype(
                float
            )
            wanted = total if end == PLAIN else np.where((total if end == RELU else mask) > 0, total, 0)
            np.testing.assert_allclose(found[0], wanted, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("m", "k", "columns"), [(1, 1, 8), (7, 5, 16), (13, 800, 24), (50, 33, 40)])
def test_products_of_any_shape(dtype, m, k, columns):
    """B in rows and in panels, of which the product takes some rows; C in rows and in panels."""
    rng = np.random.default_rng(0)
    a, whole = rng.normal(size=(m, k)).astype(dtype), rng.normal(size=(k + 3, columns)).astype(dtype)
    wanted = a @ whole[2 : k + 2]
    like, item, at = dtype(0), np.dtype(dtype).itemsize, lambda x: x.ctypes.data
    for b, ldb in ((whole, columns), (panels(whole), 0)):
        for ldc in (columns, 0):
            c = np.zeros(m * columns, dtype)
            operands = (at(c), ldc, at(a), at(b), ldb, k, 1)
            product.loop(like, item, *operands, k, columns, m, m, k + 3, 2, 0, 0, ZERO, PLAIN)
            found = c.reshape(m, columns) if ldc else np.concatenate(unpacked(c, m, columns), axis=1)
            np.testing.assert_allclose(found, wanted, atol=1e-3 if dtype == np.float32 else 1e-10)


def panels(matrix):
    return np.concatenate([matrix[:, u : u + PANEL].ravel() for u in range(0, matrix.shape[1], PANEL)])


def unpacked(numbers, rows, columns):
    cuts = range(0, columns, PANEL)
    return [numbers[u * rows :][: rows * min(PANEL, columns - u)].reshape(rows, -1) for u in cuts]


@pytest.mark.parametrize(
    ("name", "oracle", "low", "high"),
    [("exp", np.exp, -80, 80), ("log", np.log, 1e-30, 1e30), ("tanh", np.tanh, -30, 30)],
)
def test_functions_are_accurate(name, oracle, low, high):
    function = getattr(arithmetic, name)
    compiled = njit(lambda x: function(x))
    x = np.geomspace(low, high, 5000) if low > 0 else np.linspace(low, high, 5001)
    x = np.concatenate([x, [1e-6, 0.1, 0.624, 0.626, 1.0]]).astype(np.float32)
    found = np.array([compiled(value) for value in x], np.float64)
    wanted = oracle(x.astype(np.float64))
    spacing = np.maximum(np.abs(np.spacing(wanted.astype(np.float32)).astype(np.float64)), 1e-9)
    assert (np.abs(found - wanted) / spacing).max() < 3
    assert compiled(2.0) == pytest.approx(float(oracle(2.0)), abs=1e-15)
    assert name == "log" or np.isnan(compiled(np.float32(np.nan)))


def test_draws_at_the_very_ends_are_finite():
    """The smallest and the largest uniform number that there are, through every kind of noise."""
    ends = np.array([0.5 * 2.0**-23, 1 - 2.0**-24], np.float32)
    exponential = njit(lambda u: -arithmetic.log(u))
    assert np.isfinite([-math.log(exponential(u)) for u in ends]).all()
    found = [quantile(u) for u in ends]
    np.testing.assert_allclose(found, stats.norm.ppf(ends.astype(np.float64)), rtol=1e-4)


def quantile(u):
    """`normal` of a given uniform number."""
    source = normal.py_func.__code__
    assert "uniform" in source.co_names
    namespace = dict(normal.py_func.__globals__, uniform=njit(lambda key, counter: np.float32(key)))
    function = type(normal.py_func)(source, namespace)
    return njit(function)(np.float32(u), 0)


def draw(seed, moment, stream, counter=0):
    return uniform(np.uint64(key_of(seed, moment, stream)), counter)


def test_noise_is_distributed_as_it_should_be():
    gumbel, gauss = np.empty((20_000, 5)), np.empty((20_000, 5))
    fill_noise(gumbel, 0, 1, 2, 3, 8)
    fill_noise(gauss, 1, 1, 2, 3, 8)
    assert stats.kstest(gumbel.ravel(), stats.gumbel_r.cdf).pvalue > 1e-3
    assert stats.kstest(gauss.ravel(), special.ndtr).pvalue > 1e-3
    words = np.array([draw(5, k, 0) for k in range(20_000)])
    assert stats.kstest(words, "uniform").pvalue > 1e-3
    pairs = np.corrcoef([[draw(5, k, s, c) for k in range(2000)] for s in range(2) for c in range(3)])
    assert np.abs(pairs - np.eye(6)).max() < 0.1


def test_noise_does_not_depend_on_what_was_compiled_before():
    """numba lets a function without flags of its own inherit those of its first caller."""
    for function in (uniform, normal):
        assert {"fastmath", "error_model"} <= function.targetoptions.keys()


def test_streams_differ():
    draws = {(seed, moment, stream): draw(seed, moment, stream)
             for seed in range(4) for moment in range(4) for stream in range(4)}  # fmt: skip
    assert len(set(draws.values())) == 64


def test_tile_plan_can_be_given():
    plan = Plan(lanes=4, rows=(2, 1))
    assert plan.vector(NARROW) == 4 and registers_of(plan, PANEL, 2) == 13
