"""One product through a MAC unit: which method computes it, and its division into shares of work.

The unit and the operands determine the method: a BLAS product where nothing can round or only the sum of all products
is rounded, loops over tiles where these are provably exact (`tiles`), and loops in float64, one output at a time
(`kernels`), for everything else. Outputs that the tiles cannot compute (infinite operands, sums that overflow to
infinity) are recomputed by the loops in float64.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.numerics.formats.types import FloatFormat
from shoal.numerics.mac import kernels, panels
from shoal.numerics.mac.lanes import COLUMNS
from shoal.numerics.mac.panels import Layout, Scratch, View
from shoal.numerics.mac.plan import mac_plan
from shoal.numerics.mac.tile_kernels import ROWS, TREE, make_tile
from shoal.numerics.mac.tiles import UNKNOWN, Fast, fast, known
from shoal.numerics.mac.unit import MacUnit
from shoal.numerics.rounding.plan import FLOAT32
from shoal.numerics.rounding.randomness import Keys, word
from shoal.system.threads import share_out

ALONE = 2**17  # up to this many MACs one thread is faster than two
ALONE_COPYING = 2**16  # up to this many numbers one thread copies faster than two
ALONE_READING = 2**19  # up to this many numbers one thread finds the largest as fast as two
ROW_BLOCK = 128  # rows per work item, at most
PACKED = 2**22  # numbers that are packed at a time, if one panel of columns is not more
PIECES = 8  # work items per thread, at least, if there are enough rows and columns
REMEMBERED = 2**17  # up to this many offsets are kept for the next product of the same shape
SLACK = 1 + 2.0**-20  # for the rounding of bounds that are computed in float64
EXACT_PIECE = 64  # shortest sums for which exact sums by BLAS pay

Axes = tuple[tuple[int, int], ...]  # length and stride of each axis, the last one fastest
Place = tuple[Axes, Axes, Axes]  # where the matrices, rows and columns of a result are in memory


class Operand:
    """Matrices in place: (batch or 1, lines, steps), with each of the three made of any number of a tensor's axes.

    Lines are the rows of the first operand or the columns of the second; products are summed over steps.
    """

    def __init__(
        self, numbers: Tensor, batch: Axes, lines: Axes, steps: Axes, first: int = 0, copies: str = "lines"
    ) -> None:
        """`numbers` is flat and contiguous, `first` the place of the first number.

        `copies`: whether a copy is made line by line or step by step, on which the last bits of torch's own products
        depend; `windows` and `windows by steps` are always copied.
        """
        self.numbers, self.axes, self.first, self.copies = numbers, (batch, lines, steps), first, copies
        self.shape = tuple(math.prod(length for length, _ in axes) for axes in self.axes)

    @staticmethod
    def of(matrices: Tensor) -> "Operand":
        """(batch or 1, lines, steps)."""
        batch, lines, steps = zip(matrices.shape, matrices.stride(), strict=True)
        return Operand(flat(matrices), (batch,), (lines,), (steps,))

    def change(self, change: Callable[[Tensor], Tensor]) -> "Operand":
        """The same with other numbers."""
        return Operand(change(self.numbers), *self.axes, self.first, self.copies)

    def view(self, dtype: type) -> View:
        """For the compiled loops."""
        numbers: NDArray[Any] = self.numbers.numpy()
        batch, lines, steps = (offsets(axes) for axes in self.axes)
        return View(numbers.astype(dtype, copy=False), batch + self.first, lines, steps)

    def matrices(self) -> Tensor:
        """As a tensor (batch or 1, lines, steps); copied only if strides cannot express it."""
        merged = [_merged(axes) for axes in self.axes]
        in_place = all(len(axes) <= 1 and (not axes or axes[0][1] >= 0) for axes in merged)
        if in_place and not self.copies.startswith("windows"):
            sizes, strides = zip(*(axes[0] if axes else (1, 0) for axes in merged), strict=True)
            return self.numbers.as_strided(sizes, strides, self.numbers.storage_offset() + self.first)
        view = self.view(np.float32 if self.numbers.dtype == torch.float32 else np.float64)
        by_steps = self.copies.endswith("steps")
        if by_steps:
            view = View(view.numbers, view.batch, view.steps, view.lines)
        taken = np.empty((view.batch.size * view.lines.size, view.steps.size), view.numbers.dtype)
        threads = torch.get_num_threads() if taken.size > ALONE_COPYING else 1
        share_out(panels.take, len(taken), threads, view, taken)
        made = torch.from_numpy(taken).reshape(view.batch.size, view.lines.size, view.steps.size)
        return made.mT if by_steps else made

    def most(self) -> float:
        """The largest magnitude; infinite or NaN if any number is. May be larger if not all numbers are taken."""
        kind = np.int32 if self.numbers.dtype == torch.float32 else np.int64
        bits = self.numbers.numpy().view(kind)
        threads = 2 if bits.size > ALONE_READING else 1
        most = max(share_out(panels.largest, bits.size, threads, bits, np.iinfo(kind).max))
        return float(kind(most).view(np.float32 if kind == np.int32 else np.float64))


def flat(x: Tensor) -> Tensor:
    """The memory from the first number of a tensor to its last."""
    span = 1 + sum((length - 1) * stride for length, stride in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((span,), (1,)) if x.numel() else x.reshape(-1)


def broadcast(a: Operand, b: Operand) -> int:
    """How many matrices the product has."""
    return a.shape[0] if b.shape[0] == 1 else b.shape[0]


def placed(matrices: Tensor, place: Place) -> Tensor:
    """(n, rows, columns) as flat memory, each number in its place."""
    axes = [pair for part in place for pair in part]
    order = sorted(range(len(axes)), key=lambda n: -axes[n][1])
    return matrices.reshape([length for length, _ in axes]).permute(order).contiguous().reshape(-1)


def offsets(axes: Axes) -> NDArray[np.int64]:
    """The places of all combinations of indices, the last axis fastest; not to be written to."""
    remembered = math.prod(length for length, _ in axes) <= REMEMBERED
    return (_offsets if remembered else _offsets.__wrapped__)(axes)


@lru_cache(maxsize=128)
def _offsets(axes: Axes) -> NDArray[np.int64]:
    places = np.zeros(1, np.int64)
    for length, stride in axes:
        places = (places[:, None] + np.arange(length, dtype=np.int64) * stride).reshape(-1)
    return places


def _merged(axes: Axes) -> list[tuple[int, int]]:
    """Fewer axes with the same places."""
    merged: list[tuple[int, int]] = []
    for length, stride in axes:
        if length == 1:
            continue
        if merged and merged[-1][1] == length * stride:
            merged[-1] = (merged[-1][0] * length, stride)
        else:
            merged.append((length, stride))
    return merged


class Product:
    """a (n or 1, rows, k) times b (n or 1, columns, k)."""

    def __init__(
        self, unit: MacUnit, a: Operand, b: Operand, dtype: torch.dtype, stats: bool, chosen: Keys, threads: int,
        place: Place | None = None,
    ) -> None:  # fmt: skip
        """`place`: where the result is in memory; by default, matrix by matrix and row by row."""
        self.unit, self.a, self.b, self.dtype, self.stats, self.keys = unit, a, b, dtype, stats, chosen
        self.batch, (self.rows, self.depth), self.columns = broadcast(a, b), a.shape[1:], b.shape[1]
        self.threads = threads if self.batch * self.rows * self.columns * self.depth > ALONE else 1
        by_default = ((self.batch, self.rows * self.columns),), ((self.rows, self.columns),), ((self.columns, 1),)
        self.place: Place = by_default if place is None else place

    def run(self, counts: NDArray[np.int64]) -> Tensor:
        """The result, flat, in its place in memory; events are added to `counts`."""
        most = self.a.most(), self.b.most()
        finite = math.isfinite(most[0]) and math.isfinite(most[1])
        if finite:
            exact = self._blas(most)
            made = self._round_once(most, counts) if exact is None else exact
            if made is not None:
                return placed(made.to(self.dtype), self.place)
        what = known(self.unit, most[0] * most[1] * SLACK, self.depth) if finite else UNKNOWN
        chosen = fast(self.unit, self.stats, what)
        if chosen is not None and (by_tiles := self._by_tiles(chosen, counts, finite)) is not None:
            return by_tiles
        return placed(self.one_by_one(counts).to(self.dtype), self.place)

    def one_by_one(self, counts: NDArray[np.int64]) -> Tensor:
        """The result (n, rows, columns) by the loops in float64."""
        result = np.empty((self.batch, self.rows * self.columns), np.float64)
        for n in range(self.batch):
            self._outputs(n, np.arange(self.rows * self.columns), result[n], counts)
        return torch.from_numpy(result.reshape(self.batch, self.rows, self.columns))

    def _blas(self, most: tuple[float, float]) -> Tensor | None:
        """The product by BLAS, if every sum of products, in any order, is exactly a value of the accumulator."""
        step, largest = exact_sums(self.unit)
        bound = most[0] * most[1] * SLACK
        if bound > largest:
            return None
        bound = bound * self.depth if bound * self.depth <= largest else self._bound(most)
        if bound > largest:
            return None
        normal = step >= 2.0**FLOAT32.lowest and bound < 2.0**FLOAT32.highest
        kind = torch.float32 if normal and bound <= step * 2**24 else torch.float64
        a, b = (operand.matrices().to(kind) for operand in (self.a, self.b))
        return torch.from_numpy(np.matmul(a.numpy(), b.mT.numpy()) + 0.0)

    def _bound(self, most: tuple[float, float]) -> float:
        """A bound of the sums of the products' magnitudes: largest sum of one operand times the other's largest."""
        sums = [float(operand.matrices().double().abs().sum(-1).max()) for operand in (self.a, self.b)]
        return min(sums[0] * most[1], sums[1] * most[0]) * SLACK

    def _round_once(self, most: tuple[float, float], counts: NDArray[np.int64]) -> Tensor | None:
        """Exact order: sums by BLAS, in pieces that float64 adds exactly; the sum of the pieces is rounded once."""
        rules = mac_plan(self.unit)
        plan, step = rules[0], exact_products(self.unit)
        bound = most[0] * most[1] * SLACK
        if self.unit.order != "exact" or plan.wraps or step == 0 or bound > plan.product_max:
            return None
        piece = self.depth if bound == 0 else int(min(self.depth, step * 2.0**53 / bound))
        if piece < min(self.depth, EXACT_PIECE):
            return None
        if bound * self.depth * -(-self.depth // piece) > step * 2.0**105:  # what sums of pieces lose may have 53 bits
            return None
        a, b = (operand.matrices().double() for operand in (self.a, self.b))
        high, low = np.zeros((2, self.batch * self.rows * self.columns))
        for k in range(0, self.depth, piece):
            part = np.matmul(a[..., k : k + piece].numpy(), b[..., k : k + piece].mT.numpy())
            kernels.add_exactly(high, low, part.reshape(-1))
        threads = self.threads if high.size > ALONE_COPYING else 1
        for events in share_out(kernels.round_sums, high.size, threads, high, low, rules, self.keys):
            counts += events
        return torch.from_numpy(high.reshape(self.batch, self.rows, self.columns))

    def _outputs(
        self, n: int, outputs: NDArray[np.int64], result: NDArray[np.float64], counts: NDArray[np.int64]
    ) -> None:
        """Outputs of matrix n, by the loops in float64; those with operands that are not finite count no events."""
        a, b = (self._matrix(operand, n).double().contiguous().numpy() for operand in (self.a, self.b))
        first = n * self.rows * self.columns
        rows, columns = (~np.isfinite(matrix).all(1) for matrix in (a, b))
        unknown = rows[outputs // self.columns] | columns[outputs % self.columns]
        for chosen, counted in ((outputs[~unknown], slice(None)), (outputs[unknown], slice(kernels.NANS, None))):
            given = (a, b, result, chosen, mac_plan(self.unit), first, self.keys)
            for events in share_out(kernels.multiply_outputs, chosen.size, min(self.threads, chosen.size), *given):
                counts[counted] += events[counted]

    @staticmethod
    def _matrix(operand: Operand, n: int) -> Tensor:
        return operand.matrices()[n if operand.shape[0] > 1 else 0]

    def _infinite(self, n: int) -> NDArray[np.float32]:
        """The sums of matrix n that have an infinite or NaN operand; others are anything.

        Only where finite products and sums stay finite: then nothing but infinite products decides, in any order, so
        that finite numbers may be replaced by 1 with their sign. Zeros, too, where zero times infinity is infinity.
        """
        zero = float(not mac_plan(self.unit)[0].nan_code)
        a, b = (self._matrix(operand, n).float() for operand in (self.a, self.b))
        a, b = (torch.where(x.isfinite(), torch.ones(()).copysign(x) * torch.where(x == 0, zero, 1), x) for x in (a, b))
        with np.errstate(invalid="ignore"):
            sums = np.matmul(a.numpy(), b.numpy().T)
        sums[np.isnan(sums)] = np.nan  # the positive one
        return sums

    def _by_tiles(self, chosen: Fast, counts: NDArray[np.int64], finite: bool) -> Tensor | None:
        """The result by the fast loops; None if the processor flushes subnormals that are needed."""
        a, b = self.a.view(chosen.dtype), self.b.view(chosen.dtype)
        result = torch.empty(self.batch * self.rows * self.columns, dtype=self.dtype)
        batch, rows, columns = (offsets(axes) for axes in self.place)
        c = View(result.numpy(), batch, rows, columns)
        scale = chosen.dtype(chosen.scale)
        bad = [np.zeros((0, 0), bool)] * 2
        if not finite:
            bad = [~operand.matrices().isfinite().all(-1).numpy() for operand in (self.a, self.b)]
        again = np.zeros((self.batch, self.rows, self.columns) if chosen.marks else (1, 1, 1), bool)
        words, address = self._words(), make_tile(chosen.kind).address
        totals: list[NDArray[np.int64]] = []
        column_panels = -(-self.columns // COLUMNS)
        most = max(1, PACKED // (b.batch.size * (self.depth + 1) * COLUMNS))
        numbers = b.batch.size * min(column_panels, most) * (self.depth + 1) * COLUMNS
        packed: NDArray[Any] = np.empty(numbers, chosen.dtype)

        def work(begin: int, end: int) -> int:
            if chosen.subnormals and panels.flushes(np.array([2.0**-126, 0.5], np.float32)):
                return 1
            events, levels = np.zeros(2, np.int64), panels.LEVELS if chosen.kind & TREE else 1
            sums: NDArray[Any] = np.zeros(panels.TILE, chosen.dtype)
            stack: NDArray[Any] = np.zeros(levels * panels.TILE, chosen.dtype)
            rows, keys = np.zeros(ROWS, np.int64), np.zeros(panels.TILE, np.uint32)
            seen = np.zeros(3 * panels.TILE, np.int32)
            scratch = Scratch(sums, rows, stack, keys, seen)
            used = (a.numbers, rows, a.steps, packed, sums, stack, chosen.floats, chosen.ints, words, keys, seen)
            addresses = np.array([array.ctypes.data for array in used], np.int64)
            panels.multiply(
                begin, end, address, chosen.kind, a, b, c, scale, layout, addresses.ctypes.data, scratch, words,
                bad[0], bad[1], again, events,
            )  # fmt: skip
            totals.append(events)
            return 0

        for first in range(0, column_panels, most):
            block = first, min(column_panels, first + most)
            layout = self._layout(*block)
            items = b.batch.size * (block[1] - first)
            threads = min(self.threads, items) if packed.size > ALONE_COPYING else 1
            share_out(panels.pack, items, threads, b, block, scale, packed)
            pieces = self.batch * -(-self.rows // layout.row_block) * -(-(block[1] - first) // layout.column_block)
            if any(share_out(work, pieces, min(self.threads, pieces))):
                return None
        counts[[kernels.SATURATED, kernels.UNDERFLOWED]] += np.sum(totals, axis=0)
        if not finite or (chosen.marks and again.any()):
            self._again(c, again if chosen.marks else None, bad, counts)
        return result

    def _layout(self, first_panel: int, last_panel: int) -> Layout:
        """The work on these panels of columns, in items of similar size."""
        row_block, column_block = min(ROW_BLOCK, self.rows), last_panel - first_panel
        most = self.batch * column_block * self.rows / (PIECES * self.threads)  # rows of panels per work item
        while column_block > 1 and row_block * column_block > most:
            column_block = -(-column_block // 2)
        return Layout(
            row_block=-(-max(1, min(row_block, int(most))) // ROWS) * ROWS,
            column_block=column_block,
            chunk=self.unit.chunk,
            strict=int(self.unit.overflow != "saturate"),
            first_panel=first_panel,
            last_panel=last_panel,
            chance_before=self.keys.upper_before,
            chance_between=self.keys.upper_between,
            random_bits=self.unit.random_bits if self.unit.rounding == "stochastic" else 0,
        )

    def _words(self) -> NDArray[np.uint32]:
        """The random words of pairs of steps, then of chunks."""
        if self.unit.rounding != "stochastic":
            return np.zeros(1, np.uint32)
        steps, chunk = np.arange(-(-self.depth // 2)), self.unit.chunk
        if chunk:
            steps = np.concatenate([steps, (self.depth + np.arange(-(-self.depth // chunk))) // 2])
        return word(steps, self.keys.lower_before, self.keys.lower_between).astype(np.uint32)

    def _again(
        self, c: View, again: NDArray[np.bool_] | None, bad: list[NDArray[np.bool_]], counts: NDArray[np.int64]
    ) -> None:
        """Recompute, one by one, the outputs that the tiles could not; those of infinite operands are known."""
        at_once = only_infinities_decide(self.unit)
        for n in range(self.batch):
            wrong = np.zeros((self.rows, self.columns), bool) if again is None else again[n]
            values, unknown = np.empty(wrong.shape), np.zeros_like(wrong)
            if bad[0].size:
                rows, columns = (lines[n if len(lines) > 1 else 0] for lines in bad)
                unknown = rows[:, None] | columns
            wrong = wrong & ~unknown if at_once else wrong | unknown
            if at_once and unknown.any():
                values[unknown] = self._infinite(n)[unknown]
            if wrong.any():
                self._outputs(n, np.flatnonzero(wrong), values.reshape(-1), counts)
            outputs = np.flatnonzero(wrong | unknown)
            places = c.batch[n] + c.lines[outputs // self.columns] + c.steps[outputs % self.columns]
            c.numbers[places] = values.reshape(-1)[outputs]


@lru_cache(maxsize=256)
def only_infinities_decide(unit: MacUnit) -> bool:
    """Whether a sum with an infinite product is infinite or NaN whatever its finite products are."""
    sums, path, (plan, _, _) = unit.accumulator, unit.datapath, mac_plan(unit)
    finite = not plan.product_rounded and path.largest_product <= Fraction(min(plan.product_max, 2.0**1000))
    special = isinstance(sums, FloatFormat) and sums.infinities and sums.nans
    return special and finite and unit.overflow == "saturate" and unit.order != "kahan" and not plan.zero_infinity


@lru_cache(maxsize=256)
def exact_products(unit: MacUnit) -> float:
    """A power of two of which all products are multiples, if the multiplier neither rounds nor flushes; else 0."""
    path, (plan, _, _) = unit.datapath, mac_plan(unit)
    flushed = path.smallest_product < Fraction(plan.product_flush_before)
    return 0.0 if plan.product_rounded or flushed else math.ldexp(1.0, path.product_lsb)


@lru_cache(maxsize=256)
def exact_sums(unit: MacUnit) -> tuple[float, float]:
    """(such a power of two, the bound up to which all its multiples are values of the accumulator; or -1)."""
    sums, step, (plan, _, _) = unit.accumulator, exact_products(unit), mac_plan(unit)
    if step == 0 or unit.order == "kahan" or step < sums.min_positive:  # or there is a gap below the smallest value
        return step, -1.0
    return step, min(sums.max, plan.product_max, step * 2.0 ** min(sums.significant_bits, 53))
