"""Stacked layers and their gradients, written out: a whole network is one step of autograd.

What an update costs beyond its products is mostly Python and bookkeeping between them, so there is as little of both
as can be. Two facts of processors' matrix libraries shape the products: those with a narrow result (an action, a Q
value) are several times faster the other way round, as (x W)' = W' x', and one over a single inner index is a plain
multiplication. In `numerics.emulate` neither is done: products are what they are called, through the unit.
Shape letters: C networks in the stack, B batch rows, I inputs, U outputs (units), J joint, H hidden, A action.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from shoal.numerics.emulation.roles import emulating, role

NARROW = 16  # results of at most this many columns are computed the other way round

Gradients = tuple[Tensor | None, ...]
Change = Callable[[Tensor], Tensor]


class LayerQuantizer(Protocol):
    """What a layer's numbers go through before its products; gradients go straight past weights and inputs."""

    def input(self, layer: int, x: Tensor, frozen: bool) -> Tensor:
        """What this layer (counted from 0) is given, quantized; `frozen`: the network learns nothing from it."""
        ...

    def weight(self, layer: int, weight: Tensor) -> Tensor:
        """This layer's weights, quantized."""
        ...

    def gradient(self, layer: int) -> "Change | None":
        """What the gradient of this layer's output goes through before its two products; None: it stays as it is."""
        ...


def product(x: Tensor, weight: Tensor) -> Tensor:
    """(C, B, I) x (C, I, U): batched, in the quicker of the two orders."""
    if emulating():
        return torch.bmm(x, weight)
    if weight.shape[1] == 1:
        return x * weight
    if weight.shape[2] <= NARROW:
        return torch.bmm(weight.mT, x.mT).mT
    return torch.bmm(x, weight)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`product` plus bias (C, 1, U)."""
    if weight.shape[2] <= NARROW and not emulating():
        return torch.baddbmm(bias.mT, weight.mT, x.mT).mT
    return torch.baddbmm(bias, x, weight)


def through_relu(gradient: Tensor, activated: Tensor) -> Tensor:
    """The gradient before a ReLU, given the one behind it and what came out of it."""
    return torch.ops.aten.threshold_backward(gradient, activated, 0)


def forward_stack(x: Tensor, parameters: Sequence[Tensor], last_relu: bool = False) -> list[Tensor]:
    """The input (C, B, I) and every layer's output; `parameters` are weight, bias, weight, bias, …"""
    outputs = [x]
    for k in range(0, len(parameters), 2):
        x = affine(x, parameters[k], parameters[k + 1])
        if last_relu or k + 2 < len(parameters):
            x = x.relu_()
        outputs.append(x)
    return outputs


def forward_quantized(
    x: Tensor, parameters: Sequence[Tensor], quantizer: LayerQuantizer, frozen: bool
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The same through a quantizer: input and outputs, and the inputs and parameters that the products were of."""
    outputs, inputs, narrow = [x], [], []
    for k in range(0, len(parameters), 2):
        inputs.append(quantizer.input(k // 2, x, frozen))
        narrow += [quantizer.weight(k // 2, parameters[k]), parameters[k + 1]]
        x = affine(inputs[-1], narrow[k], narrow[k + 1])
        if k + 2 < len(parameters):
            x = x.relu_()
        outputs.append(x)
    return outputs, inputs, narrow


def backward_stack(
    gradient: Tensor,
    outputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
    need_input: bool,
    need_parameters: bool,
    last_relu: bool = False,
    inputs: Sequence[Tensor] = (),
    quantizer: LayerQuantizer | None = None,
) -> tuple[Tensor | None, list[Tensor | None]]:
    """Gradients of the input and of the parameters, given that of the last output; None where not needed.

    `inputs` are what the layers' products were of, if that is not the output before. `quantizer` may change the
    gradients that go into products.
    """
    gradients: list[Tensor | None] = [None] * len(parameters)
    for k in reversed(range(0, len(parameters), 2)):
        before, after = (inputs or outputs)[k // 2], outputs[k // 2 + 1]
        if last_relu or k + 2 < len(parameters):
            gradient = through_relu(gradient, after)
        if quantizer is not None and (change := quantizer.gradient(k // 2)) is not None:
            gradient = change(gradient)
        if need_parameters:
            with role("grad_weight"):
                gradients[k] = product(before.mT, gradient)
            gradients[k + 1] = gradient.sum(1, keepdim=True)
        if k or need_input:
            with role("grad_input"):
                gradient = product(gradient, parameters[k].mT)
    return gradient if need_input else None, gradients


class Stack(Function):
    """Networks (C, B, I) to (C, B, U) with ReLU between their layers; `frozen` ones get no gradients themselves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, frozen: bool, last_relu: bool, *parameters: Tensor) -> Tensor:
        """One batched product a layer."""
        outputs = forward_stack(x, parameters, last_relu)
        ctx.frozen, ctx.last_relu, ctx.layers = frozen, last_relu, len(outputs)
        ctx.save_for_backward(*outputs, *parameters)
        return outputs[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        """Only what somebody needs."""
        saved, layers = ctx.saved_tensors, ctx.layers
        x, parameters = backward_stack(
            gradient, saved[:layers], saved[layers:], ctx.needs_input_grad[0], not ctx.frozen, ctx.last_relu
        )
        return x, None, None, *parameters


class QuantizedStack(Function):
    """`Stack` through a quantizer, past which the gradients go straight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, frozen: bool, quantizer: LayerQuantizer, *parameters: Tensor) -> Tensor:
        """One batched product a layer."""
        outputs, inputs, narrow = forward_quantized(x, parameters, quantizer, frozen)
        ctx.frozen, ctx.layers, ctx.quantizer = frozen, len(inputs), quantizer
        ctx.save_for_backward(*inputs, *outputs, *narrow)
        return outputs[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        """Those of the quantized numbers, given to the full ones."""
        saved, layers = ctx.saved_tensors, ctx.layers
        inputs, outputs, narrow = saved[:layers], saved[layers : 2 * layers + 1], saved[2 * layers + 1 :]
        x, parameters = backward_stack(
            gradient, outputs, narrow, ctx.needs_input_grad[0], not ctx.frozen,
            inputs=inputs, quantizer=ctx.quantizer,
        )  # fmt: skip
        return x, None, None, *parameters


class ChangedGradient(Function):
    """The identity, whose gradient goes through a function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Change) -> Tensor:
        """x itself."""
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        """The changed gradient."""
        return ctx.change(gradient), None


def change_gradient(x: Tensor, change: Change | None) -> Tensor:
    """x, whose gradient goes through `change` if there is one."""
    return x if change is None or not torch.is_grad_enabled() else ChangedGradient.apply(x, change)


class SharedCritics(Function):
    """Critics that all see the same joint rows (B, J): their first layer is one product with the weights (J, C, H)."""

    @staticmethod
    def forward(ctx: Any, joint: Tensor, first: Tensor, first_bias: Tensor, *rest: Tensor) -> Tensor:
        """(C, B, 1)."""
        rows = torch.addmm(first_bias.view(-1), joint, first.flatten(1)).relu_().unflatten(1, first.shape[1:])
        outputs = forward_stack(rows.transpose(0, 1), rest)
        ctx.layers = len(outputs)
        ctx.save_for_backward(joint, rows, *outputs, *rest)
        return outputs[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        """All weights; nobody asks for the joint rows' gradient."""
        assert not ctx.needs_input_grad[0]
        joint, rows, *saved = ctx.saved_tensors
        below, rest = backward_stack(gradient, saved[: ctx.layers], saved[ctx.layers :], True, True)
        assert below is not None
        before = torch.empty_like(rows)  # (B, C, H): one pass undoes ReLU and turns the stack back into rows
        torch.ops.aten.threshold_backward.grad_input(below.transpose(0, 1), rows, 0, grad_input=before)
        with role("grad_weight"):
            first = torch.mm(joint.T, before.flatten(1)).view(-1, *rows.shape[1:])  # (J, C, H)
        return None, first, before.sum(0).unsqueeze(1), *rest


class OwnCritics(Function):
    """Critics whose own agent's action changed by (C, B, A): their first layer is ReLU(z + change W_own).

    Gradients reach the change only.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, change: Tensor, own_weight: Tensor, *rest: Tensor) -> Tensor:
        """z (C, B, H) is the first layer before ReLU with the action as played; own_weight (C, A, H)."""
        outputs = forward_stack(torch.baddbmm(z, change, own_weight).relu_(), rest)
        ctx.layers = len(outputs)
        ctx.save_for_backward(own_weight, *outputs, *rest)
        return outputs[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        """Down to the action."""
        own_weight, *saved = ctx.saved_tensors
        outputs, rest = saved[: ctx.layers], saved[ctx.layers :]
        below, _ = backward_stack(gradient, outputs, rest, need_input=True, need_parameters=False)
        assert below is not None
        return None, product(through_relu(below, outputs[0]), own_weight.mT), None, *[None] * len(rest)
