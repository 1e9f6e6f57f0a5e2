"""Fast loops for MAC units: a tile of 4 × 16 outputs in vector registers, k ascending, in float32.

`tiles` decides which units may use them, and how; operands are finite. A tile's sums are exactly the unit's because

- a product of operands with few bits is one float32 multiplication;
- `NEAREST`: with C = 1.5·2^(23-m) times the power of two of s, but at least of the format's smallest normal number,
  (s + C) - C is s rounded to m mantissa bits or to the spacing of the subnormals. The float32 sum s need not be exact
  where double rounding is innocuous;
- otherwise s is rounded to odd first (as in `mac/kernels.py`), and rounded further in integers;
- a fixed-point sum is kept as a whole number of steps, up to 2^24, which float32 adds exactly.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import cfunc, njit, types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable
from numpy.typing import NDArray

from shoal.numerics.mac.lanes import FLOATS, INTS, WIDTH, Floats, Ints, splat
from shoal.numerics.rounding.kernels32 import random_word
from shoal.numerics.rounding.randomness import MULTIPLIERS, SHIFTS

HELPERS = "cfa0c3363cd566bc"
"""Hash of the modules imported above, whose code and constants are compiled into the functions below. numba checks only
this file to decide whether its cache is up to date, so the hash changes with them; a test tells what it must be."""

ROWS, VECTORS = 4, 2
COLUMNS = VECTORS * WIDTH
ROW_BLOCK = 16
"""Row panels per work item."""

FIXED, COUNT, FLUSH, ROUND, VANISH, CHUNK, ROUGH = 1, 2, 4, 8, 16, 32, 64
"""Flags of a loop: fixed-point sums; count events; flush small products to zero; round products; nonzero sums may round
to zero; add the sums of a chunk to the previous ones; products are rounded by float32 itself."""
NEAREST, GENERAL, CHANCE_A, CHANCE, NATIVE = range(5)
"""How sums (or the converter) round: to nearest, ties to even; any deterministic way; stochastically by variant A; by B
or C; or as float32 itself does."""
MODE = 128
"""A kind is flags + MODE·(how it rounds)."""

MAGNITUDE, SIGN_BIT, EXPONENT, FRACTION = 0x7FFFFFFF, 0x80000000, 0x7F800000, 0x007FFFFF


class FloatParameters(NamedTuple):
    """Limits of the formats, multiplied by the scale of a fixed-point sum."""

    lowest: Any
    highest: Any
    taken_lowest: Any
    """Limits of the converter."""
    taken_highest: Any
    flush_before: Any
    flush_after: Any
    product_max: Any


class IntParameters(NamedTuple):
    """Bit counts, bit positions and masks."""

    dropped: Any
    """23 - m of the accumulator."""
    lowest_field: Any
    """Float32's exponent field of its smallest normal number."""
    product_dropped: Any
    product_lowest_field: Any
    random_bits: Any
    near: Any
    """-1 for the round-to-nearest modes, else 0."""
    away: Any
    """1 if ties go away from zero."""
    full_positive: Any
    """-1 if any dropped bit rounds the magnitude of a positive number up."""
    full_negative: Any
    variant_c: Any
    """-1 for variant C, 0 for B."""


def _accumulate(total: Floats, p: Floats, kind: int, floats: Any, ints: Any, word: Any) -> tuple[Floats, Any, Any]:
    """One step: (the new sum, how often it exceeded the range, whether it vanished); counts are 0 or -1 per lane."""
    mode = kind // MODE
    beyond = vanished = None
    if kind & FIXED:
        step = _whole_number(p, mode, ints, word)
        if kind & COUNT and kind & VANISH:
            vanished = _vanished(p, step)
        limited = step.max(floats.taken_lowest).min(floats.taken_highest)
        free = total + limited
        new = free.max(floats.lowest).min(floats.highest)
        if kind & COUNT:
            beyond = limited.differs(step) + new.differs(free)
        return new, beyond, vanished
    s = total + p
    if mode == NATIVE:
        return s, None, None
    if mode == NEAREST:
        r = _nearest(s, ints.dropped, ints.lowest_field)
        if kind & VANISH:
            r = (r.bits() | (s.bits() & SIGN_BIT)).as_floats()
    else:
        r = _from_odd(_to_odd(s, total, p), mode, ints, word)
    new = r.max(floats.lowest).min(floats.highest)
    if kind & COUNT:
        beyond, vanished = new.differs(r), _vanished(s, r) if kind & VANISH else None
    return new, beyond, vanished


def _nearest(s: Floats, dropped: Ints, lowest_field: Ints) -> Floats:
    power = (s.bits() & EXPONENT).max(lowest_field << 23)
    c = (power + ((dropped << 23) | 0x00400000)).as_floats()
    return (s + c) - c


def _to_odd(s: Floats, x: Floats, y: Floats) -> Ints:
    """The bits of x + y rounded to odd; s is x + y to nearest."""
    other = s - x
    error = (x - (s - other)) + (y - other)
    inexact = error.differs(error.constant(0.0))
    smaller = (s.bits() ^ error.bits()).sign_mask() & inexact  # the exact sum is nearer to zero than s
    return (s.bits() + smaller) | (inexact & 1)


def _from_odd(bits: Ints, mode: int, ints: Any, word: Any) -> Floats:
    """Round numbers that were rounded to odd to the accumulator's format: k times the spacing."""
    u = bits & MAGNITUDE
    field = u >> 23
    top = field.max(ints.lowest_field)
    below = (top - field).min(31)
    full = ((u & FRACTION) | (FRACTION + 1)) & u.differs(0)
    sig = full >> below
    if mode != CHANCE_A:  # which ignores the bits lost here
        sig = sig | ((sig << below).differs(full) & 1)
    one = sig.constant(1)
    if mode == GENERAL:
        outward = _outward(bits, ints)
        tie = ((sig >> ints.dropped) | ints.away) & ints.near & 1
        add = (((one << (ints.dropped - 1)) - 1) & ints.near) + tie + (((one << ints.dropped) - 1) & outward)
    else:
        place = ints.dropped - ints.random_bits
        add = word << place
        if mode == CHANCE:
            half = one << (place - 1)
            nearest = (half - 1 + ((sig >> place) & 1)) & ints.variant_c
            sig = (sig + nearest) & ((((half << 1) - 1) & ints.variant_c) ^ 0xFFFFFFFF)
            add = add + (half & (ints.variant_c ^ 0xFFFFFFFF))
    k = (sig + add) >> ints.dropped
    spacing = ((top + ints.dropped - 23) << 23).as_floats()  # 2^(top - m), m = 23 - dropped
    return ((k.to_floats() * spacing).bits() | (bits & SIGN_BIT)).as_floats()


def _whole_number(p: Floats, mode: int, ints: Any, word: Any) -> Floats:
    """The converter: a product in units of the accumulator's step, rounded to a whole number of them."""
    if mode == NEAREST:
        return p.round("rint")
    size = (p.bits() & MAGNITUDE).as_floats()
    low = size.round("floor")
    delta = size - low
    if mode == GENERAL:  # not to nearest with ties to even
        away = (delta + delta).round("floor").bits() & ints.near
        up = (away | (delta.round("ceil").bits() & _outward(p.bits(), ints))).as_floats()
    else:
        more = (ints.variant_c + 1) if mode == CHANCE else ints.variant_c.constant(0)  # 1 for B
        bits = ints.random_bits + more
        scale, unscale = ((bits + 127) << 23).as_floats(), ((bits.constant(127) - bits) << 23).as_floats()
        cut = (delta * scale).round("floor")
        if mode == CHANCE:
            nearest = (delta * scale).round("rint").bits() & ints.variant_c
            cut = (nearest | (cut.bits() & (ints.variant_c ^ 0xFFFFFFFF))).as_floats()
        random = ((word << more) | more).to_floats()
        up = ((cut + random) * unscale).round("floor")
    return ((low + up).bits() | (p.bits() & SIGN_BIT)).as_floats()


def _outward(bits: Ints, ints: Any) -> Ints:
    """-1 where any dropped bit rounds the magnitude up, depending on the sign."""
    negative = bits.sign_mask()
    return (ints.full_negative & negative) | (ints.full_positive & (negative ^ 0xFFFFFFFF))


def _product(p: Floats, kind: int, floats: Any, ints: Any) -> tuple[Floats, Any, Any]:
    """(the multiplier's output for an exact product, whether it overflowed, whether it vanished)."""
    exact, beyond, vanished = p, None, None
    if kind & FLUSH:
        p = _flush(p, floats.flush_before)
    if kind & ROUND:
        r = _nearest(p, ints.product_dropped, ints.product_lowest_field)
        r = (r.bits() | (p.bits() & SIGN_BIT)).as_floats()
        p = _flush(r, floats.flush_after)
        beyond = floats.product_max.below((p.bits() & MAGNITUDE).as_floats())
    if kind & COUNT and kind & (FLUSH | ROUND):
        vanished = _vanished(exact, p)
    return p, beyond, vanished


def _flush(p: Floats, threshold: Floats) -> Floats:
    small = (p.bits() & MAGNITUDE).as_floats().below(threshold)
    return (p.bits() & ((small ^ 0xFFFFFFFF) | SIGN_BIT)).as_floats()


def _vanished(before: Floats, after: Floats) -> Ints:
    zero = after.constant(0.0)
    return after.equals(zero) & before.differs(zero)


def _mix(x: Ints) -> Ints:
    """As in `mac/kernels.py`."""
    x = (x ^ (x >> SHIFTS[0])) * MULTIPLIERS[0]
    x = (x ^ (x >> SHIFTS[1])) * MULTIPLIERS[1]
    return x ^ (x >> SHIFTS[2])


@register_jitable
def vectors_of(kind: int) -> int:
    """Vectors per row that are processed together: as many as there are free registers for sums."""
    return VECTORS if kind // MODE == NEAREST or kind // MODE == NATIVE else 1


class _Tile:
    """Generates the loop of one kind: the code of a tile, with its operands as pointers."""

    def __init__(self, builder: Any, pointers: list[Any], kind: int) -> None:
        self.builder, self.kind = builder, kind
        self.a, self.b, self.c, floats, ints, self.words, self.keys, self.counts = pointers
        self.floats = FloatParameters(*(Floats(builder, v) for v in self._splats(floats, FloatParameters)))
        self.ints = IntParameters(*(Ints(builder, v) for v in self._splats(ints, IntParameters)))
        self.vectors = vectors_of(kind)
        self.tile = [(row, vector) for row in range(ROWS) for vector in range(self.vectors)]

    def _splats(self, pointer: Any, fields: Any) -> list[Any]:
        places = range(len(fields._fields))
        return [splat(self.builder, self.builder.load(self._at(pointer, self._int(n)))) for n in places]

    def _int(self, value: int) -> Any:
        return ir.Constant(ir.IntType(64), value)

    def _at(self, pointer: Any, index: Any) -> Any:
        return self.builder.gep(pointer, [index])

    def _vector(self, pointer: Any, index: Any, kind: Any) -> Any:
        """A pointer to eight numbers."""
        return self.builder.bitcast(self._at(pointer, index), kind.as_pointer())

    def _load(self, pointer: Any, index: Any, kind: Any) -> Any:
        return self.builder.load(self._vector(pointer, index, kind), align=4)

    def write(self, pairs: Any, last_word: Any, last_shift: Any) -> None:
        """Generate 2·`pairs` steps of k; each pair shares a word. The last arguments are for the sum of the chunk."""
        builder, kind = self.builder, self.kind
        sums = {at: cgutils.alloca_once(builder, FLOATS) for at in self.tile}
        seen = {}
        if kind & (COUNT | ROUND):
            seen = {(at, what): cgutils.alloca_once(builder, INTS) for at in self.tile for what in range(3)}
        for slot in sums.values():
            builder.store(ir.Constant(FLOATS, [0.0] * WIDTH), slot)
        for slot in seen.values():
            builder.store(ir.Constant(INTS, [0] * WIDTH), slot)
        if kind // MODE not in (CHANCE_A, CHANCE):
            with cgutils.for_range(builder, builder.mul(pairs, self._int(2)), intp=ir.IntType(64)) as loop:
                self._step(loop.index, 0, sums, seen, {})
        else:
            with cgutils.for_range(builder, pairs, intp=ir.IntType(64)) as loop:
                step = splat(builder, builder.load(self._at(self.words, loop.index)))
                words = {at: self._word(at, step) for at in self.tile}
                for half in range(2):
                    k = builder.add(builder.mul(loop.index, self._int(2)), self._int(half))
                    self._step(k, half, sums, seen, words)
        for at in self.tile:
            self._finish(at, sums, seen, last_word, last_shift)

    def _word(self, at: tuple[int, int], step: Any) -> Ints:
        key = self._load(self.keys, self._int(at[0] * COLUMNS + at[1] * WIDTH), INTS)
        return _mix(Ints(self.builder, key) ^ Ints(self.builder, step))

    def _step(self, k: Any, half: int, sums: Any, seen: Any, words: Any) -> None:
        builder = self.builder
        b = [
            self._load(self.b, builder.add(builder.mul(k, self._int(COLUMNS)), self._int(v * WIDTH)), FLOATS)
            for v in range(self.vectors)
        ]
        for row in range(ROWS):
            index = builder.add(builder.mul(k, self._int(ROWS)), self._int(row))
            a = Floats(builder, splat(builder, builder.load(self._at(self.a, index))))
            for vector in range(self.vectors):
                at = (row, vector)
                other = Floats(builder, b[vector])
                p, over, lost = _product(a * other, self.kind, self.floats, self.ints)
                if self.kind & ROUGH and self.kind & COUNT:
                    lost = _vanished(a, p) & (other.bits() & MAGNITUDE).differs(0)
                word = None
                if words:
                    bits = self.ints.random_bits
                    places = bits.constant(32 if half == 0 else 16) - bits
                    word = (words[at] if half == 0 else words[at] & 0xFFFF) >> places
                self._add(at, p, sums, seen, word)
                self._note(at, 2, over, seen)
                self._note(at, 1, lost, seen)

    def _add(self, at: Any, p: Floats, sums: Any, seen: Any, word: Any) -> None:
        total = Floats(self.builder, self.builder.load(sums[at]))
        new, beyond, vanished = _accumulate(total, p, self.kind, self.floats, self.ints, word)
        self.builder.store(new.value, sums[at])
        self._note(at, 0, beyond, seen)
        self._note(at, 1, vanished, seen)

    def _note(self, at: Any, what: int, mask: Any, seen: Any) -> None:
        """Count the lanes of a mask of -1."""
        if mask is not None:
            slot = seen[at, what]
            self.builder.store((Ints(self.builder, self.builder.load(slot)) - mask).value, slot)

    def _finish(self, at: Any, sums: Any, seen: Any, last_word: Any, last_shift: Any) -> None:
        """Add to the previous sum if this is a chunk; store."""
        builder, kind = self.builder, self.kind
        place = self._int(at[0] * COLUMNS + at[1] * WIDTH)
        target = self._vector(self.c, place, FLOATS)
        if kind & CHUNK:
            partial = Floats(builder, builder.load(sums[at]))
            builder.store(builder.load(target, align=4), sums[at])
            word = None
            if kind // MODE in (CHANCE_A, CHANCE):
                bits = self.ints.random_bits
                one = bits.constant(1)
                word = (self._word(at, splat(builder, last_word)) >> Ints(builder, splat(builder, last_shift))) & (
                    (one << bits) - 1
                )
            self._add(at, partial, sums, seen, word)
        builder.store(builder.load(sums[at]), target, align=4)
        for (where, what), slot in seen.items():
            if where == at:
                index = builder.add(place, self._int(what * ROWS * COLUMNS))
                counter = self._vector(self.counts, index, INTS)
                total = Ints(builder, builder.load(counter, align=4)) + Ints(builder, builder.load(slot))
                builder.store(total.value, counter, align=4)


_POINTERS = (
    types.float32, types.float32, types.float32, types.float32, types.int32, types.uint32, types.uint32, types.int32,
)  # fmt: skip
"""Element types of the arrays that a tile reads and writes: a, b, c, floats, ints, words, keys, counts."""
_SIGNATURE = types.int64(*map(types.CPointer, _POINTERS), types.int64, types.uint32, types.uint32)


@intrinsic
def _write_tile(
    _typing: Any,
    a: Any,
    b: Any,
    c: Any,
    floats: Any,
    ints: Any,
    words: Any,
    keys: Any,
    counts: Any,
    pairs: Any,
    last_word: Any,
    last_shift: Any,
    kind: Any,
) -> Any:
    """One tile: 2·`pairs` steps; `kind` is a constant."""
    if not isinstance(kind, types.IntegerLiteral):
        return None
    chosen = kind.literal_value
    signature = types.int64(a, b, c, floats, ints, words, keys, counts, pairs, last_word, last_shift, kind)

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        _Tile(builder, list(arguments[:8]), chosen).write(*arguments[8:11])
        return ir.Constant(ir.IntType(64), 0)

    return signature, generate


write_tile: Any = _write_tile


def make_tile(kind: int) -> Any:
    """The compiled loop over the steps of a tile, for one kind of unit; `multiply` calls it by address."""

    @cfunc(_SIGNATURE, cache=True, error_model="numpy")
    def tile(
        a: Any, b: Any, c: Any, floats: Any, ints: Any, words: Any, keys: Any, counts: Any, pairs: Any, word: Any,
        shift: Any,
    ) -> Any:  # fmt: skip
        return write_tile(a, b, c, floats, ints, words, keys, counts, pairs, word, shift, kind)

    return tile


@intrinsic
def _call_tile(
    _typing: Any,
    address: Any,
    a: Any,
    b: Any,
    c: Any,
    floats: Any,
    ints: Any,
    words: Any,
    keys: Any,
    counts: Any,
    starts: Any,
    pairs: Any,
    last: Any,
) -> Any:
    """Call the tile at an address with a, b, words, c, keys and counts from `starts` on."""
    arrays = (a, b, c, floats, ints, words, keys, counts)
    signature = types.int64(address, *arrays, starts, pairs, last)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        data = [context.make_array(t)(context, builder, v).data for t, v in zip(arrays, arguments[1:9], strict=True)]
        offsets = cgutils.unpack_tuple(builder, arguments[9])
        for place, offset in zip((0, 1, 5, 2, 6, 7), offsets, strict=True):
            data[place] = builder.gep(data[place], [offset])
        word, shift = (builder.trunc(v, ir.IntType(32)) for v in cgutils.unpack_tuple(builder, arguments[11]))
        values = [*data, arguments[10], word, shift]
        function = ir.FunctionType(ir.IntType(64), [value.type for value in values])
        return builder.call(builder.inttoptr(arguments[0], function.as_pointer()), values)

    return signature, generate


call_tile: Any = _call_tile


@njit(cache=True, nogil=True, error_model="numpy")
def multiply(
    address: int,
    kind: int,
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    c: NDArray[np.float32],
    bad_rows: NDArray[np.bool_],
    bad_columns: NDArray[np.bool_],
    again: NDArray[np.bool_],
    totals: NDArray[np.int64],
    floats: NDArray[np.float32],
    ints: NDArray[np.int32],
    words: NDArray[np.uint32],
    chance: tuple[int, int, int, int],
    sizes: tuple[int, int, int],
    share: tuple[int, int],
    scale: np.float32,
) -> int:
    """c[n, i, j] of the pieces of work share[0] to share[1], by the tile of a kind at an address (`make_tile`).

    One loop for all kinds, compiled once: only tiles, which compile ten times faster, are made per kind.
    a (batch or 1, rows, k); b (batch or 1, column panels, padded k, COLUMNS). Rows that are not finite are marked in
    `bad_rows`, other outputs that must be recomputed in `again`; `totals` counts the rest: how often sums exceeded the
    range, and how often something vanished. `words` are the random words of the steps; `chance` (before, between,
    bits, K) makes the outputs' keys. `sizes` are (panels per block of columns, the chunk (even, or 0), whether sums
    that exceed the range must be recomputed).
    """
    column_block, chunk, strict = sizes
    native, part_width = kind // MODE == NATIVE, vectors_of(kind) * WIDTH
    height, width, column_panels, depth = c.shape[1], c.shape[2], b.shape[1], b.shape[2]
    row_panels = -(-height // ROWS)
    steps = depth if chunk == 0 else chunk
    packed = np.empty((ROW_BLOCK, depth, ROWS), np.float32)
    own_a = packed.reshape(-1)
    tile = np.empty(ROWS * COLUMNS, np.float32)
    keys = np.zeros(ROWS * COLUMNS, np.uint32)
    counts = np.zeros(3 * ROWS * COLUMNS, np.int32)
    before, between = np.uint32(chance[0]), np.uint32(chance[1])
    row_blocks, column_blocks = -(-row_panels // ROW_BLOCK), -(-column_panels // column_block)
    for item in range(share[0], share[1]):
        n, rest = item // (row_blocks * column_blocks), item % (row_blocks * column_blocks)
        first_row, first_panel = rest // column_blocks * ROW_BLOCK * ROWS, rest % column_blocks * column_block
        last_row = min(height, first_row + ROW_BLOCK * ROWS)
        source, other = n if a.shape[0] > 1 else 0, n if b.shape[0] > 1 else 0
        own_b = b[other].reshape(-1)
        pack_rows(a[source, first_row:last_row], scale, packed, bad_rows[source, first_row:last_row])
        for panel in range(first_panel, min(column_panels, first_panel + column_block)):
            left = panel * COLUMNS
            for top in range(first_row, last_row, ROWS):
                if chance[2] > 0:
                    for i in range(ROWS):
                        first = (n * height + top + i) * width + left
                        for j in range(COLUMNS):
                            keys[i * COLUMNS + j] = random_word(np.uint32(first + j), before, between)
                if chunk:
                    tile[:] = np.float32(0)
                for k in range(0, depth, steps):
                    start_a, start_b = (top - first_row) * depth + k * ROWS, (panel * depth + k) * COLUMNS
                    final = words[depth // 2 + k // steps] if chunk else np.uint32(0)
                    shift = 0
                    if chunk and chance[2] > 0:
                        shift = (16 if (chance[3] + k // steps) & 1 else 32) - chance[2]
                    for part in range(0, COLUMNS, part_width):
                        starts = (start_a, start_b + part, k // 2, part, part, part)
                        call_tile(
                            address, own_a, own_b, tile, floats, ints, words, keys, counts, starts,
                            (min(depth, k + steps) - k) // 2, (np.int64(final), np.int64(shift)),
                        )  # fmt: skip
                for i in range(min(ROWS, height - top)):
                    for j in range(min(COLUMNS, width - left)):
                        c[n, top + i, left + j] = tile[i * COLUMNS + j] / np.float32(scale)
                if native:
                    for i in range(min(ROWS, height - top)):
                        for j in range(min(COLUMNS, width - left)):
                            again[n, top + i, left + j] = not abs(tile[i * COLUMNS + j]) < np.float32(np.inf)
                if kind & (COUNT | ROUND):
                    for i in range(min(ROWS, height - top)):
                        for j in range(min(COLUMNS, width - left)):
                            at = i * COLUMNS + j
                            beyond, vanished = counts[at], counts[at + ROWS * COLUMNS]
                            wrong = counts[at + 2 * ROWS * COLUMNS] > 0 or (strict and beyond > 0)
                            if native:
                                wrong |= again[n, top + i, left + j]
                            again[n, top + i, left + j] = wrong
                            if not (wrong or bad_rows[source, top + i] or bad_columns[other, left + j]):
                                totals[0] += beyond
                                totals[1] += vanished
                    counts[:] = 0
    return 0


@njit(cache=True, nogil=True, error_model="numpy")
def pack_rows(a: NDArray[np.float32], scale: np.float32, packed: NDArray[np.float32], bad: NDArray[np.bool_]) -> int:
    """a (rows, k) as panels of ROWS rows, k-major; padded with -0, so that padding adds -0, which changes nothing.

    Rows with a non-finite number are marked and left out.
    """
    rows, depth = a.shape
    for i in range(-(-rows // ROWS) * ROWS):
        panel, row = i // ROWS, i % ROWS
        finite = i < rows
        if finite:
            for k in range(depth):
                finite &= abs(a[i, k]) < np.float32(np.inf)
            bad[i] = not finite
        if finite:
            for k in range(depth):
                packed[panel, k, row] = a[i, k] * np.float32(scale)
        for k in range(depth if finite else 0, packed.shape[1]):
            packed[panel, k, row] = np.float32(-0.0)
    return 0


@njit(cache=True, nogil=True, error_model="numpy")
def flushes(numbers: NDArray[np.float32]) -> bool:
    """Whether this thread's processor flushes subnormal float32 numbers to zero; numbers are 2^-126 and 0.5."""
    return bool(numbers[0] * numbers[1] == 0)


@njit(cache=True, nogil=True, error_model="numpy")
def pack_columns(b: NDArray[np.float32], packed: NDArray[np.float32], bad: NDArray[np.bool_]) -> int:
    """b (k, columns) as panels of COLUMNS columns; columns with a non-finite number are marked and left out."""
    depth, columns = b.shape
    packed[:] = np.float32(0)
    bad[:] = False
    for k in range(depth):
        for j in range(columns):
            bad[j] |= not (abs(b[k, j]) < np.float32(np.inf))
            packed[j // COLUMNS, k, j % COLUMNS] = b[k, j]
    for j in range(columns):
        if bad[j]:
            packed[j // COLUMNS, :, j % COLUMNS] = np.float32(0)
    return 0
