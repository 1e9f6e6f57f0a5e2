"""Convolutions as emulated products: windows of the input times the kernel.

Axes: n batch, g groups, c input channels and o output channels of a group, i j the kernel's rows and columns, p q the
output's, h w the input's. Every sum goes through a unit: the output's over (c, i, j), the kernel's gradient's over
(n, p, q), the input's gradient's over (o, i, j) with the kernel flipped and the output's gradient dilated by the
stride. Zeros from padding and dilation are multiplied like other numbers.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from shoal.errors import UserError
from shoal.numerics.emulation.contraction import Roles, check_once, contract, read, read_both
from shoal.numerics.emulation.window_kernels import take_windows
from shoal.threads import share_out

WINDOWS, KERNEL, OUTPUT = "gnpqcij", "gocij", "ngopq"

ALONE = 2**16
"""Up to this many numbers one thread copies faster than two."""

Pair = tuple[int, int]


class Convolution(Function):
    """(n, C, H, W) with a kernel (O, C/groups, I, J); `edges` are the zeros before and after rows and columns."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        kernel: Tensor,
        stride: Pair,
        edges: tuple[Pair, Pair],
        dilation: Pair,
        groups: int,
        roles: Roles,
    ) -> Tensor:
        """(n, O, P, Q)."""
        (x, of_x), (kernel, of_kernel) = read_both(roles, x, kernel)
        ctx.how, ctx.roles, ctx.exponents = (stride, edges, dilation, groups), roles, (of_x, of_kernel)
        ctx.save_for_backward(x, kernel)
        seen = _windows(_grouped(x, groups), edges, kernel.shape[2:], stride, dilation)
        z = contract(roles.forward, seen, WINDOWS, _split(kernel, groups), KERNEL, OUTPUT, of_x + of_kernel)
        return z.flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the input and of the kernel."""
        check_once()
        (x, kernel), (stride, edges, dilation, groups), roles = ctx.saved_tensors, ctx.how, ctx.roles
        values, exponent = read(roles.read_gradient, gradient)
        powers = [exponent + other for other in ctx.exponents]
        split, behind = _split(kernel, groups), _grouped(values, groups)
        of_x = of_kernel = None
        if ctx.needs_input_grad[0]:
            spread = _spread(behind, stride)
            around = [
                _around(length, spread.shape[axis], dilation[axis - 3] * (taps - 1), edges[axis - 3][0])
                for axis, length, taps in zip((3, 4), x.shape[2:], kernel.shape[2:], strict=True)
            ]
            seen = _windows(spread, (around[0], around[1]), kernel.shape[2:], (1, 1), dilation)
            of_x = contract(roles.x, seen, "gnhwoij", split.flip(3, 4), KERNEL, "ngchw", powers[1]).reshape(x.shape)
        if ctx.needs_input_grad[1]:
            seen = _windows(_grouped(x, groups), edges, kernel.shape[2:], stride, dilation)
            of_kernel = contract(roles.y, seen, WINDOWS, behind, OUTPUT, KERNEL, powers[0]).reshape(kernel.shape)
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


def _grouped(x: Tensor, groups: int) -> Tensor:
    """(n, g, C/g, H, W)."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


def _split(kernel: Tensor, groups: int) -> Tensor:
    """(g, O/g, C/g, I, J)."""
    return kernel.reshape(groups, kernel.shape[0] // groups, *kernel.shape[1:])


def _windows(x: Tensor, edges: tuple[Pair, Pair], kernel: Sequence[int], stride: Pair, dilation: Pair) -> Tensor:
    """(g, n, p, q, c, i, j): the window of the kernel at (p, q); negative edges crop."""
    lengths = [sum(around) + length for around, length in zip(edges, x.shape[3:], strict=True)]
    spans = [apart * (taps - 1) + 1 for apart, taps in zip(dilation, kernel, strict=True)]
    if spans[0] > lengths[0] or spans[1] > lengths[1]:
        raise UserError(
            f"The kernel spans {spans[0]} x {spans[1]} numbers, but the padded input has only "
            f"{lengths[0]} x {lengths[1]}."
        )
    made = [(length - span) // step + 1 for length, span, step in zip(lengths, spans, stride, strict=True)]
    seen = np.empty((x.shape[1], x.shape[0], *made, x.shape[2], *kernel), np.float32)
    source, before = x.detach().contiguous().numpy(), (edges[0][0], edges[1][0])

    def work(first: int, last: int) -> int:
        return int(take_windows(source, seen, stride, before, dilation, first, last))

    windows = math.prod(seen.shape[:4])
    share_out(work, windows, torch.get_num_threads() if seen.size > ALONE else 1)
    return torch.from_numpy(seen)


def _spread(gradient: Tensor, stride: Pair) -> Tensor:
    """The gradient with stride - 1 zeros between its numbers."""
    if stride == (1, 1):
        return gradient
    lengths = [step * (length - 1) + 1 for step, length in zip(stride, gradient.shape[3:], strict=True)]
    spread = gradient.new_zeros(*gradient.shape[:3], *lengths)
    spread[..., :: stride[0], :: stride[1]] = gradient
    return spread


def _around(length: int, spread: int, reach: int, before: int) -> Pair:
    """Zeros around the dilated gradient, so that the flipped kernel covers at h all outputs that input h affected.

    `reach` is the distance between the kernel's first and last tap. Negative numbers crop.
    """
    first = reach - before
    return first, length + reach - spread - first
