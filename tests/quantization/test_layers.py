"""Quantizers on layers change the operands of their products, and can be taken off again."""

import numpy as np
import pytest
import torch
from torch import nn

from shoal.networks.critics import JointCritics
from shoal.networks.layout import Random
from shoal.networks.stacked import StackedMLP
from shoal.quantization.layers import attach, attached, detach_all, find_layers
from tests.quantization.teams import choice_spec


class Scaled:
    """Inputs are doubled, weights tripled."""

    def input(self, x, frozen):
        return 2 * x

    def weight(self, weight):
        return 3 * weight


def modules():
    generator = torch.Generator().manual_seed(0)
    stack = StackedMLP([np.ones((2, width), bool) for width in (5, 4, 3, 2)], Random(0))
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
    """The same network with every product scaled."""
    if isinstance(module, nn.Sequential):
        x = nn.functional.conv1d(2 * x, 3 * module[0].weight, module[0].bias).relu().flatten(1)
        return nn.functional.linear(2 * x, 3 * module[3].weight, module[3].bias)
    if isinstance(module, JointCritics):
        z = 6 * torch.einsum("bj,jch->cbh", x, module.first) + module.first_bias
        return plainly(module.rest, z.relu())
    for k, (weight, bias) in enumerate(zip(module.weights, module.biases, strict=True)):
        x = 6 * x @ weight + bias
        x = x.relu() if k + 1 < len(module.weights) else x
    return x


@pytest.mark.parametrize("number", range(3))
def test_taps_change_the_operands_of_every_product(number):
    module, x = modules()[number]
    parameters = list(module.parameters())
    plain, expected = module(x), plainly(module, x)
    layers = find_layers(module)
    for layer in layers:
        attach(layer, Scaled())
        assert isinstance(attached(layer), Scaled)
    result = module(x)
    torch.testing.assert_close(result.flatten(), expected.flatten(), rtol=1e-4, atol=1e-4)
    gradients = [torch.autograd.grad(y.square().mean(), parameters) for y in (result, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    detach_all(module)
    assert all(attached(layer) is None for layer in layers)
    assert torch.equal(module(x), plain)


def test_attach_returns_an_undo_function():
    module, x = modules()[2]
    expected = module(x)
    undo = [attach(layer, Scaled()) for layer in find_layers(module)]
    assert not torch.equal(module(x), expected)
    for take_off in undo:
        take_off()
    assert torch.equal(module(x), expected)
