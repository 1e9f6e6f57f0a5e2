"""Two machine operations that numba does not offer: ask for memory ahead of time, and copy a block.

Both address a C-contiguous array by flat position and check no bounds.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, position: Any) -> Any:
    """The address of array[position]."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [position])


@intrinsic
def _prefetch(_typing: Any, array: Any, position: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *arguments)
        pointer = builder.bitcast(pointer, ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        function = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        to_read, keep_close, data = word(0), word(3), word(1)
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], function)
        builder.call(prefetch, [pointer, to_read, keep_close, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def _copy(_typing: Any, target: Any, to: Any, source: Any, at: Any, count: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, to, source, at, count = arguments
        cgutils.raw_memcpy(
            builder,
            _pointer(context, builder, signature.args[0], target, to),
            _pointer(context, builder, signature.args[2], source, at),
            count,
            context.get_constant(types.intp, signature.args[0].dtype.bitwidth // 8),
        )
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, types.intp), generate


prefetch: Any = _prefetch
"""prefetch(array, position): ask memory for the cache line of array[position] without waiting for it."""

copy: Any = _copy
"""copy(target, to, source, at, count): target[to : to + count] = source[at : at + count]; one type, no overlap."""
