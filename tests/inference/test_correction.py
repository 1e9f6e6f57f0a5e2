"""Corrections on recorded states, against plain loops."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.inference import Head, Linear, Policy
from shoal.inference.correction import NOTHING, Correction, calibrated, corrected, round_by_output
from shoal.inference.grid import Grid
from shoal.inference.layers import Conv2d, activate, convolve, layer_codes
from shoal.inference.native_engine import pack_codes, unpack_codes
from tests.inference.policies import image_policy, observations, random_policy

OUTPUT = Correction(rounding="output-error")
POLICIES = {
    "one agent": random_policy(hidden=(16, 12)),
    "team": random_policy(agents=3, observation=(6, 4, 5), action=(2, 4, 3), normalised=True),
    "tanh, boxes": random_policy(head="box", activation="tanh"),
    "images": image_policy(),
}


def pre_activations(layer, x, weight, bias):
    """Of one layer, (N, B, …), in float64."""
    if isinstance(layer, Conv2d):
        return convolve(x[0], weight, layer.stride, layer.padding)[None] + bias[:, None, None]
    return x.reshape(*x.shape[:2], -1) @ weight + bias[:, None]


def plain(policy, states, bits, rounded):
    """Mean pre-activations in full precision, and biases that restore them: (N, U) each, layer by layer."""
    x = narrow = policy.network_input(states)
    if policy.image:
        x = narrow = x.reshape(1, -1, *policy.image)
    means, biases = [], []
    for layer in policy.layers:
        codes, grid = layer_codes(layer, bits)
        small, wide = grid.values(codes.astype(np.float64)), layer.weight.astype(np.float64)
        narrow, bias = rounded(layer, narrow), layer.bias.astype(np.float64)
        full, low = pre_activations(layer, x, wide, bias), pre_activations(layer, narrow, small, bias)
        if isinstance(layer, Conv2d):
            full_mean, low_mean = full.mean((0, 1, 3, 4)), low.mean((0, 1, 3, 4))
        else:
            full_mean, low_mean = full.mean(1), low.mean(1)
        means.append(full_mean)
        biases.append(bias + full_mean - low_mean)
        x = activate(full, layer.activation)
        narrow = activate(pre_activations(layer, narrow, small, biases[-1]), layer.activation)
    return means, biases


ROUNDED = {
    "packed": lambda layer, x: x,
    "int8": lambda layer, x: Grid.of_numbers(x.astype(np.float32), 8, keep=(0, 1)).round(x.astype(np.float32)),
    "static-int8": lambda layer, x: layer.quantized.input.round(x.astype(np.float32)),
}


@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.parametrize("name", POLICIES)
def test_corrected_biases_match_a_plain_loop(name, precision):
    policy = POLICIES[name]
    x = observations(policy, 100)
    if precision == "static-int8":
        policy = calibrated(policy, x, 4)
    found = corrected(policy, x, 4, by_rows=precision == "int8")
    _, biases = plain(policy, x, 4, ROUNDED[precision])
    for before, layer, bias in zip(policy.layers, found.layers, biases, strict=True):
        assert np.allclose(layer.bias, bias, atol=1e-4 if precision == "packed" else 2e-3)
        assert not np.allclose(layer.bias, before.bias, atol=2e-3)
        assert layer.weight is before.weight and layer.quantized is before.quantized


@pytest.mark.parametrize("rounding", ["nearest", "output-error"])
@pytest.mark.parametrize("name", POLICIES)
def test_mean_pre_activations_match_full_precision(name, rounding):
    policy = POLICIES[name]
    x = observations(policy, 100)
    means, _ = plain(policy, x, 3, ROUNDED["packed"])
    found = corrected(policy, x, 3, Correction(rounding=rounding))
    narrow = found.network_input(x)
    if policy.image:
        narrow = narrow.reshape(1, -1, *policy.image)
    for layer, mean in zip(found.layers, means, strict=True):
        codes, grid = layer_codes(layer, 3)
        out = pre_activations(layer, narrow, grid.values(codes.astype(np.float64)), layer.bias.astype(np.float64))
        assert np.allclose(out.mean((0, 1, 3, 4) if isinstance(layer, Conv2d) else 1), mean, atol=1e-5)
        narrow = activate(out, layer.activation)


def one_at_a_time(weight, grid, moments):
    """Round one input's weights, then solve for the best of all that are left: what the closed form must give."""
    order = np.argsort(-np.diag(moments), kind="stable")
    left, errors = weight.copy(), np.zeros_like(weight)
    for k, i in enumerate(order):
        errors[i] = grid.round(left[i : i + 1])[0] - weight[i]
        done, rest = order[: k + 1], order[k + 1 :]
        change = -np.linalg.solve(moments[np.ix_(rest, rest)], moments[np.ix_(rest, done)] @ errors[done])
        left[rest] = weight[rest] + change
    return weight + errors


@pytest.mark.parametrize("centred", [True, False])
def test_output_error_rounding_matches_sequential_least_squares(centred):
    rng = np.random.default_rng(3)
    rows = (rng.standard_normal((400, 70)) @ rng.standard_normal((70, 70)) + 1).astype(np.float32)
    narrow = rows + 0.1 * rng.standard_normal(rows.shape).astype(np.float32)
    weight = rng.standard_normal((70, 5)).astype(np.float32)
    grid = Grid.of_numbers(weight, 4, "symmetric", keep=(1,))
    x, y = (seen.astype(np.float64) - (seen.mean(0, np.float64) if centred else 0) for seen in (rows, narrow))
    moments = y.T @ y / 400
    moments += 0.01 * np.trace(moments) / 70 * np.eye(70)
    target = weight + np.linalg.solve(moments, y.T @ (x - y) / 400 @ weight.astype(np.float64))
    found = round_by_output(weight, grid, rows, narrow, centred)
    assert np.allclose(found, one_at_a_time(target, grid, moments), atol=1e-4)
    errors = [np.square(x @ weight - y @ other).mean() for other in (found, grid.round(weight))]
    assert errors[0] < 0.5 * errors[1]


def test_constant_input_is_rounded_to_nearest():
    weight = np.array([[0.3], [0.9]], np.float32)
    grid = Grid.of_numbers(weight, 3, "symmetric")
    same = np.ones((9, 2), np.float32)
    assert np.array_equal(round_by_output(weight, grid, same, same), grid.round(weight.astype(np.float64)).astype("f4"))


def close_call():
    """Q values of two actions that are large, positive and nearly the same: a shift of either changes the choice."""
    rng = np.random.default_rng(0)
    first = rng.standard_normal((1, 4, 64)).astype(np.float32)
    second = (rng.standard_normal((1, 64, 64)) / 8 + 0.05).astype(np.float32)
    both = np.abs(rng.standard_normal((64, 1))) + 0.02 * rng.standard_normal((64, 2))
    layers = (
        Linear(first, rng.standard_normal((1, 64)).astype(np.float32), "relu"),
        Linear(second, np.zeros((1, 64), np.float32), "relu"),
        Linear(both[None].astype(np.float32), np.zeros((1, 2), np.float32)),
    )
    policy = Policy(layers, Head("argmax"), (4,), (2,), ("agent",))
    x = rng.standard_normal((3000, 1, 4)).astype(np.float32)
    middle = (policy.outputs(x)[..., 0] - policy.outputs(x)[..., 1]).mean()
    last = replace(layers[-1], bias=np.array([[-middle / 2, middle / 2]], np.float32))
    return replace(policy, layers=(*layers[:-1], last)).check(), x


def test_corrections_restore_the_choices_of_a_dqn():
    policy, x = close_call()
    states, others = x[:2000], x[2000:]
    expected = policy.reference(others)

    def agreement(correction):
        found = corrected(policy, states, 4, correction)
        layers = []
        for layer in found.layers:
            codes, grid = layer_codes(layer, 4)
            layers.append(replace(layer, weight=grid.values(codes.astype(np.float32)), quantized=None))
        return (replace(found, layers=tuple(layers)).reference(others) == expected).mean()

    nearest, bias, output = map(agreement, (NOTHING, Correction(), OUTPUT))
    assert nearest < 0.6 and bias > nearest + 0.1 and output > bias + 0.05


def test_output_error_rounded_weights_are_stored_unchanged():
    policy = POLICIES["team"]
    found = corrected(policy, observations(policy, 100), 4, OUTPUT)
    codes = [layer_codes(layer, 4)[0] for layer in found.layers]
    nearest = [layer_codes(layer, 4)[0] for layer in policy.layers]
    packed = unpack_codes(pack_codes(found, 4), found, 4)
    for layer, own, before, stored in zip(found.layers, codes, nearest, packed, strict=True):
        grid = layer.quantized.weight
        assert np.array_equal(grid.values(own.astype(np.float32)), layer.weight) and (own != before).any()
        assert np.array_equal(stored["weight"], own) and np.array_equal(stored["bias"], layer.bias)


def test_wrong_corrections_are_refused():
    assert not NOTHING and Correction() and Correction(False, "output-error")
    with pytest.raises(UserError, match="`rounding`"):
        Correction(rounding="up")
