"""Integer products against numpy's, on every kind of instruction that this processor has."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from shoal.inference.activation_kernels import TANH
from shoal.inference.engine import NATIVE_INPUTS
from shoal.inference.int8_kernels import (
    AVX2,
    GROUP,
    PORTABLE,
    TILE,
    VNNI,
    activate_row,
    available,
    kinds_for,
    lay_out,
    product_kind,
    products,
    quantize_row,
)


def most(kind):
    """The largest weight: with AVX2, 2 · 255 · 63 is the most that fits into 16 bits."""
    return 63 if kind == AVX2 else 127


def sums_of(kind, x, weight):
    """(B, I) unsigned by (I, U) signed through the kernel, and the sums of the weights."""
    (rows, inputs), units = x.shape, weight.shape[1]
    groups, tiles = -(-inputs // GROUP), -(-units // TILE)
    packed = np.full((1, tiles, groups, TILE), 99, np.uint32)
    weight_sums = np.full((1, tiles * TILE), 99, np.int32)
    lay_out(weight[None], packed, weight_sums)
    packed = packed.reshape(-1).view(np.uint8)
    packed.flags.writeable = False
    step = groups * GROUP + 8
    codes = np.full((rows, step), 201, np.uint8)  # what is behind a row must not count
    codes[:, :inputs] = x
    sums = np.full((rows, tiles * TILE), -1, np.int32)
    products(kind, rows, codes.reshape(-1), step, packed, 0, groups, tiles, sums.reshape(-1), tiles * TILE)
    assert not sums[:, units:].any() and not weight_sums[0, units:].any()
    return sums[:, :units], weight_sums[0, :units]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), st.integers(1, 70), st.integers(1, 40), st.integers(0, 2**32), st.booleans())
def test_sums_match_numpy(rows, inputs, units, seed, extreme):
    rng = np.random.default_rng(seed)
    x = rng.choice([0, 255], (rows, inputs)) if extreme else rng.integers(0, 256, (rows, inputs))
    x = x.astype(np.uint8)
    for kind in available():
        ends, shape = [-most(kind), most(kind)], (inputs, units)
        weight = rng.choice(ends, shape) if extreme else rng.integers(ends[0], ends[1] + 1, shape)
        weight = weight.astype(np.int8)
        sums, weight_sums = sums_of(kind, x, weight)
        assert np.array_equal(sums, x.astype(np.int32) @ weight.astype(np.int32))
        assert np.array_equal(weight_sums, weight.sum(0, dtype=np.int32))


@pytest.mark.parametrize("kind", available())
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_sums(kind, sign):
    """Of as many inputs as a layer may have: one more bit would not fit."""
    x = np.full((5, NATIVE_INPUTS), 255, np.uint8)
    weight = np.full((NATIVE_INPUTS, 17), sign * most(kind), np.int8)
    sums, _ = sums_of(kind, x, weight)
    assert (sums == sign * NATIVE_INPUTS * 255 * most(kind)).all()


@settings(max_examples=100, deadline=None)
@given(
    arrays.arrays(np.float32, st.integers(1, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32)),
    st.sampled_from([-1, 0, 1]),
)
def test_row_quantization_matches_numpy(x, side):
    x = np.abs(x) * np.float32(side) if side else x
    f, codes = np.float32, np.zeros(x.size, np.uint8)
    scale, zero = quantize_row(x, codes)
    low, high = min(x.min(), f(0)), max(x.max(), f(0))
    expected = np.maximum((high - low) / f(255), np.finfo(f).tiny)
    assert f(scale) == expected and zero == np.rint(-low / expected)
    assert np.array_equal(codes, np.clip(np.rint(x / expected) + f(zero), 0, 255))


def test_tanh_is_accurate_to_float32():
    x = np.concatenate([np.linspace(-12, 12, 40_001), np.geomspace(1e-30, 1, 20_000), [1e38, np.inf]])
    x = x.astype(np.float32)
    exact, y = np.tanh(x.astype(np.float64)), x.copy()
    activate_row(y, TANH)
    assert (np.abs(y - exact) / np.spacing(np.abs(exact).astype(np.float32))).max() < 0.51


@pytest.mark.parametrize(
    ("features", "kinds"),
    [
        ("avx2 avx512f avx512vl avx512vnni", (VNNI, AVX2, PORTABLE)),
        ("avx2 avxvnni", (VNNI, AVX2, PORTABLE)),
        ("avx2", (AVX2, PORTABLE)),
        ("avx2 avx512f avx512vnni", (AVX2, PORTABLE)),
        ("neon arm64", (PORTABLE,)),
        ("", (PORTABLE,)),
    ],
)
def test_kernels_follow_processor_features(features, kinds):
    assert kinds_for(set(features.split())) == kinds


def test_eight_bit_weights_are_not_added_in_16_bits(monkeypatch):
    monkeypatch.setattr("shoal.inference.int8_kernels.available", lambda: (AVX2, PORTABLE))
    assert (product_kind(7), product_kind(8)) == (AVX2, PORTABLE)


@pytest.mark.slow
def test_generic_processor_gives_the_same_results(tmp_path):
    """Compiled for nothing but the basics, all is the same: minutes after a new version of numba."""
    code = (
        "import pytest, sys; from shoal.inference.int8_kernels import available; assert available() == (0,);"
        "sys.exit(pytest.main(['-q', '-x', 'tests/inference/test_native_engine.py']))"
    )
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic", "SHOAL_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
