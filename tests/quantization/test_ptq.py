"""Quantization after training: any module, in a copy, layer by layer as anyone would write it."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from shoal.envs.base import EnvSpec
from shoal.errors import UserError
from shoal.inference import Head, Linear, Policy
from shoal.inference.correction import Correction, corrected
from shoal.inference.grid import value_range
from shoal.networks.actors import Actors
from shoal.networks.critics import JointCritics
from shoal.networks.layout import Random
from shoal.quantization.affine import Quantizer, simulate
from shoal.quantization.layers import find_layers
from shoal.quantization.ptq import ModelQuantizer, calibrate, model_bytes, quantized

FOUR, EIGHT = Quantizer(4, per_channel=True), Quantizer(8, symmetric=False)
SPEC = EnvSpec("spec", ("a", "b"), (3, 4), (2, 3), True)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def test_layers_of_all_kinds_are_found_in_order():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv1d(2, 2, 3), nn.ModuleDict({"x": nn.Linear(2, 2)}))
    assert [layer.name for layer in find_layers(model)] == ["0", "1", "2.x"]
    critics = JointCritics(SPEC, (5, 6), 2, Random(0))
    found = find_layers(critics)
    assert [(layer.name, layer.channels) for layer in found] == [
        ("first", (1, 2)), ("rest.0", (0, 2)), ("rest.1", (0, 2)),
    ]  # fmt: skip
    shared = nn.Linear(2, 2)
    assert len(find_layers(nn.Sequential(shared, nn.ReLU(), shared))) == 1
    tied = nn.Sequential(shared, nn.Linear(2, 2))
    tied[1].weight = shared.weight
    with pytest.raises(UserError, match="'0' and '1' share one weight"):
        find_layers(tied)


def test_weights_and_inputs_match_plain_code():
    model, x = mlp(), torch.randn(50, 3)
    before = copy.deepcopy(model.state_dict())
    ranges = calibrate(model, lambda model: model(x))
    small = quantized(model, ModelQuantizer(FOUR, EIGHT), ranges)
    h = x
    for part in model:
        if isinstance(part, nn.Linear):
            seen = value_range(torch.cat([layer_input(model, part, x)]))
            h = simulate(h, EIGHT, ranges=seen)
            h = nn.functional.linear(h, simulate(part.weight, FOUR, (0,)), part.bias)
        else:
            h = part(h)
    assert torch.equal(small(x), h)
    assert not torch.equal(small(x), model(x))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any("forward" in vars(part) for part in model.modules())


def test_ranges_cover_all_calibration_passes():
    model = nn.Sequential(nn.Linear(2, 2))
    passes = [[-1.0, 0.5], [-0.5, 3.0], [0.1, 0.2]]
    low, high = calibrate(model, lambda model: [model(torch.tensor([x])) for x in passes])["0"]
    assert (float(low), float(high)) == (-1, 3)


def layer_input(model, wanted, x):
    for part in model:
        if part is wanted:
            return x
        x = part(x)
    raise AssertionError


def test_weights_only_and_edge_layers_at_another_width():
    model = mlp()
    edge = Quantizer(8, per_channel=True)
    small = quantized(model, ModelQuantizer(FOUR, first=edge, last=edge))
    for number, quantizer in ((0, edge), (2, FOUR), (4, edge)):
        assert torch.equal(small[number].weight, simulate(model[number].weight, quantizer, (0,)))
    assert not any("forward" in vars(part) for part in small.modules())
    plan = ModelQuantizer(FOUR, EIGHT, first=edge, last=edge)
    assert plan.of_layer(0, 3)[1] == Quantizer(8, symmetric=False) and plan.of_layer(1, 3)[1] == EIGHT
    assert ModelQuantizer(FOUR, first=edge).of_layer(0, 3)[1] is None


def test_convolutions_are_per_channel_by_default():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(4, 2))
    small = quantized(model, ModelQuantizer(Quantizer(3, "paper")))
    assert torch.equal(small[0].weight, simulate(model[0].weight, Quantizer(3, "paper"), (0,)))
    assert torch.equal(small[2].weight, simulate(model[2].weight, Quantizer(3, "paper")))


@pytest.mark.parametrize("per_channel", [True, False])
def test_stacked_networks_are_quantized_independently(per_channel):
    actors = Actors(SPEC, (6, 5), "categorical", Random(1))
    with torch.no_grad():
        actors.weights[1][1] *= 100  # one agent's range must not be the other's
    quantizer = Quantizer(4, per_channel=per_channel)
    x = torch.randn(2, 30, 4)
    ranges = calibrate(actors, lambda actors: actors(x))
    small = quantized(actors, ModelQuantizer(quantizer, EIGHT), ranges)
    for i in range(2):
        h = x[i]
        for k, (weight, bias) in enumerate(zip(actors.weights, actors.biases, strict=True)):
            assert ranges[str(k)][1].shape == (2, 1, 1)
            h = simulate(h, EIGHT, ranges=(ranges[str(k)][0][i], ranges[str(k)][1][i]))
            h = h @ simulate(weight[i], quantizer, (1,) if per_channel else ()) + bias[i]
            h = h.relu() if k < 2 else h
        torch.testing.assert_close(small(x)[i], h, atol=1e-5, rtol=1e-5)
    assert actors.quantizers is None


def test_only_the_chosen_agents_are_quantized():
    actors = Actors(SPEC, (6, 5), "categorical", Random(1))
    x = torch.randn(2, 30, 4)
    ranges = calibrate(actors, lambda actors: actors(x))
    all_of_them, second = ModelQuantizer(FOUR, EIGHT), ModelQuantizer(FOUR, EIGHT, networks=(1,))
    one = quantized(actors, second, ranges)(x)
    assert torch.equal(one[0], actors(x)[0]) and torch.equal(one[1], quantized(actors, all_of_them, ranges)(x)[1])
    full, small = model_bytes(actors, ModelQuantizer()), model_bytes(actors, all_of_them)
    assert model_bytes(actors, second) == pytest.approx((full + small) / 2, abs=4)
    with pytest.raises(UserError, match="`networks` is 2"):
        quantized(actors, ModelQuantizer(FOUR, networks=(2,)))
    with pytest.raises(UserError, match="not that of a single agent"):
        quantized(mlp(), ModelQuantizer(FOUR, networks=(0,)))


@pytest.mark.parametrize("rows", [(7, 13), (2, 7, 13)])
def test_quantized_critics(rows):
    spec = EnvSpec("spec", ("a", "b"), (3, 4), (2, 2), True)
    critics = JointCritics(spec, (6, 5), 2, Random(1))
    joint = torch.randn(*rows[:-1], 2 * (4 + 2))
    ranges = calibrate(critics, lambda critics: critics(joint))
    fine = quantized(critics, ModelQuantizer(Quantizer(16, per_channel=True), Quantizer(16, symmetric=False)), ranges)
    torch.testing.assert_close(fine(joint), critics(joint), atol=1e-3, rtol=1e-3)
    assert not torch.equal(fine(joint), critics(joint))
    coarse = quantized(critics, ModelQuantizer(Quantizer(2, per_channel=True)))
    for c in range(4):
        for unit in range(6):
            expected = simulate(critics.first[:, c, unit], Quantizer(2))
            assert torch.equal(coarse.first[:, c, unit], expected)


def test_dynamic_ranges_are_per_row():
    model, x = mlp(), torch.randn(20, 3) * torch.logspace(-2, 2, 20)[:, None]
    small = quantized(model, ModelQuantizer(FOUR, EIGHT, dynamic=True))
    alone = torch.cat([small(x[i : i + 1]) for i in range(20)])
    torch.testing.assert_close(small(x), alone, atol=1e-6, rtol=1e-6)
    ranges = calibrate(model, lambda model: model(x))
    assert not torch.allclose(small(x), quantized(model, ModelQuantizer(FOUR, EIGHT), ranges)(x), atol=1e-3)
    image = nn.Sequential(nn.Conv2d(1, 2, 3))
    pictures = torch.rand(3, 1, 5, 5) * torch.tensor([1.0, 10.0, 100.0])[:, None, None, None]
    small = quantized(image, ModelQuantizer(None, EIGHT, dynamic=True))
    torch.testing.assert_close(small(pictures)[:1], small(pictures[:1]))


def test_model_bytes_count_packed_codes_scales_and_biases():
    model = mlp()  # weights 24 + 64 + 16, biases 18, outputs 18
    assert model_bytes(model, ModelQuantizer()) == 4 * (104 + 18)
    assert model_bytes(model, ModelQuantizer(FOUR)) == 12 + 32 + 8 + 4 * 18 + 4 * 18
    assert model_bytes(model, ModelQuantizer(Quantizer(4, per_channel=False))) == 52 + 4 * 3 + 4 * 18
    assert (
        model_bytes(model, ModelQuantizer(FOUR, first=Quantizer(8, per_channel=True))) == 24 + 32 + 8 + 4 * 18 + 4 * 18
    )
    assert model_bytes(model, ModelQuantizer(None, EIGHT)) == model_bytes(model, ModelQuantizer())


def test_unsupported_modules_are_refused():
    with pytest.raises(UserError, match="no layer"):
        quantized(nn.Sequential(nn.ReLU()), ModelQuantizer(FOUR))
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    with pytest.raises(UserError, match=r"'0' recomputes its weights"):
        quantized(normed, ModelQuantizer(FOUR))
    with pytest.raises(UserError, match=r"layer '0' is not known"):
        quantized(mlp(), ModelQuantizer(FOUR, EIGHT))
    model = mlp()
    with torch.no_grad():
        model[2].weight[0, 0] = float("nan")
    with pytest.raises(UserError, match=r"'2.weight' of the model has NaN"):
        quantized(model, ModelQuantizer(FOUR))


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Unflatten(1, (4, 1)), nn.Conv2d(4, 3, (1, 2)), nn.Tanh(),
        nn.Flatten(), nn.Linear(12, 2, bias=True),
    )  # fmt: skip


@pytest.mark.parametrize("rounding", ["nearest", "output-error"])
@pytest.mark.parametrize(
    "plan", [ModelQuantizer(Quantizer(3, per_channel=True), EIGHT), ModelQuantizer(Quantizer(3, "paper"), dynamic=True)]
)
@pytest.mark.parametrize("kind", [mlp, convolutions])
def test_corrected_layers_have_the_means_of_full_precision(kind, plan, rounding):
    model, x = kind(), torch.randn(200, *((3,) if kind is mlp else (2, 10)))
    ranges = calibrate(model, lambda model: model(x))
    raw = quantized(model, plan, ranges)
    small = quantized(model, plan, ranges, Correction(rounding=rounding), lambda model: model(x))
    means = [means_of(part, x) for part in (model, raw, small)]
    for full, nearest, fixed in zip(*means, strict=True):
        assert torch.allclose(full, fixed, atol=1e-5) and not torch.allclose(full, nearest, atol=1e-3)
    if rounding == "output-error":
        errors = [float((model(x) - part(x)).detach().square().mean()) for part in (raw, small)]
        assert errors[1] < 0.7 * errors[0]


def means_of(model, x):
    """The mean output of every layer, over rows and places."""
    found = []

    def keep(part, given, y):
        found.append(y.transpose(0, 1).flatten(1).mean(1))

    hooks = [part.register_forward_hook(keep) for part in model if hasattr(part, "weight")]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("rounding", ["nearest", "output-error"])
def test_module_and_policy_corrections_agree(rounding):
    model, x = mlp(), torch.randn(300, 3)
    linear = [part for part in model if isinstance(part, nn.Linear)]
    layers = tuple(
        Linear(part.weight.detach().T[None].numpy(), part.bias.detach()[None].numpy(), activation)
        for part, activation in zip(linear, ("tanh", "relu", "none"), strict=True)
    )
    policy = Policy(layers, Head("argmax"), (3,), (2,), ("agent",))
    found = corrected(policy, x[:, None].numpy(), 4, Correction(rounding=rounding))
    small = quantized(model, ModelQuantizer(FOUR), None, Correction(rounding=rounding), lambda model: model(x))
    for layer, part in zip(found.layers, [part for part in small if isinstance(part, nn.Linear)], strict=True):
        assert np.allclose(layer.bias[0], part.bias.detach(), atol=1e-5)
        if rounding == "output-error":
            assert np.allclose(layer.weight[0].T, part.weight.detach(), atol=1e-6)


def test_stacked_actors_are_corrected_independently():
    actors, x = Actors(SPEC, (6, 6), "categorical", Random(0)), torch.randn(2, 100, 4)
    plan = ModelQuantizer(Quantizer(3, per_channel=True), networks=(1,))
    small = quantized(actors, plan, None, Correction(), lambda net: net(x))
    for before, after in zip(actors.biases, small.biases, strict=True):
        assert torch.equal(before[0], after[0]) and not torch.equal(before[1], after[1])
    with torch.no_grad():
        assert torch.allclose(actors(x).mean(1), small(x).mean(1), atol=1e-5)


def test_unsupported_corrections_are_refused():
    critics = JointCritics(SPEC, (5, 6), 2, Random(0))
    grouped = nn.Sequential(nn.Conv2d(2, 2, 1, groups=2))
    with pytest.raises(UserError, match="several networks share its input"):
        find_layers(critics)[0].portable()
    with pytest.raises(UserError, match="not a plain convolution"):
        quantized(grouped, ModelQuantizer(FOUR), None, Correction(), lambda model: model(torch.randn(3, 2, 2, 2)))
    with pytest.raises(ValueError, match="needs states"):
        quantized(mlp(), ModelQuantizer(FOUR), None, Correction())
