"""Fast loops for MAC units: a tile of outputs in vector registers, k ascending, in float32 or float64.

`tiles` decides which units may use them, and how; operands are finite. A tile's sums are exactly the unit's because

- a product of operands with few bits is one multiplication (together with the addition, where that is one instruction);
- `NEAREST`: with C = 1.5·2^(23-m) times the power of two of s, (s + C) - C is s rounded to m mantissa bits (23 is
  float32's own number of them). Where sums may have bits below the format's last one (`VANISH`), C is at least that of
  the format's smallest normal number, which rounds to the spacing of the subnormals; otherwise such sums are exact. The
  sum s itself need not be exact where double rounding is innocuous;
- otherwise s is rounded to odd first (as in `mac/kernels.py`), and rounded further in integers;
- a fixed-point sum is kept as a whole number of steps, which the carrier adds exactly.
"""

from functools import lru_cache
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import register_jitable

from shoal.compiled import cfunc
from shoal.numerics.mac.lanes import COLUMNS, DOUBLE, FUSED, SINGLE, WIDE, Carrier, Floats, Ints
from shoal.numerics.rounding.kernels import intrinsic
from shoal.numerics.rounding.randomness import MULTIPLIERS, SHIFTS
from shoal.system.tiles import I32, I64, load, splat, store

ROWS = 8 if WIDE else 4
SUBTREE = 8
"""Products whose tree is added up in registers."""

FIXED, COUNT, FLUSH, ROUND, VANISH, CHUNK, ROUGH = 1, 2, 4, 8, 16, 32, 64
"""Flags of a loop: fixed-point sums; count events; flush small products to zero; round products; nonzero sums may round
to zero; add the sums of a chunk to the previous ones; products are rounded by float32 itself."""
FREE, KAHAN, TREE, SEPARATE, ODD, WIDER, TAME = 128, 256, 512, 1024, 2048, 4096, 8192
"""More flags: sums stay within the range, so they are not limited; compensated sums; sums in a tree; products are
rounded to the accumulator's format before they are added; products are rounded to odd; in float64; products stay within
the range of the converter."""
NEAREST, GENERAL, CHANCE_A, CHANCE, NATIVE = range(5)
"""How sums (or the converter) round: to nearest, ties to even; any deterministic way; stochastically by variant A; by B
or C; or as float32 itself does."""
MODE = 16384  # a kind is flags + MODE·(how it rounds)


class FloatParameters(NamedTuple):
    """Limits of the formats, multiplied by the scale of a fixed-point sum."""

    lowest: Any
    highest: Any
    taken_lowest: Any  # limits of the converter
    taken_highest: Any
    flush_before: Any
    flush_after: Any
    product_max: Any


class IntParameters(NamedTuple):
    """Bit counts, bit positions and masks."""

    dropped: Any  # 23 - m of the accumulator; 52 - m in float64
    lowest_field: Any  # the carrier's exponent field of its smallest normal number
    product_dropped: Any
    product_lowest_field: Any
    random_bits: Any
    near: Any  # -1 for the round-to-nearest modes, else 0
    away: Any  # 1 if ties go away from zero
    full_positive: Any  # -1 if any dropped bit rounds the magnitude of a positive number up
    full_negative: Any
    variant_c: Any  # -1 for variant C, 0 for B


Masks = list[Ints]  # -1 in the lanes in which an event happened, else 0
Step = tuple[Floats, Masks, Masks]  # a result, whether it exceeded a range, and whether it vanished


def carrier_of(kind: int) -> Carrier:
    """The type in which a kind is computed."""
    return DOUBLE if kind & WIDER else SINGLE


@register_jitable
def group_of(kind: int) -> tuple[int, int]:
    """(rows, columns) that are processed together: as many as there are free registers for sums."""
    width = DOUBLE.width if kind & WIDER else SINGLE.width
    light = kind // MODE == NEAREST or kind // MODE == NATIVE
    if not light or kind & (KAHAN | TREE):
        return 4, width
    if WIDE and not kind & WIDER:
        return 8, width
    return 4, 2 * width


class _Rules:
    """The arithmetic of one kind of unit on vectors."""

    def __init__(self, kind: int, floats: Any, ints: Any) -> None:
        self.kind, self.mode, self.floats, self.ints = kind, kind // MODE, floats, ints
        self.carrier = carrier_of(kind)

    @property
    def fuses(self) -> bool:
        """Whether multiplication and addition may be one instruction: the product is exact and not needed itself."""
        plain = self.kind & (FIXED | FLUSH | ROUND | ROUGH | KAHAN | TREE | SEPARATE | ODD) == 0
        return FUSED and plain and self.mode in (NEAREST, NATIVE)

    def accumulate(self, total: Floats, p: Floats, word: Any, converted: bool = False) -> Step:
        """One step: the new sum of a total and a product, or of two sums (`converted`)."""
        if not self.kind & FIXED:
            return self.rounded(total + p, total, p, word)
        taken, beyond, vanished = (p, [], []) if converted else self.taken(p, word)
        free = total + taken
        if self.kind & FREE:
            return free, beyond, vanished
        new = free.max(self.floats.lowest).min(self.floats.highest)
        return new, [*beyond, new.differs(free)] if self.kind & COUNT else [], vanished

    def taken(self, p: Floats, word: Any) -> Step:
        """The product rounded to the accumulator's format."""
        if not self.kind & FIXED:
            return self.rounded(p, None, None, word)
        step = self._whole_number(p, word)
        vanished = [_vanished(p, step)] if self.kind & COUNT and self.kind & VANISH else []
        if self.kind & (FREE | TAME):
            return step, [], vanished
        limited = step.max(self.floats.taken_lowest).min(self.floats.taken_highest)
        return limited, [limited.differs(step)] if self.kind & COUNT else [], vanished

    def rounded(self, s: Floats, x: Floats | None, y: Floats | None, word: Any) -> Step:
        """s rounded to the accumulator's format; s is x + y in the carrier, or exact if they are None."""
        if self.mode == NATIVE:
            return s, [], []
        if self.mode == NEAREST:
            r = self._nearest(s, self.ints.dropped, self.ints.lowest_field if self.kind & VANISH else None)
            if self.kind & (VANISH | KAHAN):
                r = (r.bits() | (s.bits() & self.carrier.sign)).as_floats()
        elif x is None or y is None:
            r = self._from_odd(s.bits(), word)
        else:
            other = s - x
            r = self._from_odd(_odd(s, (x - (s - other)) + (y - other)), word)
        vanished = [_vanished(s, r)] if self.kind & COUNT and self.kind & VANISH else []
        if self.kind & FREE:
            return r, [], vanished
        new = r.max(self.floats.lowest).min(self.floats.highest)
        return new, [new.differs(r)] if self.kind & COUNT else [], vanished

    def _nearest(self, s: Floats, dropped: Ints, lowest_field: Ints | None) -> Floats:
        power, mantissa = s.bits() & self.carrier.exponent, self.carrier.mantissa
        if lowest_field is not None:
            power = power.max(lowest_field << mantissa)
        c = (power + ((dropped << mantissa) | (1 << (mantissa - 1)))).as_floats()
        return (s + c) - c

    def _from_odd(self, bits: Ints, word: Any) -> Floats:
        """Round numbers that were rounded to odd to the accumulator's format: k times the spacing."""
        carrier, ints = self.carrier, self.ints
        u = bits & carrier.magnitude
        field = u >> carrier.mantissa
        top = field.max(ints.lowest_field)
        below = (top - field).min(carrier.bits - 1)
        full = ((u & carrier.fraction) | (carrier.fraction + 1)) & u.differs(0)
        sig = full >> below
        if self.mode != CHANCE_A:  # which ignores the bits lost here
            sig = sig | ((sig << below).differs(full) & 1)
        one = sig.constant(1)
        if self.mode == GENERAL:
            outward = self._outward(bits)
            tie = ((sig >> ints.dropped) | ints.away) & ints.near & 1
            add = (((one << (ints.dropped - 1)) - 1) & ints.near) + tie + (((one << ints.dropped) - 1) & outward)
        else:
            place = ints.dropped - ints.random_bits
            add = word << place
            if self.mode == CHANCE:
                half = one << (place - 1)
                nearest = (half - 1 + ((sig >> place) & 1)) & ints.variant_c
                sig = (sig + nearest) & ~(((half << 1) - 1) & ints.variant_c)
                add = add + (half & ~ints.variant_c)
        k = (sig + add) >> ints.dropped
        spacing = ((top + ints.dropped - carrier.mantissa) << carrier.mantissa).as_floats()  # 2^(top - m)
        return ((k.to_floats() * spacing).bits() | (bits & carrier.sign)).as_floats()

    def _whole_number(self, p: Floats, word: Any) -> Floats:
        """The converter: a product in units of the accumulator's step, rounded to a whole number of them."""
        if self.mode == NEAREST:
            return p.round("rint")
        carrier, ints = self.carrier, self.ints
        size = (p.bits() & carrier.magnitude).as_floats()
        low = size.round("floor")
        delta = size - low
        if self.mode == GENERAL:  # not to nearest with ties to even
            away = (delta + delta).round("floor").bits() & ints.near
            up = (away | (delta.round("ceil").bits() & self._outward(p.bits()))).as_floats()
        else:
            more = (ints.variant_c + 1) if self.mode == CHANCE else ints.variant_c.constant(0)  # 1 for B
            bits, bias, mantissa = ints.random_bits + more, carrier.bias, carrier.mantissa
            scale = ((bits + bias) << mantissa).as_floats()
            unscale = ((bits.constant(bias) - bits) << mantissa).as_floats()
            cut = (delta * scale).round("floor")
            if self.mode == CHANCE:
                nearest = (delta * scale).round("rint").bits() & ints.variant_c
                cut = (nearest | (cut.bits() & ~ints.variant_c)).as_floats()
            random = ((word << more) | more).to_floats()
            up = ((cut + random) * unscale).round("floor")
        return ((low + up).bits() | (p.bits() & carrier.sign)).as_floats()

    def _outward(self, bits: Ints) -> Ints:
        """-1 where any dropped bit rounds the magnitude up, depending on the sign."""
        negative = bits.sign_mask()
        return (self.ints.full_negative & negative) | (self.ints.full_positive & ~negative)

    def product(self, a: Floats, b: Floats) -> Step:
        """The multiplier's output, whether it overflowed, whether it vanished."""
        kind, beyond, vanished = self.kind, [], []
        p = a * b
        if kind & ODD:
            p = _odd(p, a.fused(b, -p)).as_floats()
        if kind & ROUGH and kind & COUNT:
            return p, [], [_vanished(a, p) & (b.bits() & self.carrier.magnitude).differs(0)]
        exact = p
        if kind & FLUSH:
            p = self._flush(p, self.floats.flush_before)
        if kind & ROUND:
            r = self._nearest(p, self.ints.product_dropped, self.ints.product_lowest_field)
            r = (r.bits() | (p.bits() & self.carrier.sign)).as_floats()
            p = self._flush(r, self.floats.flush_after)
            if not kind & FREE:
                beyond.append(self.floats.product_max.where("<", (p.bits() & self.carrier.magnitude).as_floats()))
        if kind & COUNT and kind & (FLUSH | ROUND):
            vanished.append(_vanished(exact, p))
        return p, beyond, vanished

    def _flush(self, p: Floats, threshold: Floats) -> Floats:
        small = (p.bits() & self.carrier.magnitude).as_floats().where("<", threshold)
        return (p.bits() & (~small | self.carrier.sign)).as_floats()


def _odd(s: Floats, error: Floats) -> Ints:
    """The bits of s + error rounded to odd; s is the sum to nearest."""
    inexact = error.differs(error.constant(0.0))
    smaller = (s.bits() ^ error.bits()).sign_mask() & inexact  # the exact sum is nearer to zero than s
    return (s.bits() + smaller) | (inexact & 1)


def _vanished(before: Floats, after: Floats) -> Ints:
    zero = after.constant(0.0)
    return after.where("==", zero) & before.differs(zero)


def _mix(x: Ints) -> Ints:
    """The rounds of a random word without keys."""
    x = (x ^ (x >> SHIFTS[0])) * MULTIPLIERS[0]
    x = (x ^ (x >> SHIFTS[1])) * MULTIPLIERS[1]
    return x ^ (x >> SHIFTS[2])


At = tuple[int, int]  # a vector of a tile: its row and its first column, in vectors


class _Tile:
    """Generates the loop of one kind: the code of a group of rows and columns of a tile.

    The number of row r at step k is a[rows[r] + steps[k]]; b has COLUMNS numbers for each step.
    """

    def __init__(self, builder: Any, place: "Place", kind: int) -> None:
        self.builder, self.kind, self.carrier = builder, kind, carrier_of(kind)
        number, whole = self.carrier.floats.element, self.carrier.ints.element
        at, zero, step = place.at, I64(0), place.step
        row, column = builder.udiv(at, I64(COLUMNS)), builder.urem(at, I64(COLUMNS))
        b = builder.add(builder.add(place.b, builder.mul(step, I64(COLUMNS))), column)
        other = builder.add(place.extra, at) if kind & TREE else at
        addresses = builder.inttoptr(place.arrays, I64.as_pointer())
        self.a, rows, self.steps, self.b, self.c, self.other, floats, ints, self.words, self.keys, self.counts = (
            self._at(builder.inttoptr(builder.load(self._at(addresses, I64(n))), kind.as_pointer()), start)
            for n, (kind, start) in enumerate([
                (number, place.a), (I64, row), (I64, step), (number, b), (number, at), (number, other), (number, zero),
                (whole, zero), (I32, builder.lshr(step, I64(1))), (I32, at), (I32, at),
            ])
        )  # fmt: skip
        self.rules = _Rules(
            kind,
            FloatParameters._make(
                Floats(builder, self._splat(floats, I64(n))) for n in range(len(FloatParameters._fields))
            ),
            IntParameters._make(Ints(builder, self._splat(ints, I64(n))) for n in range(len(IntParameters._fields))),
        )
        height, width = group_of(kind)
        self.rows = [builder.load(self._at(rows, I64(row))) for row in range(height)]
        self.vectors = width // self.carrier.width
        self.tile: list[At] = [(row, vector) for row in range(height) for vector in range(self.vectors)]
        self.seen: dict[tuple[At, int], Any] = {}

    def _splat(self, pointer: Any, index: Any) -> Any:
        """A number in memory, in all lanes."""
        return splat(self.builder, self.builder.load(self._at(pointer, index)), self.carrier.width)

    def _at(self, pointer: Any, index: Any) -> Any:
        return self.builder.gep(pointer, [index])

    def _floats(self, pointer: Any, index: Any) -> Floats:
        """A vector in memory."""
        return Floats(self.builder, load(self.builder, self._at(pointer, index), self.carrier.floats))

    def _place(self, at: At) -> Any:
        return I64(at[0] * COLUMNS + at[1] * self.carrier.width)

    def _slots(self) -> dict[At, Any]:
        """A vector of zeros for each place of the tile."""
        return {at: cgutils.alloca_once(self.builder, self.carrier.floats, zfill=True) for at in self.tile}

    def write(self, count: Any, last_word: Any, last_shift: Any) -> None:
        """Generate `count` steps of k. The last arguments are for the sum of the chunk."""
        if self.kind & (COUNT | ROUND):
            for at in self.tile:
                for what in range(3):
                    self.seen[at, what] = cgutils.alloca_once(self.builder, self.carrier.ints, zfill=True)
        sums = self._slots()
        if self.kind & TREE:
            self._tree(count, sums)
        elif self.kind & KAHAN:
            self._kahan(count, sums)
        elif self.kind // MODE in (CHANCE_A, CHANCE):
            self._by_chance(count, sums)
        else:
            with cgutils.for_range(self.builder, count, intp=I64) as loop:
                self._step(loop.index, sums)
        for at in self.tile:
            self._finish(at, sums, last_word, last_shift)

    def _operands(self, k: Any) -> tuple[list[Floats], list[Floats]]:
        """Step k of all rows and of all columns."""
        builder, width = self.builder, self.carrier.width
        first = builder.mul(k, I64(COLUMNS))
        columns = [self._floats(self.b, builder.add(first, I64(v * width))) for v in range(self.vectors)]
        here = self._at(self.a, builder.load(self._at(self.steps, k)))
        return [Floats(builder, self._splat(here, row)) for row in self.rows], columns

    def _step(self, k: Any, sums: Any, words: dict[At, Ints] | None = None) -> None:
        rows, columns = self._operands(k)
        for at in self.tile:
            a, b, word = rows[at[0]], columns[at[1]], None if words is None else words[at]
            if self.rules.fuses:
                total = Floats(self.builder, self.builder.load(sums[at]))
                self._keep(at, sums, self.rules.rounded(a.fused(b, total), None, None, word))
                continue
            p = self._noted(at, self.rules.product(a, b), 2)
            if self.kind & SEPARATE:
                p = self._noted(at, self.rules.taken(p, word))
            self._add(at, p, sums, word)

    def _by_chance(self, count: Any, sums: Any) -> None:
        """Two steps share a word."""
        builder = self.builder

        def steps(pair: Any, halves: int) -> None:
            step = self._splat(self.words, pair)
            both = {at: self._word(at, step) for at in self.tile}
            for half in range(halves):
                bits = self.rules.ints.random_bits
                places = bits.constant(32 if half == 0 else 16) - bits
                words = {at: (word if half == 0 else word & 0xFFFF) >> places for at, word in both.items()}
                self._step(builder.add(builder.mul(pair, I64(2)), I64(half)), sums, words)

        pairs = builder.lshr(count, I64(1))
        with cgutils.for_range(builder, pairs, intp=I64) as loop:
            steps(loop.index, 2)
        with builder.if_then(builder.trunc(count, ir.IntType(1))):
            steps(pairs, 1)

    def _word(self, at: At, step: Any) -> Ints:
        key = load(self.builder, self._at(self.keys, self._place(at)), ir.VectorType(I32, self.carrier.width))
        return _mix(Ints(self.builder, key) ^ Ints(self.builder, step)).resized(self.carrier.bits)

    def _kahan(self, count: Any, sums: Any) -> None:
        """fresh = p - c, new = total + fresh, c = (new - total) - fresh."""
        rules, lost = self.rules, self._slots()
        with cgutils.for_range(self.builder, count, intp=I64) as loop:
            rows, columns = self._operands(loop.index)
            for at in self.tile:
                p = self._noted(at, rules.product(rows[at[0]], columns[at[1]]), 2)
                if self.kind & SEPARATE:
                    p = self._noted(at, rules.taken(p, None))
                total, c = (Floats(self.builder, self.builder.load(slots[at])) for slots in (sums, lost))
                fresh = self._noted(at, rules.accumulate(p, -c, None))
                new = self._noted(at, rules.accumulate(total, fresh, None))
                gained = self._noted(at, rules.accumulate(new, -total, None))
                self._keep(at, lost, rules.accumulate(gained, -fresh, None))
                self.builder.store(new.value, sums[at])

    def _tree(self, count: Any, sums: Any) -> None:
        """The tree of SUBTREE products, of a single one, or (0) the sum of two nodes: those in `other` and in c."""
        builder, rules = self.builder, self.rules

        def node(first: int, size: int) -> dict[At, Floats]:
            if size == 1:
                rows, columns = self._operands(I64(first))
                taken = {}
                for at in self.tile:
                    p = self._noted(at, rules.product(rows[at[0]], columns[at[1]]), 2)
                    one = self._noted(at, rules.taken(p, None))
                    taken[at] = one + one.constant(0.0)
                return taken
            left, right = node(first, size // 2), node(first + size // 2, size // 2)
            return {at: self._noted(at, rules.accumulate(left[at], right[at], None, True)) for at in self.tile}

        def keep(made: dict[At, Floats]) -> None:
            for at, value in made.items():
                builder.store(value.value, sums[at])

        with builder.if_else(builder.icmp_signed("==", count, I64(SUBTREE))) as (many, few):
            with many:
                keep(node(0, SUBTREE))
            with few, builder.if_else(builder.icmp_signed("==", count, I64(1))) as (single, two):
                with single:
                    keep(node(0, 1))
                with two:
                    for at in self.tile:
                        x, y = (self._floats(pointer, self._place(at)) for pointer in (self.other, self.c))
                        self._keep(at, sums, rules.accumulate(x, y, None, True))

    def _add(self, at: At, p: Floats, sums: Any, word: Any, converted: bool = False) -> None:
        total = Floats(self.builder, self.builder.load(sums[at]))
        self._keep(at, sums, self.rules.accumulate(total, p, word, converted))

    def _keep(self, at: At, slots: Any, made: Step) -> None:
        self.builder.store(self._noted(at, made).value, slots[at])

    def _noted(self, at: At, made: Step, beyond: int = 0) -> Floats:
        """The result; its events are counted, those beyond a range in counter `beyond`."""
        result, *events = made
        for what, masks in zip((beyond, 1), events, strict=True):
            for mask in masks:
                slot = self.seen[at, what]
                seen = Ints(self.builder, self.builder.load(slot))
                self.builder.store((seen.plus_where(mask) if WIDE else seen - mask).value, slot)
        return result

    def _finish(self, at: At, sums: Any, last_word: Any, last_shift: Any) -> None:
        """Add to the previous sum if this is a chunk; store."""
        builder, kind = self.builder, self.kind
        target = self._at(self.c, self._place(at))
        if kind & CHUNK:
            partial = Floats(builder, builder.load(sums[at]))
            builder.store(load(builder, target, self.carrier.floats), sums[at])
            word = None
            if kind // MODE in (CHANCE_A, CHANCE):
                bits = self.rules.ints.random_bits
                shift = Ints(builder, splat(builder, last_shift, self.carrier.width)).resized(self.carrier.bits)
                mixed = self._word(at, splat(builder, last_word, self.carrier.width))
                word = (mixed >> shift) & ((bits.constant(1) << bits) - 1)
            self._add(at, partial, sums, word, True)
        store(builder, builder.load(sums[at]), target)
        for (where, what), slot in self.seen.items():
            if where == at:
                index = builder.add(self._place(at), I64(what * ROWS * COLUMNS))
                counter, more = self._at(self.counts, index), Ints(builder, builder.load(slot)).resized(32)
                counted = Ints(builder, load(builder, counter, more.value.type))
                store(builder, (counted + more).value, counter)


class Place(NamedTuple):
    """Where a group is: the arguments of a tile, all int64, and few enough for registers."""

    arrays: Any
    """Address of the addresses of the arrays: the first operand's numbers, its rows and steps; the packed second
    operand; the tile of sums, other nodes of a tree; the parameters; the random words of steps, those of outputs;
    counts. `a`, `b` and `at` are indices of the first elements."""
    a: Any
    step: Any
    """The first step of k."""
    b: Any
    """Of step 0."""
    at: Any
    """Of the group in its tile."""
    count: Any
    """Steps of k."""
    extra: Any
    """Of a tree: where the other nodes begin. Of a chunk: the random word of its sum, and its shift, times 2^32."""


@intrinsic
def write_tile(_typing: Any, place: Any, kind: Any) -> Any:
    """`kind` is a constant."""
    if not isinstance(kind, types.IntegerLiteral):
        return None

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        values = Place(*cgutils.unpack_tuple(builder, arguments[0]))
        word, shift = (builder.trunc(builder.lshr(values.extra, I64(bits)), I32) for bits in (0, 32))
        _Tile(builder, values, kind.literal_value).write(values.count, word, shift)
        return I64(0)

    return types.int64(place, kind), generate


@intrinsic
def call_tile(_typing: Any, address: Any, place: Any) -> Any:
    """call_tile(address, place): the steps of a group, by the tile at an address."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        values = cgutils.unpack_tuple(builder, arguments[1])
        function = ir.FunctionType(I64, [I64] * len(values))
        return builder.call(builder.inttoptr(arguments[0], function.as_pointer()), values)

    return types.int64(address, place), generate


@lru_cache(maxsize=128)
def make_tile(kind: int) -> Any:
    """The compiled loop over the steps of a group, for one kind of unit; `panels` calls it by address."""

    @cfunc(types.int64(*[types.int64] * len(Place._fields)), error_model="numpy")
    def tile(arrays: int, a: int, step: int, b: int, at: int, count: int, extra: int) -> Any:
        return write_tile((arrays, a, step, b, at, count, extra), kind)

    return tile
