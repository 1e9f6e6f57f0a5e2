"""Weights as whole numbers against numpy written plainly, and packed bits read one by one."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.inference import Grid, Quantized
from shoal.inference.grid import encode, fields, pack
from shoal.inference.layers import layer_codes
from tests.inference.policies import image_policy


@pytest.mark.parametrize("bits", range(2, 9))
def test_encode_matches_numpy(bits):
    weight = np.random.default_rng(bits).standard_normal((2, 7, 5)).astype(np.float32)
    weight[1, :, 3] = 0
    codes, grid = encode(weight, bits)
    scales = grid.scale[:, 0]
    most = 2 ** (bits - 1) - 1
    largest = np.abs(weight).max(1)
    expected = np.where(largest > 0, largest / np.float32(most), np.float32(1))
    assert np.array_equal(scales, expected.astype(np.float32)) and scales[1, 3] == 1
    assert np.array_equal(codes, np.clip(np.rint(weight / scales[:, None]), -most, most))
    assert np.abs(codes * scales[:, None] - weight).max() <= scales.max() / 2 * 1.001


def test_near_zero_weights_have_a_scale():
    codes, grid = encode(np.full((1, 2, 1), 1e-45, np.float32), 7)
    assert grid.scale.tolist() == [[[1.0]]] and not codes.any()


def test_bits_out_of_range():
    for bits in (1, 9):
        with pytest.raises(UserError, match=f"`bits` is {bits}, but must be from 2 to 8"):
            encode(np.ones((1, 1, 1), np.float32), bits)


def test_convolutions_have_one_scale_per_filter():
    layer = image_policy().layers[0]
    codes, grid = layer_codes(layer, 7)
    assert np.allclose(grid.scale, np.abs(layer.weight).max((1, 2, 3), keepdims=True) / 63)
    assert np.abs(codes * grid.scale - layer.weight).max() <= grid.scale.max() / 2 * 1.001


def test_frozen_codes_are_kept_if_they_fit():
    layer = image_policy().layers[-1]
    scale = np.full((1, 1, layer.outputs), 0.11, np.float32)
    for bits, kept in ((3, True), (4, True), (8, False)):
        frozen = Grid(scale, np.zeros(scale.shape, np.int32), bits, "symmetric")
        codes, grid = layer_codes(replace(layer, quantized=Quantized(frozen)), 4)
        assert np.array_equal(grid.scale, scale) is kept and np.abs(codes).max() <= 7


@pytest.mark.parametrize("bits", range(2, 8))
def test_packed_bits_read_one_by_one(bits):
    most = 2 ** (bits - 1) - 1
    codes = np.random.default_rng(bits).integers(-most, most + 1, (3, 7)).astype(np.int8)
    found = np.zeros(codes.size, int)
    for data, width in zip(pack(codes, bits), fields(bits), strict=True):
        assert len(data) == -(-codes.size * width // 8)
        for k in range(codes.size):
            per_byte = 8 // width
            found[k] = (found[k] << width) | (int(data[k // per_byte]) >> (width * (k % per_byte))) & (2**width - 1)
    assert np.array_equal(found - most, codes.ravel())
