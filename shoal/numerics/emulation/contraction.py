"""One emulated product of any shape, with its gradients: axes are named by letters, as in einsum.

Z = X·Y sums over the letters that X and Y share and Z lacks. Its gradients are products of the same kind, X̄ = Z̄·Y and
Ȳ = X·Z̄, so every sum of products goes through a unit, including those over a batch. Letters in all three make a batch
of matrices; of the others, X's are the rows and Y's the columns, each in Z's order; the sum runs over its letters in
the order of the product's first operand, the last one fastest.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function

from shoal.errors import UserError
from shoal.numerics.mac.product import Axes, Operand, Place, flat

Arguments = ParamSpec("Arguments")
Done = TypeVar("Done")
Multiply = Callable[[Operand, Operand, Place], Tensor]
"""The product of matrices, each number in its place, as flat memory."""


class Read(NamedTuple):
    """An operand as its products read it: values·2^exponent."""

    values: Tensor
    exponent: int = 0


Reader = Callable[[Tensor], Read]


class Roles(NamedTuple):
    """The three products of X·Y: each multiplies matrices in its role. An operand is read once for all its products."""

    forward: Multiply
    x: Multiply  # for the gradient of X
    y: Multiply
    read_x: Reader
    read_y: Reader
    read_gradient: Reader


def contract(multiply: Multiply, x: Tensor, xs: str, y: Tensor, ys: str, zs: str, exponent: int) -> Tensor:
    """X·Y·2^exponent as a product of matrices, which are read where they are."""
    return times_power(contract_axes(multiply, strided(x, xs), strided(y, ys), xs, zs), exponent)


Strided = tuple[Tensor, int, dict[str, tuple[int, int]]]
"""Flat memory, the place of the first number in it, and the length and stride of each letter."""


def strided(x: Tensor, axes: str) -> Strided:
    """x, copied if its memory has gaps, or numbers that are not its own."""
    x = x.detach().resolve_neg()
    x = x if flat(x).numel() == x.numel() else x.contiguous()
    return flat(x), 0, dict(zip(axes, zip(x.shape, x.stride(), strict=True), strict=True))


def contract_axes(multiply: Multiply, x: Strided, y: Strided, order: str, zs: str, copies: str = "lines") -> Tensor:
    """X·Y with any strides; the sum runs over its letters in this order. `copies`: how X is copied if it must be."""
    of_x, of_y = x[2], y[2]
    batch = [axis for axis in zs if axis in of_x and axis in of_y]
    rows = [axis for axis in zs if axis not in of_y]
    columns = [axis for axis in zs if axis not in of_x]
    inner = [axis for axis in order if axis in of_x and axis in of_y and axis not in zs]
    shape = [(of_x | of_y)[axis][0] for axis in zs]
    of_z = {axis: (shape[n], prod(shape[n + 1 :])) for n, axis in enumerate(zs)}  # contiguous

    def axes(letters: list[str], of: dict[str, tuple[int, int]]) -> Axes:
        return tuple(of[axis] for axis in letters)

    first = Operand(x[0], axes(batch, of_x), axes(rows, of_x), axes(inner, of_x), x[1], copies)
    second = Operand(y[0], axes(batch, of_y), axes(columns, of_y), axes(inner, of_y), y[1], "steps")
    return multiply(first, second, (axes(batch, of_z), axes(rows, of_z), axes(columns, of_z))).reshape(shape)


def times_power(x: Tensor, exponent: int) -> Tensor:
    """x·2^exponent, rounded once to float32."""
    if exponent == 0:
        return x
    if abs(exponent) <= 126:  # a normal number
        return x * 2.0**exponent
    half = exponent // 2
    return (x.double() * 2.0**half * 2.0 ** (exponent - half)).float()


class Product(Function):
    """`contract`, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, xs: str, y: Tensor, ys: str, zs: str, roles: Roles) -> Tensor:
        """Z."""
        (x, of_x), (y, of_y) = hidden(roles.read_x, x), hidden(roles.read_y, y)
        ctx.axes, ctx.roles, ctx.exponents = (xs, ys, zs), roles, (of_x, of_y)
        ctx.save_for_backward(x, y)
        return hidden(contract, roles.forward, x, xs, y, ys, zs, of_x + of_y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of X and of Y."""
        check_once()
        (x, y), (xs, ys, zs), roles = ctx.saved_tensors, ctx.axes, ctx.roles
        need_x, need_y = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
        values, exponent = hidden(roles.read_gradient, gradient)
        powers = [exponent + other for other in ctx.exponents]
        of_x = hidden(contract, roles.x, values, zs, y, ys, xs, powers[1]) if need_x else None
        of_y = hidden(contract, roles.y, x, xs, values, zs, ys, powers[0]) if need_y else None
        return of_x, None, of_y, None, None, None


class Straight(Function):
    """A change of numbers that gradients pass unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """The changed numbers."""
        return hidden(change, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient itself."""
        return gradient, None


def hidden(work: Callable[Arguments, Done], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Done:
    """The result of `work`, done hidden from all of torch's modes."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return work(*args, **kwargs)


def check_once() -> None:
    """Refuse second derivatives."""
    if torch.is_grad_enabled():
        raise UserError("Emulated products have first derivatives only; create_graph=True needs second ones.")


def check_axes(op: str, x: Tensor, xs: str, y: Tensor, ys: str) -> None:
    """Refuse shapes that do not multiply."""
    shapes = f"{op} of {tuple(x.shape)} and {tuple(y.shape)}"
    for tensor, axes in ((x, xs), (y, ys)):
        if tensor.dim() != len(axes):
            raise UserError(f"{shapes}: {tensor.dim()} axes where {len(axes)} are needed.")
    lengths = dict(zip(xs, x.shape, strict=True))
    for axis, length in zip(ys, y.shape, strict=True):
        if lengths.get(axis, length) != length:
            raise UserError(f"{shapes} do not multiply: {lengths[axis]} and {length} should be the same.")
