"""What numba has no name for: arrays at an address, atomic operations, clocks, yielding the processor.

Addresses are whole numbers, in bytes. The C library's functions are found by name, so that compiled code can be cached.
"""

import sys
from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, types
from numba.core import cgutils
from numba.extending import register_jitable

from shoal.system.tiles import I8, I32, I64, call

intrinsic: Any = extending.intrinsic  # which mypy takes for a function of the typing context as well
MONOTONIC = {"linux": 1, "darwin": 6}.get(sys.platform, 1)  # number of the system's monotonic clock
SINCE, CURRENT, CLOCKS = range(3)
"""Of a thread's clock: the time of the last reading, the phase since then; then nanoseconds per phase."""


@intrinsic
def view(_typing, like, address, size):  # type: ignore[no-untyped-def]
    """The numbers at this address, of the type of the number `like`, as an array."""
    if not isinstance(like, types.Float):
        raise TypeError(f"a view is of floats, not of {like}")
    array = types.Array(like, 1, "C")

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        from numba.np.arrayobj import populate_array

        made = context.make_array(array)(context, builder)
        item = context.get_constant(types.intp, like.bitwidth // 8)
        pointer = builder.inttoptr(arguments[1], made.data.type)
        populate_array(made, data=pointer, shape=[arguments[2]], strides=[item], itemsize=item, meminfo=None)
        return made._getvalue()

    return array(like, types.int64, types.intp), generate


def _atomic(write: Callable[..., Any], result: Any) -> Any:
    """An intrinsic on array[position], an int64, and some more int64 values."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, position, values = arguments
        data = context.make_array(signature.args[0])(context, builder, array).data
        return write(builder, builder.gep(data, [position]), *cgutils.unpack_tuple(builder, values))

    @intrinsic
    def operate(_typing, array, position, *values):  # type: ignore[no-untyped-def]
        return result(array, types.intp, types.UniTuple(types.int64, len(values))), generate

    return operate


@intrinsic
def now(_typing):  # type: ignore[no-untyped-def]
    """Nanoseconds of the monotonic clock."""

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        moment = cgutils.alloca_once(builder, ir.ArrayType(I64, 2))
        call(builder, "clock_gettime", I32, I32(MONOTONIC), builder.bitcast(moment, I8.as_pointer()))
        seconds, rest = (builder.load(builder.gep(moment, [I32(0), I32(k)])) for k in (0, 1))
        return builder.add(builder.mul(seconds, I64(10**9)), rest)

    return types.int64(), generate


@intrinsic
def yield_processor(_typing):  # type: ignore[no-untyped-def]
    """Let another thread run (sched_yield)."""

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        call(builder, "sched_yield", I32)
        return context.get_dummy_value()

    return types.void(), generate


load: Any = _atomic(lambda builder, word: builder.load_atomic(word, "seq_cst", 8), types.int64)
"""load(array, position): array[position], sequentially consistent."""

fetch_add: Any = _atomic(lambda builder, word, value: builder.atomic_rmw("add", word, value, "seq_cst"), types.int64)
"""fetch_add(array, position, value): atomically array[position] += value; returns the value before."""

compare_exchange: Any = _atomic(
    lambda builder, word, *pair: builder.extract_value(builder.cmpxchg(word, *pair, "seq_cst", "seq_cst"), 1),
    types.boolean,
)
"""compare_exchange(array, position, expected, value): array[position] = value if it is `expected`; whether it was."""


@register_jitable
def read_clock(clocks, phase):  # type: ignore[no-untyped-def]
    """The time since the last reading belongs to the phase that began then; now another one begins."""
    time = now()
    clocks[CLOCKS + clocks[CURRENT]] += time - clocks[SINCE]
    clocks[SINCE], clocks[CURRENT] = time, phase
