"""`matmul`: matrix products through a MAC unit, bit-exact as defined by `mac/exact.py`.

The unit determines the method: loops over tiles in float32 where these are provably exact (`tiles`), loops in float64
for everything else (`kernels`), or a BLAS product where nothing can round. Outputs that the tiles cannot compute
(infinite operands, sums that overflow to infinity) are recomputed by the loops in float64.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.errors import UserError, check_range, whole_number
from shoal.numerics.formats.types import FloatFormat, Scalar
from shoal.numerics.mac import kernels, tile_kernels
from shoal.numerics.mac.plan import mac_plan
from shoal.numerics.mac.tiles import Fast, fast, tile
from shoal.numerics.mac.unit import MacUnit, parse_mac
from shoal.numerics.rounding.plan import FLOAT32, fits
from shoal.numerics.rounding.quantize import check_memory, from_numpy, is_dense, quantize
from shoal.numerics.rounding.randomness import Keys, keys
from shoal.threads import share_out

Array = TypeVar("Array", bound=Any)
COLUMN_BLOCK = 8
"""Column panels per work item, where rows alone do not make enough items."""
SAMPLE = 4096
ALONE = 2**17
"""Up to this many MACs one thread is faster than two."""


@dataclass(frozen=True)
class MacStats:
    """Events in a product; those of casting the operands are not counted."""

    macs: int
    """Multiplications, each with its addition."""
    saturated: int
    """Finite results of the multiplier, converter or accumulator beyond the largest value that were saturated."""
    overflowed: int
    """The same under other rules: they became infinite or NaN, wrapped around, or were clipped by inward rounding."""
    underflowed: int
    """Nonzero results that became zero."""

    def __add__(self, other: "MacStats") -> "MacStats":
        return MacStats(
            self.macs + other.macs,
            self.saturated + other.saturated,
            self.overflowed + other.overflowed,
            self.underflowed + other.underflowed,
        )


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
    threads = torch.get_num_threads() if threads is None else whole_number("threads", threads)
    check_range("threads", threads, 1)
    if unit.rounding == "stochastic" and seed is None:
        raise UserError("stochastic rounding needs a seed for its random bits.")
    chosen = keys(0 if seed is None else whole_number("seed", seed), whole_number("call", call), 0)
    batch = _batch(x, y)
    shape = (*batch, x.shape[-2], y.shape[-1])
    depth = x.shape[-1]
    dtype = torch.float32 if fits(unit.accumulator, FLOAT32) else torch.float64
    check_memory(f"{tuple(x.shape)} × {tuple(y.shape)}", _needed(x, y, batch, unit, dtype, stats), "pieces need less")

    formats = unit.multiplier.formats
    operands = [_operand(t, formats[n], unit.nan, cast, threads) for n, t in enumerate((x, y))]
    counts = np.zeros(4, np.int64)
    outputs = math.prod(shape)
    if outputs == 0 or depth == 0:
        result = torch.zeros(shape, dtype=dtype)
    else:
        first, second = _matrices(operands[0], operands[1], batch)
        work = _Work(unit, first, second, dtype, stats, chosen, threads)
        result = work.run(counts).reshape(shape)
    if counts[kernels.NANS] and unit.nan == "error":
        raise UserError(
            f"{counts[kernels.NANS]} of the products are NaN, which accumulator {unit.accumulator} cannot represent; "
            "a unit with nan='zero' treats them as zero."
        )
    given = result if isinstance(a, Tensor) else result.numpy()
    if not stats:
        return given
    return given, MacStats(outputs * depth, *map(int, counts[:3]))


class _Work:
    """One product: a (n or 1, rows, k), b (n or 1, k, columns), both contiguous."""

    def __init__(
        self, unit: MacUnit, a: Tensor, b: Tensor, dtype: torch.dtype, stats: bool, chosen: Keys, threads: int
    ) -> None:
        self.unit, self.a, self.b, self.dtype, self.stats, self.keys = unit, a, b, dtype, stats, chosen
        self.batch, self.rows, self.depth, self.columns = max(len(a), len(b)), a.shape[1], a.shape[2], b.shape[2]
        self.threads = threads if self.batch * self.rows * self.columns * self.depth > ALONE else 1

    def run(self, counts: NDArray[np.int64]) -> Tensor:
        """The result (n, rows, columns); events are added to `counts`."""
        exact = self._blas()
        if exact is not None:
            return exact
        chosen = fast(self.unit, self.stats)
        if chosen is not None and self.dtype == torch.float32 and self.a.dtype == self.b.dtype == torch.float32:
            by_tiles = self._by_tiles(chosen, counts)
            if by_tiles is not None:
                return by_tiles
        result = np.empty((self.batch, self.rows * self.columns), np.float64)
        for n in range(self.batch):
            self._one_by_one(n, np.arange(self.rows * self.columns), result[n], counts)
        return torch.from_numpy(result).to(self.dtype)

    def _blas(self) -> Tensor | None:
        """The product by BLAS, if every sum of products, in any order, is exactly a value of the accumulator."""
        path, sums = self.unit.datapath, self.unit.accumulator
        plan, _, _ = mac_plan(self.unit)
        if plan.product_rounded or self.unit.order == "kahan":
            return None
        step = Fraction(2) ** path.product_lsb
        if step < Fraction(sums.min_positive):  # or there is a gap below the smallest value
            return None
        if path.smallest_product < Fraction(plan.product_flush_before):
            return None
        for part in (slice(SAMPLE), slice(None)):  # most are ruled out by the first few numbers
            most = [float(operand.reshape(-1)[part].abs().max()) for operand in (self.a, self.b)]
            if not np.isfinite(most).all():
                return None
            bound = Fraction(most[0]) * Fraction(most[1]) * self.depth
            # Every sum is a multiple of `step` up to `bound`.
            if bound > sums.max or bound > plan.product_max or bound / step > 2 ** min(sums.significant_bits, 53):
                return None
        kind = torch.float32 if bound / step <= 2**24 and _normal(step, bound) else torch.float64
        product = np.matmul(self.a.to(kind).numpy(), self.b.to(kind).numpy())
        return torch.from_numpy(product + 0.0).to(self.dtype)

    def _one_by_one(
        self, n: int, outputs: NDArray[np.int64], result: NDArray[np.float64], counts: NDArray[np.int64]
    ) -> None:
        """Outputs of matrix n, by the loops in float64."""
        plan, product, sums = mac_plan(self.unit)
        a = self.a[n if len(self.a) > 1 else 0].double().contiguous().numpy()
        b = self.b[n if len(self.b) > 1 else 0].double().T.contiguous().numpy()
        first = n * self.rows * self.columns

        def work(begin: int, end: int) -> int:
            own = np.zeros(4, np.int64)
            kernels.multiply_outputs(a, b, result, outputs[begin:end], plan, product, sums, first, self.keys, own)
            shares.append(own)
            return 0

        shares: list[NDArray[np.int64]] = []
        share_out(work, outputs.size, min(self.threads, max(1, outputs.size)))
        counts += np.sum(shares, axis=0)

    def _by_tiles(self, chosen: Fast, counts: NDArray[np.int64]) -> Tensor | None:
        """The result by the fast loops; None if the processor flushes subnormals that are needed."""
        panels = -(-self.columns // tile_kernels.COLUMNS)
        depth, chunk = self.depth + self.depth % 2, self.unit.chunk
        a, own = self.a.numpy(), self.b.numpy()
        b = np.empty((len(own), panels, depth, tile_kernels.COLUMNS), np.float32)
        bad_rows, bad_columns = np.zeros((len(a), self.rows), bool), np.zeros((len(b), self.columns), bool)
        for n in range(len(b)):
            tile_kernels.pack_columns(own[n], b[n], bad_columns[n])
        steps = np.arange(depth // 2)
        if chunk:
            steps = np.concatenate([steps, (self.depth + np.arange(-(-self.depth // chunk))) // 2])
        words = kernels.step_words(steps, self.keys.lower_before, self.keys.lower_between)
        bits = self.unit.random_bits if self.unit.rounding == "stochastic" else 0
        chance = (self.keys.upper_before, self.keys.upper_between, bits, self.depth)

        strict = self.unit.overflow != "saturate"  # sums that exceed the range must be recomputed
        result = np.empty((self.batch, self.rows, self.columns), np.float32)
        again = np.zeros(result.shape if chosen.marks else (1, 1, 1), bool)
        row_blocks = self.batch * -(-self.rows // (tile_kernels.ROWS * tile_kernels.ROW_BLOCK))
        column_block = panels if row_blocks >= 4 * self.threads else min(panels, COLUMN_BLOCK)
        compiled, totals = tile(chosen.kind), []

        def work(begin: int, end: int) -> int:
            if chosen.subnormals and tile_kernels.flushes(np.array([2.0**-126, 0.5], np.float32)):
                return 1
            own_totals = np.zeros(2, np.int64)
            tile_kernels.multiply(
                compiled.address, chosen.kind, a, b, result, bad_rows, bad_columns, again, own_totals,
                chosen.floats, chosen.ints, words, chance, (column_block, chunk, int(strict)),
                (begin, end), np.float32(chosen.scale),
            )  # fmt: skip
            totals.append(own_totals)
            return 0

        pieces = row_blocks * -(-panels // column_block)
        if any(share_out(work, pieces, min(self.threads, pieces))):
            return None
        counts[[kernels.SATURATED, kernels.UNDERFLOWED]] += np.sum(totals, axis=0)
        self._again(result, again if chosen.marks else None, bad_rows, bad_columns, counts)
        return torch.from_numpy(result)

    def _again(
        self,
        result: NDArray[np.float32],
        again: NDArray[np.bool_] | None,
        bad_rows: NDArray[np.bool_],
        bad_columns: NDArray[np.bool_],
        counts: NDArray[np.int64],
    ) -> None:
        """Recompute, one by one, the outputs that the tiles could not."""
        for n in range(self.batch):
            rows, columns = bad_rows[n if len(bad_rows) > 1 else 0], bad_columns[n if len(bad_columns) > 1 else 0]
            if not (rows.any() or columns.any() or (again is not None and again[n].any())):
                continue
            wrong = rows[:, None] | columns
            values = result[n].reshape(-1).astype(np.float64)
            self._one_by_one(n, np.flatnonzero(wrong if again is None else wrong | again[n]), values, counts)
            result[n] = values.reshape(self.rows, self.columns)


def _normal(step: Fraction, bound: Fraction) -> bool:
    """Whether all multiples of `step` up to `bound` are normal float32 numbers."""
    return step >= Fraction(2) ** FLOAT32.lowest and bound < Fraction(2) ** FLOAT32.highest


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


def _needed(x: Tensor, y: Tensor, batch: tuple[int, ...], unit: MacUnit, dtype: torch.dtype, stats: bool) -> int:
    """Bytes that a product takes: the operands, rounded and again as contiguous matrices, and the result."""
    rows, depth, columns, count = x.shape[-2], x.shape[-1], y.shape[-1], math.prod(batch)
    outputs = count * rows * columns
    if y.shape[:-2].numel() == 1:
        matrices = count * rows * depth + depth * columns
    else:
        matrices = (1 if x.shape[:-2].numel() == 1 else count) * rows * depth + count * depth * columns
    each = dtype.itemsize
    if dtype == torch.float64 or fast(unit, stats) is None:
        each += 16  # the loops in float64 take a list of all outputs
    return 4 * (x.numel() + y.numel() + matrices) + each * outputs


def _operand(x: Tensor, format: Scalar, nan: str, cast: bool | str, threads: int) -> Tensor:
    """The operand rounded to its format, as float32 if that can represent it."""
    if cast == "done":
        return x.float() if fits(format, FLOAT32) else x.double()
    if isinstance(format, FloatFormat) and format.nans:
        nan = "error"  # never happens: the format has NaN
    rounded = quantize(x, format, nan=nan, threads=threads)
    if not cast and not bool(((rounded == x) | (rounded.isnan() & x.isnan())).all()):
        raise UserError(
            f"cast is False, but the operands are not all values of {format}; round them with quantize first."
        )
    return rounded.float() if fits(format, FLOAT32) else rounded.double()


def _matrices(x: Tensor, y: Tensor, batch: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Both as (n or 1, …), contiguous; if all share the second operand, the first becomes one tall matrix."""
    kind = x.dtype if x.dtype == y.dtype else torch.float64
    x, y = x.to(kind), y.to(kind)
    count = math.prod(batch)
    if y.shape[:-2].numel() == 1:
        return x.expand(*batch, *x.shape[-2:]).reshape(1, -1, x.shape[-1]).contiguous(), y.reshape(
            1, *y.shape[-2:]
        ).contiguous()
    if x.shape[:-2].numel() != 1:
        x = x.expand(*batch, *x.shape[-2:])
    y = y.expand(*batch, *y.shape[-2:])
    x, y = x.reshape(-1, *x.shape[-2:]), y.reshape(count, *y.shape[-2:])
    return x.contiguous(), y.contiguous()
