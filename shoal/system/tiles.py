"""What writers of LLVM code share: vectors in memory, a number in all lanes, loops over registers, LLVM's functions.

numba has no vector type and cannot keep a tile of outputs in registers, so inner loops of products are written as LLVM
code: `native/tile.py`, `inference/int8_kernels.py` and `numerics/mac/tile_kernels.py` say what a tile computes.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Call a function of LLVM or of the C library, by its name."""
    function = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), arguments)


def load(builder: Any, place: Any, kind: Any) -> Any:
    """The number or vector at a pointer or a whole-number address; a vector need not be aligned."""
    value = builder.load(_pointer(builder, place, kind))
    value.align = _item(kind)
    return value


def store(builder: Any, value: Any, place: Any) -> None:
    """Write a number or vector to where `load` finds it."""
    builder.store(value, _pointer(builder, place, value.type)).align = _item(value.type)


def splat(builder: Any, number: Any, lanes: int) -> Any:
    """A vector with this number in all lanes."""
    vector = ir.VectorType(number.type, lanes)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, I32(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def loop(
    builder: Any,
    first: Any,
    last: Any,
    step: int,
    carried: Sequence[Any],
    body: Callable[[Any, list[Any]], Sequence[Any]],
) -> list[Any]:
    """Values that stay in registers from one turn of a loop to the next.

    `body` is given the index, from `first` up to `last`, and the values, and returns the next ones.
    """
    before, head, inside, done = builder.block, *(builder.append_basic_block() for _ in range(3))
    builder.branch(head)
    builder.position_at_end(head)
    index, values = builder.phi(I64), [builder.phi(value.type) for value in carried]
    for phi, value in zip([index, *values], [first, *carried], strict=True):
        phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", index, last), inside, done)
    builder.position_at_end(inside)
    after = [builder.add(index, I64(step)), *body(index, values)]
    for phi, value in zip([index, *values], after, strict=True):
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(done)
    return values


def _pointer(builder: Any, place: Any, kind: Any) -> Any:
    convert = builder.inttoptr if isinstance(place.type, ir.IntType) else builder.bitcast
    return convert(place, kind.as_pointer())


def _item(kind: Any) -> int:
    """Bytes of a number, or of a vector's numbers."""
    number = kind.element if isinstance(kind, ir.VectorType) else kind
    return {"float": 4, "double": 8}[str(number)] if not isinstance(number, ir.IntType) else number.width // 8
