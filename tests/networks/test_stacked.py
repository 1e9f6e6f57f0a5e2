"""Stacked networks and critics are loops over plain ones: values, and gradients of all that wants one."""

import numpy as np
import pytest
import torch

from shoal.envs.base import members
from shoal.networks.critics import JointCritics
from shoal.networks.layout import Random
from shoal.networks.stacked import StackedMLP, by_network
from tests.algorithms.plain import critic_nets
from tests.algorithms.test_oracle import make_spec

# C networks, B rows, widths
SHAPES = [(1, 1, (1, 1, 1)), (1, 1, (3, 4, 2)), (3, 1, (2, 5, 3, 1)), (1, 6, (3, 4, 1, 1)), (2, 5, (4, 3, 1, 4, 3))]


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1000 * seed + sum(shape)))


def network(stack, widths):
    """A stacked network whose biases are no zeros."""
    stacked = StackedMLP([np.ones((stack, width), bool) for width in widths], Random(0))
    with torch.no_grad():
        for k, values in enumerate(stacked.flat):
            values.copy_(randn(*values.shape, seed=k))
    return stacked


def plain(x, parameters):
    """The networks as anyone would write them."""
    for k in range(0, len(parameters), 2):
        x = torch.einsum("cbi,ciu->cbu", x, parameters[k]) + parameters[k + 1]
        if k + 2 < len(parameters):
            x = torch.relu(x)
    return x


def same(ours, theirs, inputs):
    """Equal values, and equal gradients of the inputs."""
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)
    weights = randn(*theirs.shape, seed=9)
    left, right = (torch.autograd.grad((out * weights).sum(), inputs) for out in (ours, theirs))
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("stack", "rows", "widths"), SHAPES)
def test_a_stack_is_its_networks(stack, rows, widths):
    x, stacked = randn(stack, rows, widths[0]).requires_grad_(), network(stack, widths)
    same(stacked(x), plain(x, stacked.flat), [x, *stacked.flat])


@pytest.mark.parametrize(("stack", "rows", "widths"), SHAPES)
def test_a_frozen_stack_passes_gradients_to_its_input_only(stack, rows, widths):
    x, stacked = randn(stack, rows, widths[0]).requires_grad_(), network(stack, widths)
    same(stacked(x, frozen=True), plain(x, stacked.flat), [x])
    stacked(x, frozen=True).sum().backward()
    assert x.grad is not None and all(parameter.grad is None for parameter in stacked.flat)


def test_units_that_are_exactly_zero_pass_no_gradient():
    """A row of zeros (an agent that is not there) through biases of zero lies on every ReLU's corner."""
    x, stacked = torch.zeros(2, 3, 4, requires_grad=True), network(2, (4, 5, 6, 1))
    with torch.no_grad():
        for bias in stacked.biases:
            bias.zero_()
    same(stacked(x), plain(x, stacked.flat), [x, *stacked.flat])
    assert not torch.autograd.grad(stacked(x).sum(), x)[0].any()


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("agents", [1, 3])
def test_critics_of_own_actions_are_loops_over_critics(agents, heads, shared, dense):
    spec = make_spec(agents, True)
    critics, width = JointCritics(spec, (5, 4), heads, Random(0)), spec.observation_size + spec.action_size
    joint = randn(*(() if shared else (agents,)), 6, agents * width)
    own = randn(agents, 6, spec.action_size, seed=1).requires_grad_()
    q = critics.of_own_action(joint, own, dense)  # (N, heads, B)
    expected = []
    for i, nets in enumerate(critic_nets(critics)):
        rows = (joint if shared else joint[i]).clone()
        at = agents * spec.observation_size + i * spec.action_size
        rows = torch.cat([rows[:, :at], own[i], rows[:, at + spec.action_size :]], 1)
        expected.append(torch.stack([net(rows)[:, 0] for net in nets]))
    same(q, torch.stack(expected), [own])
    critics.of_own_action(joint, own, dense).sum().backward()
    assert all(parameter.grad is None for parameter in critics.parameters())


def test_shared_weights_are_read_in_place(monkeypatch):
    """Emulated products know a weight by its memory: copies for every member would be taken for inputs."""
    of = np.array([0, 1, 0])
    stacked = StackedMLP([np.ones((2, width), np.bool_) for width in (5, 4, 3)], Random(0), of)
    addmm, read = torch.addmm, []
    monkeypatch.setattr(
        torch, "addmm", lambda bias, x, weight: read.append(weight.data_ptr()) or addmm(bias, x, weight)
    )
    x = torch.randn(3, 7, 5)
    stacked(x)
    assert read == [weight[network].data_ptr() for weight in stacked.weights for network in (0, 1)]


@pytest.mark.parametrize("of", [(0, 0, 0), (0, 0, 1), (0, 1, 0, 1), (1, 0, 0, 2, 1)])
def test_rows_of_a_network_go_through_one_product(of):
    weight, bias = torch.randn(max(of) + 1, 5, 2), torch.randn(max(of) + 1, 1, 2)
    x = torch.randn(len(of), 4, 5, requires_grad=True)
    found = by_network(x, members(of), weight, bias)
    expected = torch.stack([rows @ weight[k] + bias[k] for rows, k in zip(x, of, strict=True)])
    same(found, expected, [x])
    torch.testing.assert_close(by_network(x, members(of), weight), expected - bias[list(of)])
