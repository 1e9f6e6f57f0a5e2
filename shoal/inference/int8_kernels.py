"""Int8 matrix products in native code, and a whole policy made of them in one compiled call.

Each row of activations is quantized dynamically, with its own scale and zero point; weights are int8 codes with one
scale per unit. The formulas are those of `graph.py`; the layout of the codes is described in `native_engine.py`.

    y = activation((sum of code * weight - zero * sum of weight) * (scale * weight scale) + bias)

The sums are exact integers, so every kind of product gives the same bits. There are three; their inner loops are LLVM
IR, because numba has no way to ask for these instructions:

    VNNI       u8 × s8, four products accumulated in 32 bits by one instruction
    AVX2       pairs of products are added in 16 bits first, so weights must have 7 bits or fewer
    PORTABLE   shifts and 32-bit multiplications, on any processor

Vectors have 256 bits: VNNI with 512 bits was no faster on Zen 4, for batches of 1 to 64.

Shape letters: B batch rows, N agents, C networks, O observation, A action, I inputs of a layer, U its units.
"""

from collections.abc import Set
from functools import cache, reduce
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from shoal.compiled import njit
from shoal.inference.activation_kernels import activate, choose, fast_tanh, to_box
from shoal.system.processors import has_vnni, vector_features
from shoal.system.tiles import I8, I16, I32, I64, call, load, loop, splat, store

TILE, GROUP = 16, 4  # units in a tile, inputs in a group
# Words of the header of packed codes; FIELDS words per layer start at FIRST, then come the agents' action sizes, the
# agents in the order of their networks, and the number of agents of each network.
MAGIC_AT, VERSION_AT, CHECKSUM, BITS, SQUASH = range(5)
SIZE, HEAD, AGENTS, SEEN, ACTION, LAYERS, ONE_HOT, FRAME, NETWORKS, FIRST = range(5, 15)
INPUTS, UNITS, ACTIVATION, START, FIELDS = range(5)
FIXED = SIZE  # from here on, the words are the same for all versions of a policy's weights
PORTABLE, AVX2, VNNI = range(3)
ROWS = 32  # rows that go through a layer together
TINY = np.finfo(np.float32).tiny


@cache
def available() -> tuple[int, ...]:
    """The kinds of products that numba can compile in this process, fastest first."""
    return kinds_for(vector_features())


def kinds_for(features: Set[str]) -> tuple[int, ...]:
    """The kinds of products for a processor with these features, fastest first."""
    usable = {VNNI: has_vnni(features), AVX2: "avx2" in features, PORTABLE: True}
    return tuple(kind for kind in usable if usable[kind])


def product_kind(bits: int) -> int:
    """The fastest kind of product for weights of this many bits."""
    return next(kind for kind in available() if kind != AVX2 or bits <= 7)


LANES = 8
VECTOR, PARTS = ir.VectorType(I32, LANES), TILE // LANES


def _multiply_add(builder: Any, kind: int, total: Any, x: Any, weights: Any) -> Any:
    """total + x · weights: in each of the 32-bit lanes four unsigned codes of x by four signed weights."""

    def all_lanes(number: int) -> Any:
        return ir.Constant(VECTOR, [number] * LANES)

    if kind == VNNI:
        return call(builder, "llvm.x86.avx512.vpdpbusd.256", VECTOR, total, x, weights)
    if kind == AVX2:
        eighths, halves = ir.VectorType(I8, 4 * LANES), ir.VectorType(I16, 2 * LANES)
        x, weights = builder.bitcast(x, eighths), builder.bitcast(weights, eighths)
        pairs = call(builder, "llvm.x86.avx2.pmadd.ub.sw", halves, x, weights)
        ones = ir.Constant(halves, [1] * 2 * LANES)
        return builder.add(total, call(builder, "llvm.x86.avx2.pmadd.wd", VECTOR, pairs, ones))
    for k in range(GROUP):  # byte k of each lane, the lowest first
        code = builder.and_(builder.lshr(x, all_lanes(8 * k)), all_lanes(255))
        weight = builder.ashr(builder.shl(weights, all_lanes(24 - 8 * k)), all_lanes(24))
        total = builder.add(total, builder.mul(code, weight))
    return total


def _tile(rows: int, unroll: int) -> Any:
    """An intrinsic that multiplies `rows` rows of codes by one tile of 16 units; addresses and steps are in bytes.

    `unroll` groups of inputs are added at a time, each to its own totals: those stay in registers.
    """
    count = rows * PARTS

    def write(builder: Any, kind: int, sums: Any, sums_step: Any, codes: Any, codes_step: Any, weights: Any,
              groups: Any) -> None:  # fmt: skip
        starts = [builder.add(codes, builder.mul(codes_step, I64(r))) for r in range(rows)]

        def add_groups(group: Any, totals: list[Any]) -> list[Any]:
            """As many groups of inputs as there are sets of totals, each added to its own."""
            after = []
            for k in range(len(totals) // count):
                at = builder.mul(builder.add(group, I64(k)), I64(GROUP))
                block = builder.add(weights, builder.mul(at, I64(TILE)))
                vectors = [load(builder, builder.add(block, I64(4 * LANES * p)), VECTOR) for p in range(PARTS)]
                for r, start in enumerate(starts):
                    x = splat(builder, load(builder, builder.add(start, at), I32), LANES)
                    for p, vector in enumerate(vectors):
                        after.append(_multiply_add(builder, kind, totals[k * count + r * PARTS + p], x, vector))
            return after

        totals = [ir.Constant(VECTOR, [0] * LANES)] * unroll * count
        whole = builder.mul(builder.sdiv(groups, I64(unroll)), I64(unroll))
        totals = loop(builder, I64(0), whole, unroll, totals, add_groups)
        if unroll > 1:
            totals = [reduce(builder.add, totals[k::count]) for k in range(count)]
            totals = loop(builder, whole, groups, 1, totals, add_groups)
        for k, total in enumerate(totals):
            row = builder.add(sums, builder.mul(sums_step, I64(k // PARTS)))
            store(builder, total, builder.add(row, I64(4 * LANES * (k % PARTS))))

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wanted, *places = arguments
        for kind in available():  # LLVM could not compile the others
            with builder.if_then(builder.icmp_signed("==", wanted, I64(kind))):
                write(builder, kind, *places)
        return context.get_dummy_value()

    @intrinsic
    def tile(_context, kind, sums, sums_step, codes, codes_step, weights, groups):  # type: ignore[no-untyped-def]
        return types.void(*[types.int64] * 7), generate

    return tile


MANY = 4  # rows multiplied by a tile at once, if there are so many
_one, _many = _tile(1, 4), _tile(MANY, 1)


@njit(cache=True, nogil=True)
def products(kind, rows, codes, codes_step, weights, at, groups, tiles, sums, sums_step):  # type: ignore[no-untyped-def]
    """Write the integer sums of all units for some rows: int32, a row every `sums_step` numbers.

    A row of unsigned codes begins every `codes_step` bytes. The layer's weights, `tiles` tiles of 16 units with
    `groups` groups of four inputs, begin at byte `at`. All steps and places are multiples of 4.
    """
    first_sum, first_code, first_weight = sums.ctypes.data, codes.ctypes.data, weights.ctypes.data + at
    for t in range(tiles):
        w, r = first_weight + t * groups * GROUP * TILE, 0
        while r < rows:
            s, c = first_sum + 4 * (r * sums_step + t * TILE), first_code + r * codes_step
            if r + MANY <= rows:
                _many(kind, s, 4 * sums_step, c, codes_step, w, groups)
                r += MANY
            else:
                _one(kind, s, 4 * sums_step, c, codes_step, w, groups)
                r += 1


@njit(inline="always")
def _ordered(bits):  # type: ignore[no-untyped-def]
    """Maps the bits of float32 numbers to integers in the same order, and back."""
    return np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))


@njit(error_model="numpy")
def _extent(x):  # type: ignore[no-untyped-def]
    """Minimum and maximum of the row and 0; compared as integers, because LLVM vectorises that."""
    bits, low, high = x.view(np.int32), np.int32(0), np.int32(0)
    for i in range(x.size):
        whole = _ordered(bits[i])
        low, high = min(low, whole), max(high, whole)
    return _ordered(low).view(np.float32), _ordered(high).view(np.float32)


@njit(cache=True, nogil=True, error_model="numpy")
def quantize_row(x, codes):  # type: ignore[no-untyped-def]
    """Write the row's unsigned codes; return its scale and zero point.

    The scale is NaN, and so is everything computed with it, for a row with NaN or infinity, or whose range is infinite.
    """
    low, high = _extent(x)
    scale = max((high - low) / np.float32(255), TINY)
    if not scale < np.inf:
        return np.float32(np.nan), np.int32(0)
    zero = np.rint(-low / scale)
    for i in range(x.size):
        codes[i] = np.uint8(min(max(np.rint(x[i] / scale) + zero, np.float32(0)), np.float32(255)))
    return scale, np.int32(zero)


@njit(error_model="numpy")
def _dequantize(sums, scale, zero, scales, biases, weight_sums, y):  # type: ignore[no-untyped-def]
    """Write the layer's outputs before the activation to y (U,)."""
    for u in range(y.size):
        y[u] = np.float32(sums[u] - zero * weight_sums[u]) * (scale * scales[u]) + biases[u]


@njit(cache=True, nogil=True, error_model="numpy")
def activate_row(y, activation):  # type: ignore[no-untyped-def]
    activate(y, activation, fast_tanh)


@njit(error_model="numpy")
def _observe(observation, own, first, last, header, packed, x):  # type: ignore[no-untyped-def]
    """Write rows `first` to `last` of these agents' raw observations (B, N, O) as inputs of the first layer."""
    agents, size = header[AGENTS], header[SEEN]
    frame = packed[header[FRAME] :]
    frame = frame[: 4 * (2 * agents * (size + header[ACTION]) + 2)].view(np.float32)
    clip, divisor = frame[-2], frame[-1]
    for k in range(own.size):
        n = own[k]
        mean, deviation = frame[n * size : (n + 1) * size], frame[(agents + n) * size : (agents + n + 1) * size]
        for r in range(first + (k - first) % own.size, last, own.size):
            seen, row = observation[r // own.size, n], x[r - first]
            if header[ONE_HOT]:
                for i in range(header[ONE_HOT]):
                    row[i] = np.float32(i == np.rint(seen[0]))
            else:
                for i in range(size):
                    row[i] = min(max((seen[i] / divisor - mean[i]) / deviation[i], -clip), clip)


@njit(error_model="numpy")
def _layer(k, c, rows, header, packed, kind, scratch):  # type: ignore[no-untyped-def]
    """Run layer k of network c in place, on the first rows of the scratch."""
    x, wide = scratch[0], scratch.shape[2]
    sums, codes = scratch[1].reshape(-1).view(np.int32), scratch[2].reshape(-1).view(np.uint8)
    scale, zero = scratch[3, 0], scratch[3, 1]
    fields = header[FIRST + FIELDS * k :]
    inputs, units, at = fields[INPUTS], fields[UNITS], fields[START]
    groups, tiles = -(-inputs // GROUP), -(-units // TILE)
    for r in range(rows):
        scale[r], zero[r] = quantize_row(x[r, :inputs], codes[r * wide : (r + 1) * wide])
    part = 4 * tiles * TILE  # bytes of a network's scales
    networks = header[NETWORKS]
    weights = at + 3 * networks * part + c * tiles * TILE * groups * GROUP
    products(kind, rows, codes, wide, packed, weights, groups, tiles, sums, wide)
    scales = packed[at + c * part : at + (c + 1) * part].view(np.float32)
    biases = packed[at + (networks + c) * part : at + (networks + c + 1) * part].view(np.float32)
    weight_sums = packed[at + (2 * networks + c) * part : at + (2 * networks + c + 1) * part].view(np.int32)
    for r in range(rows):
        row = sums[r * wide : r * wide + units]
        _dequantize(row, scale[r], np.int32(zero[r]), scales, biases, weight_sums, x[r, :units])
        activate_row(x[r, :units], fields[ACTIVATION])


@njit(cache=True, nogil=True, error_model="numpy")
def play(observation, header, packed, kind, scratch, noise, choices, boxes, masked):  # type: ignore[no-untyped-def]
    """Write the choices (B, N) or boxes (B, N, A), whichever is not empty, for raw observations (B, N, O).

    The header of the packed codes has been checked, and `kind` is the `product_kind` for their bits. The noise
    (B, N, A) is in (0, 1), or empty if nothing is drawn. The scratch is (4, ROWS, W) float32, where no layer has more
    than W inputs or units, and W >= ROWS. `masked`: observations begin with a mask of the choices.
    """
    agents, size = header[AGENTS], header[ACTION]
    sizes = header[FIRST + FIELDS * header[LAYERS] :]
    members, counts = sizes[agents : 2 * agents], sizes[2 * agents :]
    begin = header[FRAME] + 8 * agents * header[SEEN]
    ends = packed[begin : begin + 8 * agents * size].view(np.float32).reshape((2, agents, size))
    at = 0
    for c in range(header[NETWORKS]):
        own = members[at : at + counts[c]]
        at += own.size
        rows = observation.shape[0] * own.size
        for first in range(0, rows, ROWS):
            last = min(first + ROWS, rows)
            _observe(observation, own, first, last, header, packed, scratch[0])
            for k in range(header[LAYERS]):
                _layer(k, c, last - first, header, packed, kind, scratch)
            for r in range(first, last):
                b, n, outputs = r // own.size, own[r % own.size], scratch[0, r - first]
                if choices.size:
                    drawn = noise[b, n] if noise.size else noise[:, 0].ravel()
                    choices[b, n] = choose(outputs[: sizes[n]], drawn, observation[b, n], masked)
                else:
                    to_box(outputs, header[SQUASH], ends[0, n], ends[1, n], fast_tanh, boxes[b, n])


@njit(cache=True, nogil=True)
def lay_out(codes, weight, sums):  # type: ignore[no-untyped-def]
    """Write codes (C, I, U) as tiles (C, tiles, groups, 16), four inputs per uint32, and their sums (C, padded U)."""
    networks, inputs, units = codes.shape
    rows = np.zeros((GROUP, sums.shape[1]), np.uint8)  # one group, padded
    for n in range(networks):
        sums[n] = 0
        for g in range(weight.shape[2]):
            for j in range(GROUP):
                i = g * GROUP + j
                if i < inputs:
                    for u in range(units):
                        rows[j, u] = np.uint8(codes[n, i, u])
                        sums[n, u] += codes[n, i, u]
                else:
                    rows[j] = 0
            for t in range(weight.shape[1]):
                for u in range(TILE):
                    word = np.uint32(0)
                    for j in range(GROUP):
                        word |= np.uint32(rows[j, t * TILE + u]) << np.uint32(8 * j)
                    weight[n, t, g, u] = word


@njit(cache=True, nogil=True)
def checksum(words):  # type: ignore[no-untyped-def]
    """64-bit checksum of all words but the checksum itself, in eight lanes; any change of one word changes it."""
    prime = np.uint64(0x100000001B3)
    lanes = np.zeros(8, np.uint64)
    for k in range(8):
        lanes[k] = np.uint64(0 if k == CHECKSUM else words[k])
    for at in range(8, words.size, 8):
        for k in range(8):
            lanes[k] = (lanes[k] ^ words[at + k]) * prime
    total = np.uint64(0)
    for k in range(8):
        total = (total ^ lanes[k]) * prime
    return total
