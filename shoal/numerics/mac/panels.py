"""Products of matrices by tiles: which numbers a tile reads, where its results go, and what is counted.

A matrix is a `View`: the number of line i at step k is numbers[lines[i] + steps[k]]. So transposed and permuted
tensors, windows of an image and flipped kernels are read in place. The second operand's columns are packed, 16 at a
time; the first operand's rows are not.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from shoal.numerics.mac.lanes import COLUMNS
from shoal.numerics.mac.tile_kernels import COUNT, FREE, MODE, NATIVE, ROUND, ROWS, SUBTREE, TREE, group_of
from shoal.numerics.rounding.kernels32 import random_word

HELPERS = "b8ddbed2fa1ac87a"
"""Hash of the modules imported above, whose code and constants are compiled into the functions below. numba checks only
this file to decide whether its cache is up to date, so the hash changes with them; a test tells what it must be."""

TILE = ROWS * COLUMNS
LEVELS = 40
"""Levels of a tree, at most."""
RUNS = 6
"""Up to this many runs of neighbours, 16 columns are copied run by run."""
BLOCK = 64
"""Steps that are packed together where neighbours are steps."""


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

    row_block: int
    """Rows per work item, a multiple of ROWS."""
    column_block: int
    """Panels of columns per work item."""
    chunk: int
    """Products per chunk; 0 if the order is not chunked."""
    strict: int
    """Whether sums that exceed the range must be recomputed."""
    packed: int
    """Whether the panels have been packed before."""
    chance_before: int
    """Keys of the outputs' random words."""
    chance_between: int
    random_bits: int
    """0 if rounding is not stochastic."""


@intrinsic
def _call_tile(
    _typing: Any,
    address: Any,
    a: Any,
    rows: Any,
    steps: Any,
    b: Any,
    c: Any,
    other: Any,
    floats: Any,
    ints: Any,
    words: Any,
    keys: Any,
    counts: Any,
    starts: Any,
    count: Any,
    last: Any,
) -> Any:
    """Call the tile at an address with a, rows, steps, b, c, other, words, keys and counts from `starts` on."""
    arrays = (a, rows, steps, b, c, other, floats, ints, words, keys, counts)
    signature = types.int64(address, *arrays, starts, count, last)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        data = [context.make_array(t)(context, builder, v).data for t, v in zip(arrays, arguments[1:12], strict=True)]
        offsets = cgutils.unpack_tuple(builder, arguments[12])
        for place, offset in zip((0, 1, 2, 3, 4, 5, 8, 9, 10), offsets, strict=True):
            data[place] = builder.gep(data[place], [offset])
        word, shift = (builder.trunc(v, ir.IntType(32)) for v in cgutils.unpack_tuple(builder, arguments[14]))
        values = [*data, arguments[13], word, shift]
        function = ir.FunctionType(ir.IntType(64), [value.type for value in values])
        return builder.call(builder.inttoptr(arguments[0], function.as_pointer()), values)

    return signature, generate


call_tile: Any = _call_tile


@intrinsic
def _copy_columns(_typing: Any, source: Any, start: Any, target: Any, place: Any) -> Any:
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


copy_columns: Any = _copy_columns


@njit(cache=True, nogil=True, error_model="numpy")
def pack_panel(b: View, n: int, panel: int, scale: float, out: NDArray[Any], start: int) -> int:
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
    return 0


@njit(cache=True, nogil=True, error_model="numpy")
def pack(b: View, scale: float, out: NDArray[Any], share: tuple[int, int]) -> int:
    """Panels share[0] to share[1] of all matrices."""
    panels = -(-b.lines.size // COLUMNS)
    for item in range(share[0], share[1]):
        pack_panel(b, item // panels, item % panels, scale, out, item * (b.steps.size + 1) * COLUMNS)
    return 0


@njit(cache=True, nogil=True, error_model="numpy")
def _groups(address: int, kind: int, height: int, arrays: Any, starts: Any, count: int, last: Any) -> int:
    """The tile, group by group."""
    a, rows, steps, b, c, other, floats, ints, words, keys, counts = arrays
    group_height, group_width = group_of(kind)
    for i in range(0, min(ROWS, height), group_height):
        for j in range(0, COLUMNS, group_width):
            at = i * COLUMNS + j
            call_tile(
                address, a, rows, steps, b, c, other, floats, ints, words, keys, counts,
                (starts[0], i, starts[1], starts[2] + j, at, starts[3] + at, starts[4], at, at), count, last,
            )  # fmt: skip
    return 0


@njit(cache=True, nogil=True, error_model="numpy")
def _tree(address: int, kind: int, height: int, arrays: Any, starts: Any, depth: int) -> int:
    """Sums in a tree: nodes wait for their sibling, one per level, like the digits of a binary counter."""
    tile, stack = arrays[4], arrays[5]
    nothing = (0, 0)
    k = 0
    while k < depth:
        size, level, index = (SUBTREE, 3, k // SUBTREE) if k + SUBTREE <= depth else (1, 0, k)
        _groups(address, kind, height, arrays, (starts[0], k, starts[2] + k * COLUMNS, 0, 0), size, nothing)
        while index & 1:
            _groups(address, kind, height, arrays, (starts[0], k, starts[2], level * TILE, 0), 0, nothing)
            level += 1
            index >>= 1
        stack[level * TILE : (level + 1) * TILE] = tile
        k += size
    found = False
    for level in range(LEVELS):
        if (depth >> level) & 1:
            if found:
                _groups(address, kind, height, arrays, (starts[0], 0, starts[2], level * TILE, 0), 0, nothing)
            else:
                tile[:] = stack[level * TILE : (level + 1) * TILE]
                found = True
    return 0


@njit(cache=True, nogil=True, error_model="numpy")
def multiply(
    address: int,
    kind: int,
    a: View,
    b: View,
    c: View,
    packed: NDArray[Any],
    scale: float,
    layout: Layout,
    share: tuple[int, int],
    floats: NDArray[Any],
    ints: NDArray[Any],
    words: NDArray[np.uint32],
    bad_rows: NDArray[np.bool_],
    bad_columns: NDArray[np.bool_],
    again: NDArray[np.bool_],
    totals: NDArray[np.int64],
) -> int:
    """c of the pieces of work share[0] to share[1], by the tile of a kind at an address (`make_tile`).

    One loop for all kinds, compiled once per carrier: only tiles, which compile ten times faster, are made per kind.
    c's lines are its rows, its steps its columns. Rows and columns that are not finite are marked in `bad_rows` and
    `bad_columns` (empty if there are none). Other outputs that must be recomputed are marked in `again`; `totals`
    counts the rest: how often sums exceeded the range, and how often something vanished. `words` are the random words
    of the steps, then of the chunks.
    """
    height, width, depth = a.lines.size, b.lines.size, a.steps.size
    panels = -(-width // COLUMNS)
    steps = layout.chunk if layout.chunk else depth
    own = packed if layout.packed else np.empty((depth + 1) * COLUMNS, a.numbers.dtype)
    tile, rows = np.zeros(TILE, a.numbers.dtype), np.empty(ROWS, np.int64)
    other = np.empty(LEVELS * TILE if kind & TREE else TILE, a.numbers.dtype)
    keys, counts = np.zeros(TILE, np.uint32), np.zeros(3 * TILE, np.int32)
    arrays = (a.numbers, rows, a.steps, own, tile, other, floats, ints, words, keys, counts)
    counted, native = kind & (COUNT | ROUND) != 0, kind // MODE == NATIVE and kind & FREE == 0
    before, between = np.uint32(layout.chance_before), np.uint32(layout.chance_between)
    row_blocks, column_blocks = -(-height // layout.row_block), -(-panels // layout.column_block)
    for item in range(share[0], share[1]):
        n, rest = item // (row_blocks * column_blocks), item % (row_blocks * column_blocks)
        first_row, first_panel = rest // column_blocks * layout.row_block, rest % column_blocks * layout.column_block
        source, second = n if a.batch.size > 1 else 0, n if b.batch.size > 1 else 0
        for panel in range(first_panel, min(panels, first_panel + layout.column_block)):
            left = panel * COLUMNS
            across = min(COLUMNS, width - left)
            start_b = (second * panels + panel) * (depth + 1) * COLUMNS
            if not layout.packed:
                pack_panel(b, second, panel, scale, own, 0)
                start_b = 0
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
                if kind & TREE:
                    _tree(address, kind, down, arrays, (a.batch[source], 0, start_b, 0, 0), depth)
                else:
                    if layout.chunk:
                        tile[:] = 0
                    for k in range(0, depth, steps):
                        final, shift = np.int64(0), 0
                        if layout.chunk and layout.random_bits > 0:
                            final = np.int64(words[-(-depth // 2) + k // steps])
                            shift = (16 if (depth + k // steps) & 1 else 32) - layout.random_bits
                        starts = (a.batch[source], k, start_b + k * COLUMNS, 0, k // 2)
                        _groups(address, kind, down, arrays, starts, min(depth, k + steps) - k, (final, shift))
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
                    counts[:] = 0
    return 0


@njit(cache=True, nogil=True, error_model="numpy")
def mark(view: View, bad: NDArray[np.bool_]) -> int:
    """bad[n, i]: whether line i of matrix n has a number that is not finite."""
    for n in range(view.batch.size):
        for i in range(view.lines.size):
            here, wrong = view.batch[n] + view.lines[i], False
            for k in range(view.steps.size):
                wrong |= not abs(view.numbers[here + view.steps[k]]) < np.inf
            bad[n, i] = wrong
    return 0


@njit(cache=True, nogil=True, error_model="numpy")
def take(view: View, out: NDArray[Any], share: tuple[int, int]) -> int:
    """out[n·lines + i, k] = number (i, k) of matrix n, for the rows share[0] to share[1] of out."""
    for row in range(share[0], share[1]):
        here = view.batch[row // view.lines.size] + view.lines[row % view.lines.size]
        for k in range(view.steps.size):
            out[row, k] = view.numbers[here + view.steps[k]]
    return 0


@njit(cache=True, nogil=True, error_model="numpy")
def largest(bits: NDArray[Any], magnitude: Any) -> Any:
    """The largest magnitude of floating-point numbers, all as bit patterns; NaN is beyond infinity."""
    most = bits[0] & magnitude
    for n in range(bits.size):
        most = max(most, bits[n] & magnitude)
    return most


@njit(cache=True, nogil=True, error_model="numpy")
def flushes(numbers: NDArray[np.float32]) -> bool:
    """Whether this thread's processor flushes subnormal float32 numbers to zero; numbers are 2^-126 and 0.5."""
    return bool(numbers[0] * numbers[1] == 0)
