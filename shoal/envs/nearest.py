"""Entities in order of their distance from each agent, for one copy of a particle world at a time.

Eight agents are sorted for at once, one per lane of a vector. A code is the squared distance in float32, its last bits
replaced by the entity's number: sorting moves one number per entity, and equal distances stay in the entities' order.
Where codes are too coarse to tell two distances apart, the exact ones decide.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, types
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.system.tiles import I8, I32, I64, load, splat, store

Floats = NDArray[np.float64]
intrinsic: Any = extending.intrinsic  # which mypy takes for a function of the typing context as well

LANES = 8
ROW = 4 * LANES  # bytes of a row of codes
ITSELF = 0x7FFFFFFF  # code of the agent itself, after all others
DOUBLE = ir.DoubleType()
DOUBLES, SINGLES, WORDS = (ir.VectorType(kind, LANES) for kind in (DOUBLE, ir.FloatType(), I32))

# Inlined, and without reference counting of arrays, which takes longer than a whole step of a small world.
inlined = njit(cache=True, forceinline=True, _nrt=False)


class Sorting(NamedTuple):
    """The order in which each agent sees entities, and scratch memory for sorting them."""

    order: NDArray[np.uint32]  # (N, K - 1) landmarks, predators, prey
    codes: NDArray[np.int32]  # (K, LANES)
    places: Floats  # (2, LANES) x and y of these agents


@njit(cache=True)
def sorting(seen: NDArray[np.uint32], by_distance: bool) -> Sorting:
    """For agents that see these entities (N, K - 1): in this order, or by distance."""
    codes = np.empty((seen.shape[1] + 1, LANES), np.int32)
    return Sorting(seen.copy() if by_distance else seen, codes, np.empty((2, LANES)))


@intrinsic
def write_places(_typing, position, first, last, places):  # type: ignore[no-untyped-def]
    """Write x, then y, of the LANES agents from `first` on; beyond the `last` one it is repeated."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        position, first, last, places = arguments
        for axis in range(2):
            vector = ir.Constant(DOUBLES, ir.Undefined)
            for lane in range(LANES):
                i = builder.add(first, I64(lane))
                i = builder.select(builder.icmp_signed("<", i, last), i, last)
                place = builder.add(position, builder.add(builder.mul(i, I64(16)), I64(8 * axis)))
                vector = builder.insert_element(vector, load(builder, place, DOUBLE), I32(lane))
            store(builder, vector, builder.add(places, I64(8 * LANES * axis)))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic
def write_codes(_typing, row, places, x, y, number, high, itself):  # type: ignore[no-untyped-def]
    """Write the codes of the entity at x, y: the bits `high` of its squared distances, and its number.

    It is the agent in lane `itself`, if there is such a lane.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        row, places, x, y, *numbers = arguments
        squares = []
        for axis, to in enumerate((x, y)):
            start = load(builder, builder.add(places, I64(8 * LANES * axis)), DOUBLES)
            seen = builder.fptrunc(builder.fsub(splat(builder, to, LANES), start), SINGLES)
            offset = builder.fpext(seen, DOUBLES)
            squares.append(builder.fmul(offset, offset))
        number, high, itself = (splat(builder, value, LANES) for value in numbers)
        codes = builder.bitcast(builder.fptrunc(builder.fadd(*squares), SINGLES), WORDS)
        codes = builder.or_(builder.and_(codes, high), number)
        own = builder.icmp_signed("==", itself, ir.Constant(WORDS, list(range(LANES))))
        store(builder, builder.select(own, ir.Constant(WORDS, [ITSELF] * LANES), codes), row)
        return context.get_dummy_value()

    integers = [types.int32] * 3
    return types.void(types.int64, types.int64, types.float64, types.float64, *integers), generate


@intrinsic
def exchange(_typing, low, high):  # type: ignore[no-untyped-def]
    """Move the smaller codes of two rows to `low`, the larger ones to `high`."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        a, b = (load(builder, row, WORDS) for row in arguments)
        ordered = builder.icmp_signed("<", a, b)
        store(builder, builder.select(ordered, a, b), arguments[0])
        store(builder, builder.select(ordered, b, a), arguments[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def alike(_typing, row, high):  # type: ignore[no-untyped-def]
    """Whether any code in this row has the same bits `high` as the one in the next row."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        row, high = arguments
        a, b = load(builder, row, WORDS), load(builder, builder.add(row, I64(ROW)), WORDS)
        different = builder.and_(builder.xor(a, b), splat(builder, high, LANES))
        same = builder.icmp_signed("==", different, ir.Constant(WORDS, [0] * LANES))
        return builder.icmp_signed("!=", builder.bitcast(same, I8), I8(0))

    return types.boolean(types.int64, types.int32), generate


@inlined
def sort_rows(codes: int, count: int) -> None:
    """Sort every lane of `count` rows by Batcher's merge exchange: the same comparisons, whatever the codes are."""
    top = 1
    while 2 * top < count:
        top *= 2
    width = top
    while width > 0:
        step, part, apart = top, 0, width
        while True:
            for row in range(count - apart):
                if row & width == part:
                    exchange(codes + row * ROW, codes + (row + apart) * ROW)
            if step == width:
                break
            apart, step, part = step - width, step >> 1, width
        width >>= 1


@inlined
def square_seen(position: Floats, e: int, i: int, k: int) -> float:
    """Squared distance of entity k from agent i, of the float32 numbers that the agent sees."""
    dx = np.float64(np.float32(position[e, k, 0] - position[e, i, 0]))
    dy = np.float64(np.float32(position[e, k, 1] - position[e, i, 1]))
    return dx * dx + dy * dy


@inlined
def sort_exactly(position: Floats, e: int, i: int, order: NDArray[np.uint32], first: int, count: int) -> None:
    """Order `count` entities that agent i sees, and that are nearly sorted, by exact distance."""
    for s in range(first + 1, first + count):
        k, at = order[i, s], s
        square = square_seen(position, e, i, k)
        while at > first and square_seen(position, e, i, order[i, at - 1]) > square:
            order[i, at] = order[i, at - 1]
            at -= 1
        order[i, at] = k


@inlined
def nearest_first(e: int, position: Floats, agents: int, predators: int, bodies: int, work: Sorting) -> None:
    """Order what each agent of copy e sees: landmarks, predators, prey, each by distance, ties by index."""
    world = position.ctypes.data + e * position.shape[1] * 16
    codes, places = work.codes.ctypes.data, work.places.ctypes.data
    for start in range(0, agents, LANES):
        write_places(world, start, agents - 1, places)
        at = 0  # in the order
        for first, last in ((bodies, position.shape[1]), (0, predators), (predators, bodies)):
            count, numbers = last - first, 1
            while numbers < count:
                numbers *= 2
            high, low = np.int32(-numbers), numbers - 1  # bits of the distance, bits of the entity's number
            for s in range(count):
                x, y = position[e, first + s, 0], position[e, first + s, 1]
                write_codes(codes + s * ROW, places, x, y, np.int32(s), high, np.int32(first + s - start))
            sort_rows(codes, count)
            close = False
            for s in range(count - 1):
                close |= alike(codes + s * ROW, high)
            for i in range(start, min(start + LANES, agents)):
                others = count - (first <= i < last)
                here = at - (i < first < bodies)  # a predator has left itself out
                for s in range(others):
                    work.order[i, here + s] = first + (work.codes[s, i - start] & low)
                if close:
                    sort_exactly(position, e, i, work.order, here, others)
            at += count
