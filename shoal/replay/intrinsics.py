"""Two machine operations that numba does not offer: ask for memory ahead of time, and copy a block.

Both address a C-contiguous array by flat position and check no bounds.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from shoal.system.tiles import I8, I32


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, position: Any) -> Any:
    """The address of array[position]."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [position])


@intrinsic
def prefetch(_typing: Any, array: Any, position: Any) -> Any:
    """Ask memory for the cache line of array[position] without waiting for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *arguments)
        pointer = builder.bitcast(pointer, I8.as_pointer())
        function = ir.FunctionType(ir.VoidType(), [pointer.type, I32, I32, I32])
        to_read, keep_close, data = I32(0), I32(3), I32(1)
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], function)
        builder.call(prefetch, [pointer, to_read, keep_close, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def copy(_typing: Any, target: Any, to: Any, source: Any, at: Any, count: Any) -> Any:
    """target[to : to + count] = source[at : at + count]; one type, no overlap."""

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
