"""`matmul`: matrix products through a MAC unit, bit-exact as defined by `mac/exact.py`.

`mac/product.py` chooses how; here are the arguments, their checks, and broadcasting.
"""

import math
from dataclasses import dataclass
from operator import add
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from shoal.errors import UserError, whole_number
from shoal.numerics.formats.types import FloatFormat, Scalar
from shoal.numerics.mac import kernels
from shoal.numerics.mac.product import Operand, Place, Product, broadcast
from shoal.numerics.mac.tiles import fast
from shoal.numerics.mac.unit import MacUnit, parse_mac
from shoal.numerics.rounding.plan import FLOAT32, fits
from shoal.numerics.rounding.quantize import check_memory, from_numpy, is_dense, quantize
from shoal.numerics.rounding.randomness import Keys, keys

Array = TypeVar("Array", bound=Any)


@dataclass(frozen=True)
class MacStats:
    """Events in a product; not those of casting the operands, nor those of sums with an infinite or NaN operand."""

    macs: int
    """Multiplications, each with its addition."""
    saturated: int
    """Finite results of the multiplier, converter or accumulator beyond the largest value that were saturated."""
    overflowed: int
    """The same under other rules: they became infinite or NaN, wrapped around, or were clipped by inward rounding."""
    underflowed: int
    """Nonzero results that became zero."""

    def __add__(self, other: "MacStats") -> "MacStats":
        return MacStats(*map(add, vars(self).values(), vars(other).values()))


def matmul(
    a: Array,
    b: Array,
    mac: MacUnit | str,
    *,
    stats: bool = False,
    seed: int | None = None,
    call: int = 0,
    threads: int | None = None,
    cast: bool | str = True,
) -> Any:
    """a @ b through a MAC unit: (…, M, K) × (…, K, N), leading axes broadcast as in torch.matmul.

    The result is float32, or float64 if float32 cannot represent the accumulator's values (more than 24 bits); no
    gradient flows through it. It does not depend on the number of threads.

    Args:
        a: numpy array or torch tensor of floating-point numbers on the CPU.
        b: of the same kind as `a`.
        mac: the unit or its name, such as `E5M2:5+E6M5`.
        stats: return (result, MacStats).
        seed: stochastic: determines the random bits, together with `call`, each output's index and the step of its sum.
        call: stochastic: number of this call, so that calls with one seed draw different bits.
        threads: number of threads, by default torch's; does not change the result.
        cast: round the operands to the unit's operand formats first, to nearest, ties to even. If False, they must
            already be values of these formats; others are refused. `done`: the same without a check.

    """
    unit = parse_mac(mac) if isinstance(mac, str) else mac
    if not isinstance(unit, MacUnit):
        raise UserError(f"matmul needs a MacUnit or its name, not {mac!r}.")
    x, y = _tensor(a, "a"), _tensor(b, "b")
    if isinstance(a, Tensor) != isinstance(b, Tensor):
        raise UserError("matmul needs two numpy arrays or two torch tensors, not one of each.")
    threads = torch.get_num_threads() if threads is None else whole_number("threads", threads, 1)
    if unit.rounding == "stochastic" and seed is None:
        raise UserError("stochastic rounding needs a seed for its random bits.")
    chosen = keys(0 if seed is None else whole_number("seed", seed), whole_number("call", call), 0)
    batch = _batch(x, y)
    check_memory(f"{tuple(x.shape)} × {tuple(y.shape)}", _needed(x, y, batch, unit, stats), "pieces need less")
    formats = unit.multiplier.formats
    operands = [_operand(t, formats[n], unit.nan, cast, threads) for n, t in enumerate((x, y))]
    first, second = _matrices(operands[0], operands[1], batch)
    result, happened = multiply(unit, Operand.of(first), Operand.of(second.mT), stats, chosen, threads)
    result = result.reshape(*batch, x.shape[-2], y.shape[-1])
    given = result if isinstance(a, Tensor) else result.numpy()
    return (given, happened) if stats else given


def multiply(
    unit: MacUnit, a: Operand, b: Operand, stats: bool, chosen: Keys, threads: int, place: Place | None = None
) -> tuple[Tensor, MacStats]:
    """The product of operands that have been cast, as flat memory, and what happened (`stats`: count events)."""
    dtype = torch.float32 if fits(unit.accumulator, FLOAT32) else torch.float64
    outputs = broadcast(a, b) * a.shape[1] * b.shape[1]
    counts = np.zeros(4, np.int64)
    if outputs == 0 or a.shape[2] == 0:
        result = torch.zeros(outputs, dtype=dtype)
    else:
        result = Product(unit, a, b, dtype, stats, chosen, threads, place).run(counts)
    if counts[kernels.NANS] and unit.nan == "error":
        raise UserError(
            f"{counts[kernels.NANS]} of the products are NaN, which accumulator {unit.accumulator} cannot represent; "
            "a unit with nan='zero' treats them as zero."
        )
    return result, MacStats(outputs * a.shape[2], *map(int, counts[:3]))


def _tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        if not is_dense(value):
            raise UserError(
                f"matmul multiplies dense floating-point numbers; {name} is {value.dtype} ({value.layout})."
            )
        if value.device.type != "cpu":
            raise UserError(f"matmul works on the CPU; {name} is on {value.device}, move it with .cpu().")
        tensor = value.detach().resolve_neg()
    elif isinstance(value, np.ndarray):
        if value.dtype.kind != "f" or value.dtype.itemsize > 8:
            raise UserError(f"matmul multiplies floating-point numbers up to float64; {name} is {value.dtype}.")
        tensor = from_numpy(value)
    else:
        raise UserError(f"matmul multiplies numpy arrays or torch tensors; {name} is a {type(value).__name__}.")
    if tensor.ndim < 2:
        raise UserError(f"matmul needs matrices; {name} has shape {tuple(tensor.shape)}, add an axis of length 1.")
    return tensor


def _batch(x: Tensor, y: Tensor) -> tuple[int, ...]:
    shapes = f"{tuple(x.shape)} × {tuple(y.shape)}"
    if x.shape[-1] != y.shape[-2]:
        raise UserError(
            f"{shapes} do not multiply: the last axis of a and the second-to-last of b must have the same length."
        )
    try:
        return tuple(torch.broadcast_shapes(x.shape[:-2], y.shape[:-2]))
    except RuntimeError:
        raise UserError(f"{shapes} do not multiply: leading axes must have the same length or length 1.") from None


def _needed(x: Tensor, y: Tensor, batch: tuple[int, ...], unit: MacUnit, stats: bool) -> int:
    """Bytes that a product takes: the operands, rounded and again as contiguous matrices, and the result."""
    rows, depth, columns, count = x.shape[-2], x.shape[-1], y.shape[-1], math.prod(batch)
    outputs = count * rows * columns
    if y.shape[:-2].numel() == 1:
        matrices = count * rows * depth + depth * columns
    else:
        matrices = (1 if x.shape[:-2].numel() == 1 else count) * rows * depth + count * depth * columns
    narrow = fits(unit.accumulator, FLOAT32)
    each = 4 if narrow else 8
    if not narrow or fast(unit, stats) is None:
        each += 16  # the loops in float64 take a list of all outputs
    return 4 * (x.numel() + y.numel() + matrices) + each * outputs


def _operand(x: Tensor, format: Scalar, nan: str, cast: bool | str, threads: int) -> Tensor:
    """The operand in its format; `cast` as in `matmul`."""
    if cast == "done":
        return x.float() if fits(format, FLOAT32) else x.double()
    operand = cast_operand(x, format, nan, threads)
    if not cast and not bool(((operand == x) | (operand.isnan() & x.isnan())).all()):
        raise UserError(
            f"cast is False, but the operands are not all values of {format}; round them with quantize first."
        )
    return operand


def cast_operand(x: Tensor, format: Scalar, nan: str, threads: int | None = None) -> Tensor:
    """The operand rounded to its format, to nearest; as float32 if that can represent it."""
    if isinstance(format, FloatFormat) and format.nans:
        nan = "error"  # never happens: the format has NaN
    rounded = quantize(x, format, nan=nan, threads=threads)
    return rounded.float() if fits(format, FLOAT32) else rounded.double()


def _matrices(x: Tensor, y: Tensor, batch: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Both as (n or 1, …); if all share the second operand, the first becomes one tall matrix."""
    whole = x.expand(*batch, *x.shape[-2:])
    if y.shape[:-2].numel() == 1:
        return whole.flatten(0, -2)[None], y.reshape(1, *y.shape[-2:])
    x = x.reshape(1, *x.shape[-2:]) if x.shape[:-2].numel() == 1 else whole.flatten(0, -3)
    return x, y.expand(*batch, *y.shape[-2:]).flatten(0, -3)
