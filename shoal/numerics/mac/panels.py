"""Products of matrices by tiles: which numbers a tile reads, where its results go, and what is counted.

A matrix is a `View`: the number of line i at step k is numbers[lines[i] + steps[k]]. So transposed and permuted
tensors, windows of an image and flipped kernels are read in place. The second operand's columns are packed, 16 at a
time; the first operand's rows are not.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.numerics.mac.lanes import COLUMNS
from shoal.numerics.mac.tile_kernels import COUNT, FREE, MODE, NATIVE, ROUND, ROWS, SUBTREE, TREE, call_tile, group_of
from shoal.numerics.rounding.kernels import intrinsic, random_word

TILE = ROWS * COLUMNS
LEVELS = 40
"""Levels of a tree, at most."""
RUNS = 6  # up to this many runs of neighbours, 16 columns are copied run by run
BLOCK = 64  # steps that are packed together where neighbours are steps


class View(NamedTuple):
    """Matrices in place: number (i, k) of matrix n is numbers[batch[n] + lines[i] + steps[k]].

    A batch of one stands for any number of equal matrices.
    """

    numbers: NDArray[Any]
    batch: NDArray[np.int64]
    lines: NDArray[np.int64]
    steps: NDArray[np.int64]


class Layout(NamedTuple):
    """How a product is divided, and where its parts are."""

    row_block: int  # rows per work item, a multiple of ROWS
    column_block: int  # panels of columns per work item
    chunk: int  # products per chunk; 0 if the order is not chunked
    strict: int  # whether sums that exceed the range must be recomputed
    first_panel: int  # the panels that have been packed
    last_panel: int
    chance_before: int  # keys of the outputs' random words
    chance_between: int
    random_bits: int  # 0 if rounding is not stochastic


class Scratch(NamedTuple):
    """A thread's own memory, besides that of the tile's arguments."""

    tile: NDArray[Any]
    rows: NDArray[np.int64]
    stack: NDArray[Any]  # of a tree, a tile for each level
    keys: NDArray[np.uint32]
    counts: NDArray[np.int32]


@intrinsic
def copy_columns(_typing: Any, source: Any, start: Any, target: Any, place: Any) -> Any:
    """target[place : place + 16] = source[start : start + 16], as vectors."""
    signature = types.int64(source, start, target, place)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        data = [
            context.make_array(t)(context, builder, v).data
            for t, v in zip((source, target), (arguments[0], arguments[2]), strict=True)
        ]
        vector = ir.VectorType(data[0].type.pointee, COLUMNS).as_pointer()
        read, written = (
            builder.bitcast(builder.gep(pointer, [at]), vector)
            for pointer, at in zip(data, (arguments[1], arguments[3]), strict=True)
        )
        builder.store(builder.load(read, align=4), written, align=4)
        return ir.Constant(ir.IntType(64), 0)

    return signature, generate


@njit(cache=True, nogil=True, error_model="numpy")
def pack_panel(b: View, n: int, panel: int, scale: float, out: NDArray[Any], start: int) -> None:
    """COLUMNS columns from panel·COLUMNS on, step by step, to out[start:], which may be overwritten 16 beyond its end.

    Missing columns are zeros.
    """
    numbers, depth = b.numbers, b.steps.size
    left = panel * COLUMNS
    width = min(COLUMNS, b.lines.size - left)
    first = b.batch[n if b.batch.size > 1 else 0]
    runs = np.empty(COLUMNS + 1, np.int64)
    count, last = 0, np.int64(0)
    for j in range(width):
        if j == 0 or b.lines[left + j] != b.lines[left + j - 1] + 1:
            runs[count] = j
            count += 1
        last = max(last, b.lines[left + j])
    runs[count] = width
    if count <= RUNS:
        for k in range(depth):
            to, here = start + k * COLUMNS, first + b.steps[k]
            for r in range(count):
                lane = runs[r]
                source = here + b.lines[left + lane]
                if source + COLUMNS <= numbers.size:
                    copy_columns(numbers, source, out, to + lane)  # what is beyond the run is overwritten next
                else:
                    for j in range(lane, runs[r + 1]):
                        out[to + j] = numbers[here + b.lines[left + j]]
            for j in range(width, COLUMNS):
                out[to + j] = 0
    else:
        for block in range(0, depth, BLOCK):
            end = min(depth, block + BLOCK)
            for j in range(width):
                here = first + b.lines[left + j]
                for k in range(block, end):
                    out[start + k * COLUMNS + j] = numbers[here + b.steps[k]]
            for j in range(width, COLUMNS):
                for k in range(block, end):
                    out[start + k * COLUMNS + j] = 0
    if scale != 1:
        for k in range(start, start + depth * COLUMNS):
            out[k] *= scale


@njit(cache=True, nogil=True, error_model="numpy")
def pack(begin: int, end: int, b: View, panels: tuple[int, int], scale: float, out: NDArray[Any]) -> None:
    """Of the panels panels[0] to panels[1] of all matrices, those from begin to end."""
    each = panels[1] - panels[0]
    for item in range(begin, end):
        pack_panel(b, item // each, panels[0] + item % each, scale, out, item * (b.steps.size + 1) * COLUMNS)


@njit(cache=True, nogil=True, error_model="numpy")
def _groups(call: Any, a: int, step: int, b: int, count: int, extra: int) -> None:
    """The tile, group by group; `call` is (address, kind, address of the arrays, rows)."""
    address, kind, arrays, rows = call
    height, width = group_of(kind)
    for row in range(0, min(ROWS, rows), height):
        for column in range(0, COLUMNS, width):
            call_tile(address, (arrays, a, step, b, row * COLUMNS + column, count, extra))


@njit(cache=True, nogil=True, error_model="numpy")
def _tree(call: Any, a: int, b: int, depth: int, tile: NDArray[Any], stack: NDArray[Any]) -> None:
    """Sums in a tree: nodes wait for their sibling, one per level, like the digits of a binary counter."""
    k = 0
    found = False
    while k < depth or not found:
        if k < depth:
            size, level, index = (SUBTREE, 3, k // SUBTREE) if k + SUBTREE <= depth else (1, 0, k)
            _groups(call, a, k, b, size, 0)
            k += size
        else:  # the nodes that still wait are added up, the youngest first
            level, index, found = 0, depth, True
            while index & 1 == 0:
                level += 1
                index >>= 1
            for at in range(TILE):
                tile[at] = stack[level * TILE + at]
            level += 1
            index >>= 1
        while index:
            if index & 1:
                _groups(call, a, 0, b, 0, level * TILE)
            elif not found:
                break
            level += 1
            index >>= 1
        for at in range(TILE):
            stack[level * TILE + at] = tile[at]


@njit(cache=True, nogil=True, error_model="numpy")
def multiply(
    begin: int, end: int, address: int, kind: int, a: View, b: View, c: View, scale: float, layout: Layout,
    arrays: int, scratch: Scratch, words: NDArray[np.uint32], bad_rows: NDArray[np.bool_],
    bad_columns: NDArray[np.bool_], again: NDArray[np.bool_], totals: NDArray[np.int64],
) -> None:  # fmt: skip
    """c of the pieces of work begin to end, by the tile of a kind at an address (`make_tile`).

    One loop for all kinds, compiled once per carrier: only tiles, which compile ten times faster, are made per kind.
    c's lines are its rows, its steps its columns. Rows and columns that are not finite are marked in `bad_rows` and
    `bad_columns` (empty if there are none). Other outputs that must be recomputed are marked in `again`; `totals`
    counts the rest: how often sums exceeded the range, and how often something vanished. `words` are the random words
    of the steps, then of the chunks. `arrays` is where the addresses of a tile's arrays are (`tile_kernels.Place`).
    """
    height, width, depth = a.lines.size, b.lines.size, a.steps.size
    panels = layout.last_panel - layout.first_panel
    steps = layout.chunk if layout.chunk else depth
    tile, rows, stack, keys, counts = scratch
    counted, native = kind & (COUNT | ROUND) != 0, kind // MODE == NATIVE and kind & FREE == 0
    before, between = np.uint32(layout.chance_before), np.uint32(layout.chance_between)
    row_blocks, column_blocks = -(-height // layout.row_block), -(-panels // layout.column_block)
    for item in range(begin, end):
        n, rest = item // (row_blocks * column_blocks), item % (row_blocks * column_blocks)
        first_row, first = rest // column_blocks * layout.row_block, rest % column_blocks * layout.column_block
        source, second = n if a.batch.size > 1 else 0, n if b.batch.size > 1 else 0
        for panel in range(first, min(panels, first + layout.column_block)):
            left = (layout.first_panel + panel) * COLUMNS
            across = min(COLUMNS, width - left)
            start_b = (second * panels + panel) * (depth + 1) * COLUMNS
            together = across == COLUMNS
            for j in range(1, across):
                together &= c.steps[left + j] == c.steps[left] + j
            for top in range(first_row, min(height, first_row + layout.row_block), ROWS):
                down = min(ROWS, height - top)
                for i in range(ROWS):
                    rows[i] = a.lines[top + min(i, down - 1)]
                if layout.random_bits > 0:
                    for i in range(down):
                        for j in range(across):
                            index = (n * height + top + i) * width + left + j
                            keys[i * COLUMNS + j] = random_word(np.uint32(index), before, between)
                call = (address, kind, arrays, down)
                if kind & TREE:
                    _tree(call, a.batch[source], start_b, depth, tile, stack)
                else:
                    if layout.chunk:
                        for at in range(TILE):
                            tile[at] = 0
                    for k in range(0, depth, steps):
                        extra = np.int64(0)
                        if layout.chunk and layout.random_bits > 0:
                            shift = (16 if (depth + k // steps) & 1 else 32) - layout.random_bits
                            extra = np.int64(words[-(-depth // 2) + k // steps]) + (np.int64(shift) << 32)
                        _groups(call, a.batch[source], k, start_b, min(depth, k + steps) - k, extra)
                for i in range(down):
                    to = c.batch[n] + c.lines[top + i]
                    if together:
                        to += c.steps[left]
                        for j in range(COLUMNS):
                            c.numbers[to + j] = tile[i * COLUMNS + j] / scale
                    else:
                        for j in range(across):
                            c.numbers[to + c.steps[left + j]] = tile[i * COLUMNS + j] / scale
                if native:
                    for i in range(down):
                        for j in range(across):
                            again[n, top + i, left + j] = not abs(tile[i * COLUMNS + j]) < np.inf
                if counted:
                    seen = np.int32(0)
                    for at in range(3 * TILE):
                        seen |= counts[at]
                    if seen == 0:
                        continue
                    for i in range(down):
                        for j in range(across):
                            at = i * COLUMNS + j
                            beyond, vanished = counts[at], counts[at + TILE]
                            wrong = counts[at + 2 * TILE] > 0 or (layout.strict and beyond > 0)
                            if wrong:
                                again[n, top + i, left + j] = True
                            elif native and again[n, top + i, left + j]:
                                wrong = True
                            if bad_rows.size:
                                wrong |= bad_rows[source, top + i] or bad_columns[second, left + j]
                            if not wrong:
                                totals[0] += beyond
                                totals[1] += vanished
                    for at in range(3 * TILE):
                        counts[at] = 0


@njit(cache=True, nogil=True, error_model="numpy")
def take(begin: int, end: int, view: View, out: NDArray[Any]) -> None:
    """out[n·lines + i, k] = number (i, k) of matrix n, for the rows begin to end of out."""
    for row in range(begin, end):
        here = view.batch[row // view.lines.size] + view.lines[row % view.lines.size]
        for k in range(view.steps.size):
            out[row, k] = view.numbers[here + view.steps[k]]


@njit(cache=True, nogil=True, error_model="numpy")
def largest(begin: int, end: int, bits: NDArray[Any], magnitude: Any) -> Any:
    """The largest magnitude of the numbers begin to end, as a bit pattern like they are; NaN is beyond infinity."""
    part = bits[begin:end]
    most = part[0] & magnitude
    for n in range(part.size):
        most = max(most, part[n] & magnitude)
    return most


@njit(cache=True, nogil=True, error_model="numpy")
def flushes(numbers: NDArray[np.float32]) -> bool:
    """Whether this thread's processor flushes subnormal float32 numbers to zero; numbers are 2^-126 and 0.5."""
    return bool(numbers[0] * numbers[1] == 0)
