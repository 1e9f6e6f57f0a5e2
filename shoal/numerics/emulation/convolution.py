"""Convolutions as emulated products: windows of the input, which are read where they are, times the kernel.

Axes: n batch, g groups, c input channels and o output channels of a group, i j the kernel's rows and columns, p q the
output's, h w the input's. Every sum goes through a unit: the output's over (c, i, j), the kernel's gradient's over
(n, p, q), the input's gradient's over (o, i, j) with the kernel flipped and the output's gradient dilated by the
stride. Zeros from padding and dilation are multiplied like other numbers.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from shoal.errors import UserError
from shoal.numerics.emulation.contraction import Roles, Strided, check_once, contract_axes, hidden, strided, times_power

WINDOWS, KERNEL, OUTPUT = "gnpqcij", "gocij", "ngopq"

Pair = tuple[int, int]


class Convolution(Function):
    """(n, C, H, W) with a kernel (O, C/groups, I, J); `edges` are the zeros before and after rows and columns."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kernel: Tensor, stride: Pair, edges: tuple[Pair, Pair], dilation: Pair, groups: int,
        roles: Roles,
    ) -> Tensor:  # fmt: skip
        """(n, O, P, Q)."""
        (x, of_x), (kernel, of_kernel) = hidden(roles.read_x, x), hidden(roles.read_y, kernel)
        ctx.how, ctx.roles, ctx.exponents = (stride, edges, dilation, groups), roles, (of_x, of_kernel)
        split, image = kernel.unflatten(0, (groups, -1)), x.unflatten(1, (groups, -1))
        lengths = [length + sum(around) for length, around in zip(x.shape[2:], edges, strict=True)]
        whole = _surrounded(image, (1, 1), edges, lengths)
        ctx.shape = x.shape
        ctx.save_for_backward(whole, kernel)
        seen = _windows(whole, kernel.shape[2:], stride, dilation)
        z = hidden(contract_axes, roles.forward, seen, strided(split, KERNEL), KERNEL, OUTPUT, "windows")
        return times_power(z, of_x + of_kernel).flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the input and of the kernel."""
        check_once()
        (whole, kernel), (stride, edges, dilation, groups), roles = ctx.saved_tensors, ctx.how, ctx.roles
        values, exponent = hidden(roles.read_gradient, gradient)
        powers = [exponent + other for other in ctx.exponents]
        split, behind = kernel.unflatten(0, (groups, -1)), values.unflatten(1, (groups, -1))
        of_x = of_kernel = None
        if ctx.needs_input_grad[0]:
            # Zeros around the dilated gradient, so that the flipped kernel covers at h all outputs that input h
            # affected; `reach` is the distance between the kernel's first and last tap. Negative numbers crop.
            reach = [apart * (taps - 1) for apart, taps in zip(dilation, kernel.shape[2:], strict=True)]
            before = [(far - around[0], 0) for far, around in zip(reach, edges, strict=True)]
            lengths = [length + far for length, far in zip(ctx.shape[2:], reach, strict=True)]
            spread = _surrounded(behind, stride, before, lengths)
            seen = _windows(spread, kernel.shape[2:], (1, 1), dilation)
            numbers, _, axes = strided(split, "gcoij")  # c and o are swapped: the sum runs over the outputs
            last = sum((length - 1) * step for length, step in (axes["i"], axes["j"]))
            flipped = numbers, last, axes | {axis: (axes[axis][0], -axes[axis][1]) for axis in "ij"}
            z = hidden(contract_axes, roles.x, seen, flipped, "gcoij", OUTPUT, "windows")
            of_x = times_power(z, powers[1]).reshape(ctx.shape)
        if ctx.needs_input_grad[1]:
            seen = _windows(whole, kernel.shape[2:], stride, dilation)
            z = hidden(contract_axes, roles.y, seen, strided(behind, OUTPUT), WINDOWS, KERNEL, "windows by steps")
            of_kernel = times_power(z, powers[0]).reshape(kernel.shape)
        return of_x, of_kernel, None, None, None, None, None


def edges_of(padding: Any, kernel: Sequence[int], stride: Pair, dilation: Pair) -> tuple[Pair, Pair]:
    """Zeros before and after rows and columns, from the `padding` argument of torch's convolutions."""
    if padding == "valid":
        return (0, 0), (0, 0)
    if padding == "same":
        if stride != (1, 1):
            raise UserError(f"padding 'same' needs a stride of 1, not {stride}.")
        whole = [apart * (taps - 1) for apart, taps in zip(dilation, kernel, strict=True)]
        return (whole[0] // 2, whole[0] - whole[0] // 2), (whole[1] // 2, whole[1] - whole[1] // 2)
    if isinstance(padding, str):
        raise UserError(f"Unknown padding '{padding}'; choose 'same', 'valid' or numbers.")
    rows, columns = padding
    return (rows, rows), (columns, columns)


def _surrounded(x: Tensor, stride: Pair, edges: Sequence[Pair], lengths: Sequence[int]) -> Tensor:
    """(n, g, c, *lengths): x, its numbers `stride` apart, amid zeros; `edges` begin with those before it."""
    whole = torch.zeros(*x.shape[:3], *(max(0, length) for length in lengths))
    source, target = [], []
    for size, length, (before, _), step in zip(x.shape[3:], whole.shape[3:], edges, stride, strict=True):
        first = max(0, -(before // step))  # what is outside is left out
        last = max(first, min(size, (length - 1 - before) // step + 1))
        source.append(slice(first, last))
        target.append(slice(before + first * step, before + last * step, step))
    rows, columns = target
    whole[..., rows, columns] = x.detach()[..., source[0], source[1]]
    return whole


def _windows(whole: Tensor, kernel: Sequence[int], stride: Pair, dilation: Pair) -> Strided:
    """(g, n, p, q, c, i, j): the window of the kernel at (p, q), as places in the image."""
    lengths = whole.shape[3:]
    spans = [apart * (taps - 1) + 1 for apart, taps in zip(dilation, kernel, strict=True)]
    if spans[0] > lengths[0] or spans[1] > lengths[1]:
        raise UserError(
            f"The kernel spans {spans[0]} x {spans[1]} numbers, but the padded input has only "
            f"{lengths[0]} x {lengths[1]}."
        )
    made = [(length - span) // step + 1 for length, span, step in zip(lengths, spans, stride, strict=True)]
    n, g, c, h, w = whole.stride()
    strides = (n, g, c, h * dilation[0], w * dilation[1], h * stride[0], w * stride[1])
    sizes = (*whole.shape[:3], *kernel, *made)
    return whole.reshape(-1), 0, dict(zip("ngcijpq", zip(sizes, strides, strict=True), strict=True))
