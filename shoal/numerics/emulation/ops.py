"""Torch's functions that multiply matrices, written as emulated products; arguments are named as in torch.

Everything else (biases, scales, softmax) stays in float32 after the product, and is left to autograd.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from shoal.errors import UserError
from shoal.numerics.emulation.contraction import Product, check_axes
from shoal.numerics.emulation.convolution import Convolution, Pair, edges_of

if TYPE_CHECKING:
    from shoal.numerics.emulation.emulate import Times

BATCH = "".join(chr(ord("α") + n) for n in range(25))
"""Letters for axes without one: leading axes of matmul, `...` of einsum."""


def times(by: "Times", x: Tensor, xs: str, y: Tensor, ys: str, zs: str, y_is_weight: bool = False) -> Tensor:
    """X·Y with axes by letter."""
    check_axes(by.op, x, xs, y, ys)
    return Product.apply(x, xs, y, ys, zs, by.roles(x, y, y_is_weight))


def inner(by: "Times", input: Tensor, other: Tensor) -> Tensor:
    """(…, K) × (…, K); a number times a tensor is not a matrix product."""
    if not input.dim() or not other.dim():
        return input * other
    rows, columns = _letters(input.dim() - 1), _letters(other.dim() - 1, input.dim() - 1)
    return times(by, input, rows + "k", other, columns + "k", rows + columns)


def matmul(by: "Times", input: Tensor, other: Tensor) -> Tensor:
    """(…, M, K) × (…, K, N), leading axes broadcast; a vector is a row on the left and a column on the right."""
    if not input.dim() or not other.dim():
        raise UserError("matmul needs at least one axis of both operands, not a single number.")
    leading = _letters(max(input.dim(), other.dim(), 2) - 2)
    xs = "k" if input.dim() == 1 else leading[len(leading) + 2 - input.dim() :] + "mk"
    ys = "k" if other.dim() == 1 else leading[len(leading) + 2 - other.dim() :] + "kn"
    zs = leading + "m" * ("m" in xs) + "n" * ("n" in ys)
    length: dict[str, int] = {}
    for tensor, axes in ((input, xs), (other, ys)):
        length |= {axis: size for axis, size in zip(axes, tensor.shape, strict=True) if axis in leading and size != 1}
    return times(by, *_narrowed(input, xs, length), *_narrowed(other, ys, length), zs)


def linear(by: "Times", input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(…, I) × (O, I)ᵀ + bias."""
    rows, columns = _letters(input.dim() - 1), "o" * (weight.dim() - 1)
    product = times(by, input, rows + "k", weight, columns + "k", rows + columns, y_is_weight=True)
    return product if bias is None else product + bias


def tensordot(by: "Times", input: Tensor, other: Tensor, dims_self: Sequence[int], dims_other: Sequence[int]) -> Tensor:
    """Summed over pairs of axes."""
    xs, ys = list(_letters(input.dim())), list(_letters(other.dim(), input.dim()))
    for mine, yours in zip(dims_self, dims_other, strict=True):
        ys[yours] = xs[mine]
    both = set(xs) & set(ys)
    zs = [axis for axis in xs + ys if axis not in both]
    return times(by, input, "".join(xs), other, "".join(ys), "".join(zs))


def bilinear(by: "Times", input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input1 (…, I) × weight (O, I, J) first, then × input2 (…, J), + bias."""
    rows = _letters(input1.dim() - 1)
    half = times(by, input1, rows + "i", weight, "oij", rows + "oj", y_is_weight=True)
    product = times(by, half, rows + "oj", input2, rows + "j", rows + "o")
    return product if bias is None else product + bias


def einsum(by: "Times", equation: str, tensors: Sequence[Tensor], path: object = None) -> Tensor:
    """From left to right, two operands at a time; letters of one operand that are not kept are summed first."""
    terms, kept = _equation(equation, tensors)
    pairs = [_diagonal(tensor, axes) for tensor, axes in zip(tensors, terms, strict=True)]
    length: dict[str, int] = {}
    for tensor, axes in pairs:
        length |= {axis: size for axis, size in zip(axes, tensor.shape, strict=True) if size != 1}
    whole = [_narrowed(tensor, axes, length) for tensor, axes in pairs]
    x, xs = whole[0]
    for n, (y, ys) in enumerate(whole[1:], 1):
        needed = set(kept).union(*(axes for _, axes in whole[n + 1 :]))
        x, xs = _summed(x, xs, needed | set(ys))
        y, ys = _summed(y, ys, needed | set(xs))
        last = n + 1 == len(whole)
        zs = kept if last else "".join(axis for axis in dict.fromkeys(xs + ys) if axis in needed)
        x, xs = times(by, x, xs, y, ys, zs), zs
    return x


def conv2d(
    by: "Times", input: Tensor, weight: Tensor, bias: Tensor | None = None,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """(n, C, H, W) or (C, H, W) with a kernel (O, C/groups, I, J), + bias."""
    if weight.dim() != 4 or input.dim() not in (3, 4):
        raise UserError(f"{by.op} of {tuple(input.shape)} and {tuple(weight.shape)}: wrong number of axes.")
    if input.dim() == 3:
        return conv2d(by, input[None], weight, bias, stride, padding, dilation, groups)[0]
    if groups < 1 or input.shape[1] != groups * weight.shape[1] or weight.shape[0] % groups:
        raise UserError(
            f"{by.op} of {tuple(input.shape)} and {tuple(weight.shape)} in {groups} groups: the channels do not match."
        )
    steps, apart = _pair(stride), _pair(dilation)
    edges = edges_of(padding if isinstance(padding, str) else _pair(padding), weight.shape[2:], steps, apart)
    output = Convolution.apply(input, weight, steps, edges, apart, groups, by.roles(input, weight, True))
    return output if bias is None else output + bias[:, None, None]


def conv1d(
    by: "Times", input: Tensor, weight: Tensor, bias: Tensor | None = None,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """`conv2d` with one row."""
    if weight.dim() != 3 or input.dim() not in (2, 3):
        raise UserError(f"{by.op} of {tuple(input.shape)} and {tuple(weight.shape)}: wrong number of axes.")
    steps, apart = ((1, _pair(number)[0]) for number in (stride, dilation))
    around = padding if isinstance(padding, str) else (0, _pair(padding)[0])
    return conv2d(by, input.unsqueeze(-2), weight.unsqueeze(-2), bias, steps, around, apart, groups).squeeze(-2)


def scaled_dot_product_attention(
    by: "Times", query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(scale·(query × keyᵀ) + mask) × value."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = matmul(by, query, key.mT) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        if attn_mask is not None:
            raise UserError(f"{by.op} takes a mask or is_causal, not both.")
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch._safe_softmax(scores, -1)  # fully masked rows give zeros, as in torch
    return matmul(by, torch.dropout(weights, dropout_p, dropout_p > 0), value)


OPS: dict[str, Callable[..., Tensor]] = {
    "mm": lambda by, input, mat2: times(by, input, "mk", mat2, "kn", "mn"),
    "bmm": lambda by, input, mat2: times(by, input, "bmk", mat2, "bkn", "bmn"),
    "mv": lambda by, input, vec: times(by, input, "mk", vec, "k", "m"),
    "dot": lambda by, input, tensor: times(by, input, "k", tensor, "k", ""),
    "vdot": lambda by, input, other: times(by, input, "k", other, "k", ""),
    "addmm": lambda by, input, mat1, mat2, **factors: _added(input, times(by, mat1, "mk", mat2, "kn", "mn"), **factors),
    "addmv": lambda by, input, mat, vec, **factors: _added(input, times(by, mat, "mk", vec, "k", "m"), **factors),
    "addr": lambda by, input, vec1, vec2, **factors: _added(input, times(by, vec1, "m", vec2, "n", "mn"), **factors),
    "baddbmm": lambda by, input, batch1, batch2, **factors: _added(
        input, times(by, batch1, "bmk", batch2, "bkn", "bmn"), **factors
    ),
    "addbmm": lambda by, input, batch1, batch2, **factors: _added(  # one sum over batch and K
        input, times(by, batch1, "bmk", batch2, "bkn", "mn"), **factors
    ),
    **{
        op.__name__: op
        for op in (
            inner, matmul, linear, tensordot, bilinear, einsum, conv1d, conv2d, scaled_dot_product_attention,
        )
    },
}  # fmt: skip
"""Torch's functions that are emulated, by name."""


def _letters(count: int, first: int = 0) -> str:
    if first + count > len(BATCH):
        raise UserError(f"A product of tensors with {first + count} axes; at most {len(BATCH)} are possible.")
    return BATCH[first : first + count]


def _added(input: Tensor, product: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta·input + alpha·product."""
    scaled = product if alpha == 1 else alpha * product
    if beta == 0:  # not even NaN propagates
        return scaled
    return (input if beta == 1 else beta * input) + scaled


def _narrowed(x: Tensor, xs: str, length: dict[str, int]) -> tuple[Tensor, str]:
    """x without axes of length 1 that are longer in other operands."""
    dropped = [n for n, axis in enumerate(xs) if x.shape[n] == 1 and length.get(axis, 1) != 1]
    return x.squeeze(dropped), "".join(axis for n, axis in enumerate(xs) if n not in dropped)


def _summed(x: Tensor, xs: str, needed: set[str]) -> tuple[Tensor, str]:
    """x summed over the axes that no one else needs."""
    gone = [n for n, axis in enumerate(xs) if axis not in needed]
    return (x.sum(gone) if gone else x), "".join(axis for axis in xs if axis in needed)


def _diagonal(x: Tensor, xs: str) -> tuple[Tensor, str]:
    """x with one axis per letter; repeated letters mean the diagonal."""
    for axis in dict.fromkeys(xs):
        while xs.count(axis) > 1:
            first, second = xs.index(axis), xs.rindex(axis)
            x = x.diagonal(dim1=first, dim2=second)
            xs = xs[:first] + xs[first + 1 : second] + xs[second + 1 :] + axis
    return x, xs


def _equation(equation: str, operands: Sequence[Tensor]) -> tuple[list[str], str]:
    """The letters of each operand and of the result, with `...` expanded."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise UserError(f"einsum '{equation}' has {len(terms)} operands, but {len(operands)} are given.")
    dots = [operand.dim() - len(term.replace("...", "")) for term, operand in zip(terms, operands, strict=True)]
    most = max((count for term, count in zip(terms, dots, strict=True) if "..." in term), default=0)
    leading = _letters(most)
    for term, count, operand in zip(terms, dots, operands, strict=True):
        if count < 0 or (count and "..." not in term):
            raise UserError(f"einsum '{equation}': '{term}' does not fit the {operand.dim()} axes of its operand.")
    spelled = [term.replace("...", leading[most - count :]) for term, count in zip(terms, dots, strict=True)]
    if arrow:
        kept = right.replace("...", leading)
    else:
        letters = left.replace(",", "").replace(".", "")
        kept = leading + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    if len(set(kept)) != len(kept) or not set(kept) <= set("".join(spelled)):
        raise UserError(f"einsum '{equation}': every letter of the result must appear once, and in an operand.")
    return spelled, kept


def _pair(number: Any) -> Pair:
    """(rows, columns) from one number or a sequence of one or two."""
    numbers = [int(n) for n in number] if isinstance(number, Sequence) else [int(number)]
    return numbers[0], numbers[-1]
