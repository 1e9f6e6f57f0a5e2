"""One affine grid: against exact fractions, numpy against torch, and fast implementations against the plain one."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shoal.inference import Grid, Head, Linear, Policy, Quantized, make_engine
from shoal.inference.form import Form
from shoal.inference.graph import build
from shoal.inference.grid import TOO_SMALL, code_range, encode, value_range
from shoal.inference.layers import layer_codes
from shoal.inference.runtime import new_session
from shoal.quantization.affine import Quantizer, codes, simulate
from shoal.quantization.qat import Qat, frozen_layers
from tests.inference.policies import image_policy
from tests.inference.simulated import row_grid

KINDS = ("asymmetric", "symmetric", "paper")
numbers = st.lists(st.floats(-(2.0**90), 2.0**90, width=32), min_size=1, max_size=8)


def scheme_of(bits, kind):
    return Quantizer(bits, "paper" if kind == "paper" else "standard", symmetric=kind == "symmetric")


def drawn(seed=0, shape=(3, 40, 5)):
    """Numbers of different ranges along the first and last axes, some columns of which are zero."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 10 ** rng.uniform(-3, 3, (shape[0], 1, shape[2])) + rng.standard_normal(shape[2])
    x[0, :, 1] = 0
    return x.astype(np.float32)


@settings(max_examples=150, deadline=None)
@given(numbers, st.integers(2, 16), st.sampled_from(KINDS))
def test_codes_and_values_match_exact_fractions(listed, bits, kind):
    x = np.array(listed, np.float32)
    grid = Grid.of_numbers(x, bits, kind)
    exact = [Fraction(float(value)) for value in x]
    low, high = min(*exact, Fraction(0)), max(*exact, Fraction(0))
    lowest, highest = code_range(bits, kind)
    steps = 2**bits if kind == "paper" else highest
    ideal = (max(-low, high) if kind == "symmetric" else high - low) / steps
    if ideal < Fraction(2) ** -125:
        assert not x.any() or ideal > Fraction(2) ** -127 or float(grid.scale[0]) == 1
        return
    scale, zero = Fraction(float(grid.scale[0])), int(grid.zero_point[0])
    assert abs(scale - ideal) <= ideal / 2**24
    assert zero == (min(round(-low / scale), highest) if kind == "asymmetric" else 0)
    expected = [min(max(round(value / scale) + zero, lowest), highest) for value in exact]
    wide = x.astype(np.float64)
    assert grid.codes(wide).tolist() == expected
    assert grid.round(wide).tolist() == [float((code - zero) * scale) for code in expected]
    in_torch = simulate(torch.from_numpy(x), scheme_of(bits, kind))
    assert in_torch.tolist() == grid.round(wide).astype(np.float32).tolist()


@pytest.mark.parametrize("keep", [(), (0,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kinds", [np.float32, np.float64])
def test_numpy_and_torch_agree(kind, keep, kinds):
    x = drawn().astype(kinds)
    for bits in (2, 3, 8, 16):
        ours, theirs = Grid.of_numbers(x, bits, kind, keep), Grid.of_numbers(torch.from_numpy(x), bits, kind, keep)
        assert ours.scale.shape == theirs.scale.shape and ours.scale.dtype == x.dtype
        assert ours.zero_point.dtype == np.int32 and theirs.zero_point.dtype == torch.int32
        assert np.array_equal(ours.scale, theirs.scale) and np.array_equal(ours.zero_point, theirs.zero_point)
        assert np.array_equal(ours.codes(x), theirs.codes(torch.from_numpy(x)))
        assert np.array_equal(ours.round(x), theirs.round(torch.from_numpy(x)))
        if kind != "paper":
            assert np.array_equal(ours.encode(x), theirs.encode(torch.from_numpy(x)))
            assert str(theirs.encode(torch.from_numpy(x)).dtype) == f"torch.{ours.encode(x).dtype}"


def test_each_channel_is_as_if_alone():
    x = drawn()
    for kind in KINDS:
        whole = Grid.of_numbers(x, 4, kind, (0, 2))
        for n in range(3):
            for u in range(5):
                alone = Grid.of_numbers(x[n, :, u], 4, kind)
                assert np.array_equal(whole.round(x)[n, :, u], alone.round(x[n, :, u]))
                own = whole.part(slice(n, n + 1), slice(None), slice(u, u + 1))
                assert (own.scale.item(), own.zero_point.item()) == (alone.scale.item(), alone.zero_point.item())


def test_constructors_agree():
    x = drawn()
    low, high = value_range(x, (0,))
    for kind in KINDS:
        assert np.array_equal(Grid.of_range(low, high, 5, kind).scale, Grid.of_numbers(x, 5, kind, (0,)).scale)
    largest = np.abs(x).max((1, 2), keepdims=True)
    assert np.array_equal(Grid.of_magnitude(largest, 5).scale, Grid.of_numbers(x, 5, "symmetric", (0,)).scale)


def test_float32_quotients_are_off_by_one_next_to_ties_only():
    x = drawn(shape=(3, 4000, 5))
    for bits in (4, 8, 16):
        grid = Grid.of_numbers(x, bits, keep=(0,))
        fast, exact = grid.codes(x), grid.codes(x.astype(np.float64))
        quotient = x / grid.scale.astype(np.float64)
        tie = np.abs(quotient - np.floor(quotient) - 0.5) < 1e-7 * np.abs(quotient)
        assert np.abs(fast - exact).max() <= 1 and np.array_equal(fast[~tie], exact[~tie])


# Every fast implementation.


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_compiled_encoder(bits):
    for x in (drawn(bits), np.float32([[[TOO_SMALL, 3e38, -1e-38], [0.0, -3e38, 1e-45]]])):
        plain = Grid.of_numbers(x, bits, "symmetric", (0, 2))
        found, grid = encode(x, bits)
        assert np.array_equal(found, plain.encode(x)) and found.dtype == plain.encode(x).dtype == np.int8
        assert np.array_equal(grid.scale, plain.scale) and not grid.zero_point.any()
        assert (grid.bits, grid.kind) == (bits, "symmetric")
    layer = image_policy().layers[0]
    plain = Grid.of_numbers(layer.weight, bits, "symmetric", (0,))
    found, grid = layer_codes(layer, bits)
    assert np.array_equal(found, plain.encode(layer.weight)) and np.array_equal(grid.scale, plain.scale)


@pytest.mark.parametrize("bits", range(2, 17))
def test_simulation_and_integer_codes_of_post_training_quantization(bits):
    x = torch.from_numpy(drawn(bits))
    for kind in KINDS:
        grid, quantizer = Grid.of_numbers(x, bits, kind, (0, 2)), scheme_of(bits, kind)
        expected = grid.round(x.double()).float()
        assert torch.equal(simulate(x, quantizer, (0, 2)), expected)
        if kind != "paper":
            found = codes(x, quantizer, (0, 2))
            assert torch.equal(found.codes.double(), grid.codes(x.double())) and torch.equal(found.values(), expected)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_frozen_grids_of_training_match_engines(bits):
    torch.manual_seed(0)
    for layer, x, keep, shape in (
        (nn.Linear(4, 3), torch.randn(20, 4), (0,), (1, 1, -1)),
        (nn.Conv2d(2, 3, 2), torch.randn(5, 2, 6, 6), (0,), (-1, 1, 1, 1)),
    ):
        qat = Qat({"network": layer}, bits, 0.0)
        layer(x)
        qat.freeze()
        (frozen,) = frozen_layers(layer)
        weight = layer.weight.detach().numpy()
        assert np.array_equal(
            frozen.weight.scale, Grid.of_numbers(weight, bits, "symmetric", keep).scale.reshape(shape)
        )
        plain = Grid.of_numbers(x.numpy(), bits)
        assert frozen.input.scale.item() == plain.scale.item() and frozen.input.scale.shape == (1, 1, 1)
        assert frozen.input.zero_point.item() == plain.zero_point.item()
        tap = qat.layers["network.layer"]
        assert np.array_equal(
            tap.input(x, frozen=True), frozen.input.round(x.numpy().reshape(1, 1, -1)).reshape(x.shape)
        )


def passing_on(grid, agents, width):
    """A policy that does nothing but round its input to the grid."""
    one = Grid(np.ones((agents, 1, width), np.float32), np.zeros((agents, 1, width), np.int32), 2, "symmetric")
    weight = np.tile(np.eye(width, dtype=np.float32), (agents, 1, 1))
    layer = Linear(weight, np.zeros((agents, width), np.float32), quantized=Quantized(one, grid))
    names = tuple(f"agent_{n}" for n in range(agents))
    return Policy((layer,), Head("box"), (width,) * agents, (width,) * agents, names).check()


@pytest.mark.parametrize("bits", [2, 5, 8])
def test_frozen_grids_in_onnx_graphs(bits):
    x = drawn(bits)  # (N, B, I)
    grid = Grid.of_numbers(0.7 * x, bits, keep=(0,))  # so that some numbers are beyond its ends
    policy, expected = passing_on(grid, *x.shape[::2]), grid.round(x).transpose(1, 0, 2)
    rows = np.ascontiguousarray(x.transpose(1, 0, 2))
    assert np.array_equal(policy.outputs(rows, np.float32), expected)
    assert np.array_equal(make_engine(policy, "onnx", "float32").act(rows), expected)
    static = new_session(build(policy, Form("static-int8", 2)).SerializeToString())
    assert np.array_equal(static.run(None, {"observation": rows})[0], expected)


@pytest.mark.parametrize("bits", range(2, 9))
def test_weights_on_grids_in_onnx_graphs(bits):
    """A batch that is the identity gives the weights back."""
    weight = drawn(bits, (1, 6, 4))
    grid = Grid.of_numbers(weight, bits, "symmetric", (0, 2))
    policy = Policy((Linear(weight, np.zeros((1, 4), np.float32)),), Head("box"), (6,), (4,), ("agent",))
    frozen = replace(policy, layers=(replace(policy.layers[0], quantized=Quantized(grid)),))
    rows, expected = np.eye(6, dtype=np.float32), grid.round(weight)[0]
    assert np.array_equal(make_engine(frozen, "numba").act(rows[:, None])[:, 0], expected)
    assert np.array_equal(make_engine(frozen, "onnx", "float32").act(rows[:, None])[:, 0], expected)
    for precision in ("packed",) if bits < 8 else ():
        for one in (policy, frozen):
            session = new_session(build(one, Form(precision, bits)).SerializeToString())
            assert np.array_equal(session.run(None, {"observation": rows})[0], expected)


def test_grids_of_rows_in_int8_graphs_differ_by_float32_rounding_only():
    x = drawn()
    graph, plain = row_grid(x, (0, 1)), Grid.of_numbers(x, 8, keep=(0, 1))
    assert np.allclose(graph.scale, plain.scale, rtol=2**-22, atol=0)
    assert np.abs(graph.zero_point - plain.zero_point).max() <= 1 and np.abs(graph.codes(x) - plain.codes(x)).max() <= 1


# What all have in common.


def test_ties_go_to_the_even_code_everywhere():
    x = np.float32([-3, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3]).reshape(1, -1, 1)  # 3 bits: the scale is 1
    expected = [-3, -2, -2, 0, 0, 2, 2, 3]
    grid, tensor = Grid.of_numbers(x, 3, "symmetric", (0, 2)), torch.from_numpy(x)
    assert grid.codes(x).ravel().tolist() == encode(x, 3)[0].ravel().tolist() == expected
    assert simulate(tensor, Quantizer(3)).flatten().tolist() == expected
    assert Grid.of_numbers(tensor, 3, "symmetric", (0, 2)).round(tensor).flatten().tolist() == expected
    asymmetric = Grid(np.ones((1, 1, 1), np.float32), np.full((1, 1, 1), 3, np.int32), 3)
    assert asymmetric.round(x).ravel().tolist() == expected
    rows = x.reshape(-1, 1, 1)
    assert make_engine(passing_on(asymmetric, 1, 1), "onnx").act(rows).ravel().tolist() == expected


@pytest.mark.parametrize("kinds", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_empty_range_has_scale_one(kind, kinds):
    for x in (np.zeros((1, 4, 1), kinds), np.full((1, 4, 1), 1e-45, kinds)):
        grid, tensor = Grid.of_numbers(x, 8, kind, (0, 2)), torch.from_numpy(x)
        assert grid.scale.tolist() == [[[1]]] and grid.zero_point.tolist() == [[[0]]]
        assert not grid.codes(x).any() and not grid.round(x).any()
        assert torch.equal(simulate(tensor, scheme_of(8, kind)), tensor)  # which quantizes nothing there
        assert not Grid.of_numbers(tensor, 8, kind, (0, 2)).round(tensor).any() or kind == "paper"
        found, compiled = encode(x, 8)
        assert not found.any() and compiled.scale.tolist() == [[[1]]]


@pytest.mark.parametrize("bits", [2, 8, 16])
def test_range_ends_and_zero_have_codes(bits):
    x = np.float32([-1.0, 0.0, 3.0])
    asymmetric, symmetric = Grid.of_numbers(x, bits), Grid.of_numbers(x, bits, "symmetric")
    assert asymmetric.codes(x).tolist() == [0, asymmetric.zero_point[0], 2**bits - 1]
    assert symmetric.codes(-x)[2] == 1 - 2 ** (bits - 1) and symmetric.codes(x)[2] == 2 ** (bits - 1) - 1
    assert asymmetric.round(x)[1] == symmetric.round(x)[1] == 0
    assert asymmetric.codes(100 * x).tolist()[::2] == [0, 2**bits - 1]
