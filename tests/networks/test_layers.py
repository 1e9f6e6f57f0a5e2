"""The gradients written out by hand: against finite differences, and against plain autograd."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck

from shoal.networks.layers import NARROW, OwnCritics, SharedCritics, Stack, affine, product

# C networks, B rows, I inputs, hidden widths, U outputs
SHAPES = [
    (1, 1, 1, (1,), 1),
    (1, 1, 3, (4,), 2),
    (3, 1, 2, (5, 3), 1),
    (1, 6, 3, (4, 1), 1),
    (2, 5, 4, (3, 1, 4), 3),
    (2, 3, 2, (NARROW + 3, 2), NARROW + 1),  # wide results take the other order of the product
    (3, 4, NARROW + 2, (NARROW, NARROW + 1), NARROW),
]
# critics: N agents, heads, B rows, joint width J, action A, hidden widths
CRITICS = [
    (1, 1, 1, 2, 1, (1,)),
    (1, 2, 3, 5, 2, (4,)),
    (3, 1, 1, 7, 1, (3, 4)),
    (3, 2, 4, 6, 3, (5, 1)),
    (2, 2, 5, 9, 2, (4, 3, 5)),
    (2, 1, 3, 5, NARROW + 1, (NARROW + 2, 3)),
]


def randn(*shape, seed=0, grad=True):
    """Random numbers in float64."""
    generator = torch.Generator().manual_seed(1000 * seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(grad)


def layers(stack, widths, grad=True):
    """Weights and biases of stacked networks between these widths."""
    parameters = []
    for k, (before, after) in enumerate(itertools.pairwise(widths)):
        parameters += [randn(stack, before, after, seed=2 * k + 1, grad=grad)]
        parameters += [randn(stack, 1, after, seed=2 * k + 2, grad=grad)]
    return parameters


def plain_stack(x, parameters, last_relu=False):
    """The networks as anyone would write them."""
    for k in range(0, len(parameters), 2):
        x = torch.einsum("cbi,ciu->cbu", x, parameters[k]) + parameters[k + 1]
        if last_relu or k + 2 < len(parameters):
            x = torch.relu(x)
    return x


def same(ours, plain, inputs):
    """Equal values, and equal gradients of all that wants one."""
    torch.testing.assert_close(ours, plain, atol=1e-12, rtol=1e-12)
    weights = randn(*plain.shape, seed=9, grad=False)
    wanted = [t for t in inputs if t.requires_grad]
    left, right = (torch.autograd.grad((out * weights).sum(), wanted) for out in (ours, plain))
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("inner", [1, 2, NARROW + 1])
@pytest.mark.parametrize("units", [1, NARROW, NARROW + 1])
@pytest.mark.parametrize("rows", [1, 3])
def test_product_and_affine_in_either_order(rows, units, inner):
    x, weight, bias = randn(2, rows, inner), randn(2, inner, units), randn(2, 1, units)
    torch.testing.assert_close(product(x, weight), x @ weight, atol=1e-12, rtol=0)
    torch.testing.assert_close(affine(x, weight, bias), x @ weight + bias, atol=1e-12, rtol=0)


@pytest.mark.parametrize("last_relu", [False, True])
@pytest.mark.parametrize(("stack", "rows", "inputs", "hidden", "outputs"), SHAPES)
def test_stack(stack, rows, inputs, hidden, outputs, last_relu):
    x, parameters = randn(stack, rows, inputs), layers(stack, (inputs, *hidden, outputs))

    def run(x, *parameters):
        return Stack.apply(x, False, last_relu, *parameters)

    assert gradcheck(run, (x, *parameters))
    same(run(x, *parameters), plain_stack(x, parameters, last_relu), [x, *parameters])


@pytest.mark.parametrize(("stack", "rows", "inputs", "hidden", "outputs"), SHAPES)
def test_frozen_stack_passes_gradients_to_its_input_only(stack, rows, inputs, hidden, outputs):
    x, fixed = randn(stack, rows, inputs), layers(stack, (inputs, *hidden, outputs), grad=False)
    assert gradcheck(lambda x: Stack.apply(x, True, False, *fixed), (x,))
    parameters = layers(stack, (inputs, *hidden, outputs))
    out = Stack.apply(x, True, False, *parameters)
    assert torch.autograd.grad(out.sum(), parameters, allow_unused=True) == (None,) * len(parameters)


def test_stack_without_a_gradient_for_its_input():
    x, parameters = randn(2, 3, 4, grad=False), layers(2, (4, 5, 1))
    same(Stack.apply(x, False, False, *parameters), plain_stack(x, parameters), parameters)


@pytest.mark.parametrize(("agents", "heads", "rows", "joint", "action", "hidden"), CRITICS)
def test_shared_critics(agents, heads, rows, joint, action, hidden):
    stack = agents * heads
    x, rest = randn(rows, joint, grad=False), layers(stack, (*hidden, 1))
    first, bias = randn(joint, stack, hidden[0]), randn(stack, 1, hidden[0], seed=8)

    def run(first, bias, *rest):
        return SharedCritics.apply(x, first, bias, *rest)

    assert gradcheck(run, (first, bias, *rest))
    rows_of_all = torch.relu(torch.einsum("bj,jch->cbh", x, first) + bias)
    same(run(first, bias, *rest), plain_stack(rows_of_all, rest), [first, bias, *rest])


@pytest.mark.parametrize(("agents", "heads", "rows", "joint", "action", "hidden"), CRITICS)
def test_own_critics(agents, heads, rows, joint, action, hidden):
    stack = agents * heads
    z, change = randn(stack, rows, hidden[0], grad=False), randn(stack, rows, action, seed=7)
    own, rest = randn(stack, action, hidden[0], grad=False), layers(stack, (*hidden, 1), grad=False)

    def run(change):
        return OwnCritics.apply(z, change, own, *rest)

    assert gradcheck(run, (change,))
    same(run(change), plain_stack(torch.relu(z + torch.einsum("cba,cah->cbh", change, own)), rest), [change])


def test_units_that_are_exactly_zero_pass_no_gradient():
    """A row of zeros (an agent that is not there) through biases of zero lies on every ReLU's corner."""
    x, parameters = torch.zeros(2, 3, 4, dtype=torch.float64, requires_grad=True), layers(2, (4, 5, 6, 1))
    with torch.no_grad():
        for bias in parameters[1::2]:
            bias.zero_()
    same(Stack.apply(x, False, False, *parameters), plain_stack(x, parameters), [x, *parameters])
    assert not torch.autograd.grad(Stack.apply(x, False, False, *parameters).sum(), x)[0].any()
