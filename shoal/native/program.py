"""Recording a program: the memory it works in, its operations, and the pieces that threads take.

An algorithm calls methods of `Program` once, in the order in which things are to be computed; nothing is computed then.
`work.py` runs what was recorded, for every update.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.native import work
from shoal.native.tile import ADD, BIAS, MASK, NARROW, PLAIN, RELU, ZERO
from shoal.native.work import NOWHERE, OFFSET_BITS

ALIGNED, LINE = 64, 16
"""Bytes and float32 numbers of a cache line."""


def padded(width: int) -> int:
    """The next multiple of a narrow panel's columns."""
    return -(-width // NARROW) * NARROW


class Rows(NamedTuple):
    """Numbers in rows: where the first one is, the distance between rows, and how many in a row."""

    at: int
    ld: int
    width: int

    def columns(self, first: int, width: int) -> "Rows":
        """Some of the columns."""
        return Rows(self.at + first, self.ld, width)


@dataclass
class Counter:
    """Counts pieces that are done; `needed` of them in every round."""

    number: int
    needed: int = 0


class Span:
    """The operations of a piece, while they are recorded: those that run once, then those of every chunk of rows, then
    those that publish what was computed."""

    def __init__(self, program: "Program") -> None:
        self.program = program
        self.marks = [program.mark()]
        program.free_scratch()

    def every_chunk(self) -> None:
        """What follows runs for every chunk."""
        self.marks.append(self.program.mark())

    def publish(self) -> None:
        """What follows runs once, on all rows of the piece, when they are done; it may write shared memory."""
        self.marks.append(self.program.mark())


class Program:
    """Buffers, operations and pieces."""

    def __init__(self, dtype: type, rows: int, chunk: int) -> None:
        """`rows` of the mini-batch; `chunk` of them go through the operations together."""
        self.dtype, self.rows, self.chunk = np.dtype(dtype), rows, chunk
        self.strides: list[int] = []
        self.arrays: dict[int, NDArray] = {}  # shared buffers
        self.private: dict[int, int] = {}  # sizes of buffers of which every thread has its own
        self.slots: list[int] = []  # buffers whose gradients are left in each slot
        self.phases: list[str] = ["waiting"]
        self._ops: list[list[int]] = []
        self._pieces: list[list[int]] = []
        self._counters: list[Counter] = []
        self._scratch = self.own(0)
        self._scratch_used = 0
        self.ones = self.array(np.ones(1))

    # ---- memory ------------------------------------------------------------------------------------------------------

    def buffer(self, stride: int) -> int:
        """A new buffer with this many numbers per row of the mini-batch; its operand is that of its first number."""
        self.strides.append(stride)
        return len(self.strides) - 1 << OFFSET_BITS

    def array(self, values: NDArray, stride: int = 0) -> int:
        """Shared memory that starts with these values."""
        operand = self.buffer(stride)
        self.arrays[operand >> OFFSET_BITS] = aligned(values.size, self.dtype)
        self.values(operand)[:] = values.reshape(-1)
        return operand

    def zeros(self, size: int, stride: int = 0) -> int:
        """Shared memory that starts with zeros."""
        operand = self.buffer(stride)
        self.arrays[operand >> OFFSET_BITS] = aligned(size, self.dtype)
        return operand

    def values(self, operand: int) -> NDArray:
        """The numbers of shared memory from there on."""
        return self.arrays[operand >> OFFSET_BITS][operand & (1 << OFFSET_BITS) - 1 :]

    def alias(self, operand: int) -> int:
        """The same shared memory as a whole, not by rows of the mini-batch."""
        other = self.buffer(0)
        self.arrays[other >> OFFSET_BITS] = self.arrays[operand >> OFFSET_BITS]
        return other

    def own(self, size: int, stride: int = 0) -> int:
        """Memory of which every thread has its own."""
        operand = self.buffer(stride)
        self.private[operand >> OFFSET_BITS] = size
        return operand

    def own_rows(self, width: int) -> Rows:
        """Rows for the whole mini-batch, of which every thread has its own."""
        return Rows(self.own(self.rows * width, stride=width), width, width)

    def scratch(self, width: int) -> Rows:
        """A thread's rows for a chunk, free again at the end of the `temporary` block."""
        return self._taken(Rows(0, padded(width), width))

    def vector(self) -> Rows:
        """The same with one number per row, close together."""
        return self._taken(Rows(0, 1, 1))

    def _taken(self, rows: Rows) -> Rows:
        at = self._scratch + self._scratch_used
        self._scratch_used += -(-self.chunk * rows.ld // LINE) * LINE
        self.private[self._scratch >> OFFSET_BITS] = max(self.private[self._scratch >> OFFSET_BITS], self._scratch_used)
        return rows._replace(at=at)

    @contextmanager
    def temporary(self) -> Iterator[None]:
        """What is taken from the scratch memory inside is free again after it."""
        used = self._scratch_used
        yield
        self._scratch_used = used

    # ---- pieces ------------------------------------------------------------------------------------------------------

    def counter(self) -> Counter:
        """A new counter of pieces that are done."""
        self._counters.append(Counter(len(self._counters)))
        return self._counters[-1]

    def mark(self) -> int:
        """The place of the next operation."""
        return len(self._ops)

    def free_scratch(self) -> None:
        """All of the scratch memory is free again: another piece begins."""
        self._scratch_used = 0

    @contextmanager
    def span(self) -> Iterator[Span]:
        """Record the operations of a piece."""
        span = Span(self)
        yield span
        span.marks += [self.mark()] * (4 - len(span.marks))

    def piece(
        self,
        span: Span,
        tells: Sequence[Counter],
        needs: Sequence[Counter] = (),
        rows: tuple[int, int] = (0, 1),
        slot: int = NOWHERE,
        alone: bool = False,
    ) -> None:
        """Add a piece: these operations on these rows, once everything that is counted by `needs` is done.

        When it is done it counts for `tells`; of either there are at most two. Its gradients are left in `slot`, if
        there is one. A piece `alone` changes shared memory before it is published.
        """
        for counter in tells:
            counter.needed += 1
        buffer = self.slots[slot] >> OFFSET_BITS if slot >= 0 else NOWHERE
        first, second = ([counter.number for counter in needs] + [NOWHERE] * 2)[:2]
        told = ([counter.number for counter in tells] + [NOWHERE] * 2)[:2]
        self._pieces.append([*span.marks, *rows, first, 0, second, 0, *told, slot, buffer, int(alone)])

    def new_slots(self, gradients: int, count: int) -> int:
        """The first of so many places for gradients that threads compute in their own buffer `gradients`."""
        self.slots += [gradients] * count
        return len(self.slots) - count

    def pieces(self, first: int = 0, last: int | None = None) -> NDArray[np.int64]:
        """The pieces first to last, as `work` takes them."""
        table = np.array(self._pieces[first:last], np.int64).reshape(-1, work.PIECE_FIELDS)
        for piece in table:
            for counter in (work.NEEDS, work.ALSO):
                piece[counter + 1] = self._counters[piece[counter]].needed if piece[counter] >= 0 else 0
        return table

    @property
    def piece_count(self) -> int:
        """Pieces so far."""
        return len(self._pieces)

    @property
    def counter_count(self) -> int:
        """Counters so far."""
        return len(self._counters)

    def ops(self) -> NDArray[np.int64]:
        """The operations, as `work` takes them."""
        return np.array(self._ops, np.int64).reshape(-1, work.FIELDS)

    # ---- operations --------------------------------------------------------------------------------------------------

    def _op(self, code: int, operands: tuple[int, ...], *numbers: float) -> None:
        where = [*operands, *[NOWHERE] * (6 - len(operands))]
        fields = [int(np.float64(x).view(np.int64)) if isinstance(x, float) else int(x) for x in numbers]
        self._ops.append([code, *where, *fields, *[0] * (work.FIELDS - 7 - len(fields))])

    def phase(self, name: str) -> None:
        """From here on the time belongs to this phase."""
        if name not in self.phases:
            self.phases.append(name)
        self._op(work.PHASE, (), self.phases.index(name))

    def clear(self, at: int, size: int) -> None:
        """Set to zero."""
        self._op(work.CLEAR, (at,), size)

    def affine(
        self, out: Rows, x: Rows, weight: int, inputs: int, units: int, bias: int | None, *,
        first: int = 0, count: int | None = None, relu: bool = False,
    ) -> None:  # fmt: skip
        """out = x W + bias, or with no bias out += x W; then a ReLU. W (inputs, units) is in panels.

        With `count`, x has that many columns, and only so many rows of W from `first` on are used.
        """
        self._op(
            work.PRODUCT, (out.at, x.at, weight, NOWHERE if bias is None else bias),
            out.ld, 0, x.ld, 1, 0, inputs, first, padded(units), NOWHERE, inputs if count is None else count,
            ADD if bias is None else BIAS, RELU if relu else PLAIN,
        )  # fmt: skip

    def to_input(
        self, out: Rows, gradient: Rows, transposed: int, units: int, mask: Rows | None, add: bool = False
    ) -> None:
        """out = gradient W', zero where the mask is not positive, or out += it; W' (units, inputs) is in panels."""
        assert mask is None or mask.ld == out.ld
        self._op(
            work.PRODUCT, (out.at, gradient.at, transposed, NOWHERE, NOWHERE if mask is None else mask.at),
            out.ld, 0, gradient.ld, 1, 0, units, 0, padded(out.width), NOWHERE, units,
            ADD if add else ZERO, PLAIN if mask is None else MASK,
        )  # fmt: skip

    def outer(self, out: Rows, gradient: Rows, weight: int, mask: Rows) -> None:
        """out = gradient (one number per row) times a vector of weights, zero where the mask is not positive."""
        self._op(
            work.PRODUCT, (out.at, gradient.at, weight, NOWHERE, mask.at),
            out.ld, 0, 1, 0, padded(out.width), 0, 0, padded(out.width), NOWHERE, 1, ZERO, MASK,
        )  # fmt: skip

    def to_weight(self, at: int, x: Rows, gradient: Rows) -> None:
        """W's gradient, in panels, += x' gradient."""
        self._op(
            work.PRODUCT, (at, x.at, gradient.at),
            0, x.width, 1, x.ld, gradient.ld, 0, 0, padded(gradient.width), x.width, NOWHERE, ADD, PLAIN,
        )  # fmt: skip

    def column_sums(self, at: int, x: Rows, by: Rows | None = None) -> None:
        """at += the sum of the rows, each times a number of `by`."""
        weight, step = (self.ones, 0) if by is None else (by.at, 1)
        self._op(work.COLUMN_SUMS, (at, x.at, weight), x.ld, x.ld if x.width > 1 else 1, step)

    def dots(self, out: Rows, x: Rows, weight: int, bias: int) -> None:
        """out = x · weight + bias, one number per row."""
        self._op(work.DOTS, (out.at, x.at, weight, bias), x.ld, x.ld)

    def copy(self, target: Rows, source: Rows, by: int = NOWHERE) -> None:
        """target = source, each row times a number of `by`."""
        self._op(work.COPY, (target.at, source.at, by), target.ld, source.ld, target.width)

    def subtract(self, target: Rows, x: Rows, y: Rows) -> None:
        """target = x - y."""
        self._op(work.SUBTRACT, (target.at, x.at, y.at), target.ld, x.ld, y.ld, target.width)

    def gumbel_softmax(self, action: Rows, soft: Rows, logits: Rows, size: int, stream: int, hard: bool) -> None:
        """Samples of `size` choices; see `kernels.gumbel_softmax`."""
        assert action.ld == soft.ld == logits.ld
        self._op(work.GUMBEL, (action.at, soft.at, logits.at), logits.ld, size, stream, hard)

    def choice_entropy(self, entropy: Rows, probability: Rows, logits: Rows, size: int) -> None:
        """Exact entropy and probabilities of `size` choices."""
        self._op(work.ENTROPY, (entropy.at, probability.at, logits.at), logits.ld, size)

    def choices_backward(
        self, out: Rows, gradient: Rows, soft: Rows, logits: Rows, size: int, weight: int, penalty: float, loss: int
    ) -> None:
        """Gradient of the logits; see `kernels.choices_backward`."""
        operands = (out.at, gradient.at, soft.at, logits.at, weight, loss)
        self._op(work.CHOICES_BACK, operands, logits.ld, size, float(penalty))

    def choice_entropy_backward(
        self, out: Rows, probability: Rows, logits: Rows, size: int, weight: int, alpha: int
    ) -> None:
        """out -= weight alpha times the entropy's gradient."""
        self._op(work.ENTROPY_BACK, (out.at, probability.at, logits.at, weight, alpha), logits.ld, size)

    def greedy_choices(self, action: Rows, logits: Rows, size: int) -> None:
        """One-hot vectors of the largest logits."""
        assert action.ld == logits.ld
        self._op(work.GREEDY, (action.at, logits.at), logits.ld, size)

    def squash(self, action: Rows, head: Rows, size: int) -> None:
        """Actions of boxes: tanh of the means."""
        self._op(work.SQUASH, (action.at, head.at), action.ld, head.ld, size)

    def disturb(self, action: Rows, size: int, stream: int, deviation: float) -> None:
        """Add normal noise to actions of boxes."""
        self._op(work.DISTURB, (action.at,), action.ld, size, stream, float(deviation))

    def squash_backward(
        self, out: Rows, gradient: Rows, action: Rows, head: Rows, size: int, weight: int, penalty: float, loss: int
    ) -> None:
        """Gradient of a deterministic policy's head; see `kernels.squash_backward`."""
        operands = (out.at, gradient.at, action.at, head.at, weight, loss)
        self._op(work.SQUASH_BACK, operands, out.ld, action.ld, size, float(penalty))

    def gaussian(
        self, action: Rows, unit: Rows, entropy: Rows, head: Rows, sizes: tuple[int, int], stream: int,
        ends: tuple[float, float],
    ) -> None:  # fmt: skip
        """Samples of squashed Gaussians; `sizes` are the means in the head and how many of them are real."""
        self._op(
            work.GAUSSIAN, (action.at, unit.at, entropy.at, head.at),
            action.ld, head.ld, *sizes, stream, *map(float, ends),
        )  # fmt: skip

    def gaussian_backward(
        self, out: Rows, gradient: Rows, action: Rows, unit: Rows, head: Rows, sizes: tuple[int, int],
        ends: tuple[float, float], weight: int, alpha: int,
    ) -> None:  # fmt: skip
        """Gradient of a Gaussian's head; see `kernels.gaussian_backward`."""
        operands = (out.at, gradient.at, action.at, unit.at, head.at, weight)
        self._op(work.GAUSSIAN_BACK, operands, out.ld, action.ld, *sizes, *map(float, ends), alpha)

    def back_up(
        self,
        target: Rows,
        reward: Rows,
        bootstrap: int,
        q: list[Rows],
        entropy: Rows | None = None,
        alpha: int = NOWHERE,
    ) -> None:
        """target = reward + bootstrap (smallest q + alpha entropy)."""
        other = q[1].at if len(q) > 1 else NOWHERE
        soft, step = (NOWHERE, 0) if entropy is None else (entropy.at, entropy.ld)
        self._op(work.BACK_UP, (target.at, reward.at, bootstrap, q[0].at, other, soft), reward.ld, step, alpha)

    def squared_error(self, gradient: Rows, q: Rows, target: Rows, weight: int, loss: int) -> None:
        """Gradient of weight (q - target)^2, which is added to the loss."""
        self._op(work.SQUARED_ERROR, (gradient.at, q.at, target.at, weight, loss))

    def climb(self, gradients: list[Rows], q: list[Rows], weight: int, loss: int) -> None:
        """Gradients of -weight (smallest q), which is added to the loss."""
        other = (gradients[1].at, q[1].at) if len(q) > 1 else (NOWHERE, NOWHERE)
        self._op(work.CLIMB, (gradients[0].at, other[0], q[0].at, other[1], weight, loss))

    def weighted_sum(
        self, total: int, x: Rows, weight: int, factor: int = NOWHERE, minus: float = 0.0, count: int = NOWHERE
    ) -> None:
        """total += factor times the sum of weight (x - minus), over the rows or over so many numbers."""
        self._op(work.WEIGHTED_SUM, (total, x.at, weight, factor), float(minus), count)

    def gather(self, into: int, slot: int, parts: int, size: int) -> None:
        """Add up the gradients in these slots; from here on they are the buffer `into`."""
        self._op(work.GATHER, (), into >> OFFSET_BITS, slot, parts, size)

    def adam(self, x: int, gradient: int, mean: int, square: int, size: int, clip: float, rate: float) -> None:
        """One step, with the gradient clipped to a norm."""
        self._op(work.ADAM, (x, gradient, mean, square), size, float(clip), float(rate))

    def move(self, target: int, online: int, size: int, period: int, tau: float) -> None:
        """Move targets towards online weights, once in `period` updates."""
        self._op(work.MOVE, (target, online), size, period, float(tau))

    def transpose(self, out: int, weight: int, inputs: int, first: int, count: int, units: int) -> None:
        """The transposed of rows first to first + count of W (inputs, units), all in panels."""
        self._op(work.TRANSPOSE, (out, weight), inputs, first, count, units)

    def exponential(self, out: int, x: int) -> None:
        """out = exp(x), one number."""
        self._op(work.EXPONENTIAL, (out, x))


def aligned(size: int, dtype: np.dtype) -> NDArray:
    """Zeros that start at a cache line."""
    raw = np.zeros(size * dtype.itemsize + ALIGNED, np.uint8)
    first = -raw.ctypes.data % ALIGNED
    return raw[first : first + size * dtype.itemsize].view(dtype)
