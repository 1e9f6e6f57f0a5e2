"""Recording a program: the memory it works in, its operations, and the pieces that threads take.

An algorithm calls methods of `Program` once, in the order in which things are to be computed; nothing is computed then.
`work.py` runs what was recorded, for every update. Every operation of `kernels.py` is a method: `program.move(...)`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from shoal.native import work
from shoal.native.kernels import OPERATIONS
from shoal.native.operations import FIELDS, NOWHERE, OFFSET_BITS, OPERANDS, Operation, Rows
from shoal.native.tile import ADD, BIAS, MASK, NARROW, PLAIN, RELU, ZERO

ALIGNED, LINE = 64, 16  # bytes and float32 numbers of a cache line


def padded(width: int) -> int:
    """The next multiple of a narrow panel's columns."""
    return -(-width // NARROW) * NARROW


class Span:
    """The operations of a piece, while they are recorded: those that run once, then those of every chunk of rows, then
    those that publish what was computed."""

    def __init__(self, ops: list[list[int]]) -> None:
        self._ops, self.marks = ops, [len(ops)]

    def every_chunk(self) -> None:
        """What follows runs for every chunk."""
        self.marks.append(len(self._ops))

    def publish(self) -> None:
        """What follows runs once, on all rows of the piece, when they are done; it may write shared memory."""
        self.marks.append(len(self._ops))


class Program:
    """Buffers, operations and pieces."""

    def __init__(self, dtype: type, rows: int, chunk: int, operations: tuple[Operation, ...] = OPERATIONS) -> None:
        """`rows` of the mini-batch; `chunk` of them go through the operations together."""
        self.dtype, self.rows, self.chunk = np.dtype(dtype), rows, chunk
        self.strides: list[int] = []
        self.arrays: dict[int, NDArray] = {}  # shared buffers
        self.private: dict[int, int] = {}  # sizes of buffers of which every thread has its own
        self.slots: list[int] = []  # buffers whose gradients are left in each slot
        self.phases: list[str] = ["waiting"]
        self.operations = operations
        self._ops: list[list[int]] = []
        self._pieces: list[list[int]] = []
        self.counted: list[int] = []  # pieces that each counter counts in a round
        self._scratch = self.own(0)
        self._scratch_used = 0
        self.ones = self.array(np.ones(1))
        self.rate_factor = self.array(np.ones(1))  # of the learning rate

    # ---- memory ------------------------------------------------------------------------------------------------------

    def buffer(self, stride: int) -> int:
        """A new buffer with this many numbers per row of the mini-batch; its operand is that of its first number."""
        self.strides.append(stride)
        return len(self.strides) - 1 << OFFSET_BITS

    def array(self, values: NDArray, stride: int = 0) -> int:
        """Shared memory that starts with these values."""
        operand = self.zeros(values.size, stride)
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
        return self._taken(width, padded(width))

    def vector(self) -> Rows:
        """The same with one number per row, close together."""
        return self._taken(1, 1)

    def _taken(self, width: int, ld: int) -> Rows:
        at, buffer = self._scratch + self._scratch_used, self._scratch >> OFFSET_BITS
        self._scratch_used += -(-self.chunk * ld // LINE) * LINE
        self.private[buffer] = max(self.private[buffer], self._scratch_used)
        return Rows(at, ld, width)

    @contextmanager
    def temporary(self) -> Iterator[None]:
        """What is taken from the scratch memory inside is free again after it."""
        used = self._scratch_used
        yield
        self._scratch_used = used

    # ---- pieces ------------------------------------------------------------------------------------------------------

    def counter(self) -> int:
        """The number of a new counter of pieces that are done."""
        self.counted.append(0)
        return len(self.counted) - 1

    @contextmanager
    def span(self, phase: str = "") -> Iterator[Span]:
        """Record the operations of a piece, which begins with this phase."""
        span, self._scratch_used = Span(self._ops), 0
        if phase:
            self.phase(phase)
        yield span
        span.marks += [len(self._ops)] * (4 - len(span.marks))

    def piece(
        self, span: Span, tells: Sequence[int] = (), needs: Sequence[int] = (), rows: tuple[int, int] = (0, 1),
        slot: int = NOWHERE, alone: bool = False,
    ) -> None:  # fmt: skip
        """Add a piece: these operations on these rows, once everything that the counters `needs` count is done.

        When it is done it counts for `tells`; of either there are at most two. Its gradients are left in `slot`, if
        there is one. A piece `alone` changes shared memory before it is published.
        """
        begin, _, publish, _ = span.marks
        if not alone:
            for op in self._ops[begin:publish]:
                declared = self.operations[op[0]]
                for operand in declared.writes(op):
                    if operand >= 0 and operand >> OFFSET_BITS not in self.private:
                        raise ValueError(f"'{declared.name}' writes shared memory before its piece is published")
        for counter in tells:
            self.counted[counter] += 1
        buffer = self.slots[slot] >> OFFSET_BITS if slot >= 0 else NOWHERE
        (first, second), told = ([*counters, NOWHERE, NOWHERE][:2] for counters in (needs, tells))
        self._pieces.append([*span.marks, *rows, first, 0, second, 0, *told, slot, buffer, int(alone)])

    def new_slots(self, gradients: int, count: int) -> int:
        """The first of so many places for gradients that threads compute in their own buffer `gradients`."""
        self.slots += [gradients] * count
        return len(self.slots) - count

    def pieces(self, first: int = 0, last: int | None = None) -> NDArray[np.int64]:
        """The pieces first to last, as `work` takes them."""
        table = np.array(self._pieces[first:last], np.int64).reshape(-1, work.PIECE_FIELDS)
        counted = np.array([*self.counted, 0])  # the last for NOWHERE
        for needs in (work.NEEDS, work.ALSO):
            table[:, needs + 1] = counted[table[:, needs]]
        return table

    @property
    def piece_count(self) -> int:
        return len(self._pieces)

    def ops(self) -> NDArray[np.int64]:
        """The operations, as `work` takes them."""
        return np.array(self._ops, np.int64).reshape(-1, 1 + OPERANDS + FIELDS)

    # ---- operations --------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Callable[..., None]:
        """`program.copy(target, source)` records the operation `copy`; operands are rows, places, or NOWHERE."""
        for code, declared in enumerate(self.__dict__.get("operations", ())):
            if declared.name == name:
                return lambda *given, **named: self._ops.append(declared.encoded(code, *given, **named))
        raise AttributeError(f"a program has no operation '{name}'")

    def phase(self, name: str) -> None:
        """From here on the time belongs to this phase."""
        if name not in self.phases:
            self.phases.append(name)
        self.begin_phase(self.phases.index(name))

    def affine(self, out: Rows, x: Rows, weight: int, inputs: int, bias: int | None, first: int, relu: bool) -> None:
        """out = x W + bias (NOWHERE: out = x W, None: out += x W); then a ReLU. W is in panels of `inputs` rows, of
        which those from `first` on are used, one per column of x."""
        start = ADD if bias is None else ZERO if bias == NOWHERE else BIAS
        self.product(
            out, x, weight, x.ld, 1, x.width, padded(out.width), b_rows=inputs, b_first=first, bias=bias,
            start=start, end=RELU if relu else PLAIN,
        )  # fmt: skip

    def to_input(self, out: Rows, gradient: Rows, transposed: int, mask: Rows | None, add: bool = False) -> None:
        """out = gradient W', zero where the mask is not positive, or out += it; W' (units, inputs) is in panels."""
        assert mask is None or mask.ld == out.ld
        units, end = gradient.width, PLAIN if mask is None else MASK
        self.product(
            out, gradient, transposed, gradient.ld, 1, units, padded(out.width), b_rows=units, mask=mask,
            start=ADD if add else ZERO, end=end,
        )  # fmt: skip

    def outer(self, out: Rows, gradient: Rows, weight: int, mask: Rows) -> None:
        """out = gradient (one number per row) times a vector of weights, zero where the mask is not positive."""
        width = padded(out.width)
        self.product(out, gradient, Rows(weight, width, width), 1, 0, 1, width, mask=mask, end=MASK)

    def to_weight(self, at: int, x: Rows, gradient: Rows) -> None:
        """W's gradient, in panels, += x' gradient."""
        columns = padded(gradient.width)
        self.product(at, x, gradient, 1, x.ld, NOWHERE, columns, m=x.width, c_rows=x.width, start=ADD)

    def add_columns(self, at: int, x: Rows, by: Rows | None = None) -> None:
        """at += the sum of the rows, each times a number of `by`."""
        weight, step = (self.ones, 0) if by is None else (by, 1)
        self.column_sums(at, x, x.ld if x.width > 1 else 1, weight, step)


def aligned(size: int, dtype: np.dtype) -> NDArray:
    """Zeros that start at a cache line."""
    raw = np.zeros(size * dtype.itemsize + ALIGNED, np.uint8)
    first = -raw.ctypes.data % ALIGNED
    return raw[first : first + size * dtype.itemsize].view(dtype)
