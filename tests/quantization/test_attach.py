"""Quantizers on layers: what they see, and what their gradient side does."""

import pytest
import torch
from torch import nn

from shoal.networks import JointCritics, StackedMLP
from shoal.networks.layout import Random, full
from shoal.quantization.attach import attach, attached, detach_all
from shoal.quantization.layers import find_layers
from tests.quantization.teams import choice_spec


class Halved:
    """Weights and inputs as they are; the gradient of the output is rounded to bfloat16 and halved."""

    def input(self, x, frozen):
        return x

    def weight(self, weight):
        return weight

    @staticmethod
    def gradient(gradient):
        return gradient.bfloat16().float() / 2


def modules():
    generator = torch.Generator().manual_seed(0)
    stack = StackedMLP([full(2, width) for width in (5, 4, 3, 2)], Random(0))
    spec = choice_spec()
    joint = torch.randn(7, spec.agents * (spec.observation_size + spec.action_size), generator=generator)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv1d(3, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4, 3))
    return [
        (stack, torch.randn(2, 7, 5, generator=generator)),
        (JointCritics(spec, (4, 3), 2, Random(0)), joint),
        (plain, torch.randn(6, 3, 5, generator=generator)),
    ]


def plainly(module, x):
    """The same network in plain autograd, with a hook at every layer's output."""

    def layer(value):
        if value.requires_grad:
            value.register_hook(Halved.gradient)
        return value

    if isinstance(module, nn.Sequential):
        first = layer(nn.functional.conv1d(x, module[0].weight, module[0].bias))
        return layer(nn.functional.linear(first.relu().flatten(1), module[3].weight, module[3].bias))
    if isinstance(module, JointCritics):
        z = torch.einsum("bj,jch->cbh", x, module.first) + module.first_bias
        return plainly(module.rest, layer(z).relu())
    for k, (weight, bias) in enumerate(zip(module.weights, module.biases, strict=True)):
        x = layer(x @ weight + bias)
        x = x.relu() if k + 1 < len(module.weights) else x
    return x


@pytest.mark.parametrize("number", range(3))
def test_gradients_are_hooked_at_every_output(number):
    module, x = modules()[number]
    parameters = list(module.parameters())
    expected = torch.autograd.grad(plainly(module, x).square().sum(), parameters)
    layers = find_layers(module)
    for layer in layers:
        attach(layer, Halved())
        assert isinstance(attached(layer), Halved)
    found = torch.autograd.grad(module(x).square().sum(), parameters)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=1e-4)
    straight, _ = modules()[number]
    plain = torch.autograd.grad(straight(x).square().sum(), list(straight.parameters()))
    assert not torch.allclose(found[0], plain[0], rtol=0.1)
    detach_all(module)
    assert all(attached(layer) is None for layer in layers)
    again = torch.autograd.grad(module(x).square().sum(), parameters)
    assert all(torch.equal(one, other) for one, other in zip(again, plain, strict=True))


def test_attach_returns_an_undo_function():
    module, x = modules()[2]
    expected = module(x)
    undo = [attach(layer, Doubled()) for layer in find_layers(module)]
    assert not torch.equal(module(x), expected)
    for take_off in undo:
        take_off()
    assert torch.equal(module(x), expected)


class Doubled(Halved):
    """Weights twice as large."""

    def weight(self, weight):
        return 2 * weight
