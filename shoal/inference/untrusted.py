"""Checks of an untrusted ONNX file before ONNX Runtime sees it.

ONNX Runtime folds constants while it creates a session, so a file of a few hundred bytes can demand any amount of time
and memory. A file that passes these checks has only operators that `shoal export` writes, contains its own weights, and
its computation for one state is bounded by its size.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import AttributeProto, TensorProto, helper

from shoal.errors import UserError
from shoal.inference.shapes import OPERATORS, Contradiction, Shape, inferred
from shoal.system.memory import check_fits

ATTRIBUTES = {AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.INTS, AttributeProto.STRING}
MOST_NODES = 2**16
"""A team of 1024 agents in int8 has 50,000."""
TIMES, ANY = 128, 2**25
"""Values that one state may touch: per byte of the file (weights packed to three bits: 60), plus a constant."""
MOST_PRODUCTS = 2**32
"""Multiplications for one state, in addition to those per byte: a convolution reuses its weights."""


def parsed(path: Path, model: bytes) -> onnx.ModelProto:
    """The parsed model; a `UserError` if it is not one."""
    try:
        proto = onnx.ModelProto.FromString(model)
    except Exception:  # protobuf's own exception, whose name is not public
        raise UserError(f"'{path}' is not an ONNX file or is damaged (it cannot be parsed).") from None
    if not proto.graph.node:
        raise UserError(f"'{path}' is not an ONNX file or is damaged (it holds no graph).")
    return proto


def check_graph(path: Path, proto: onnx.ModelProto, size: int) -> None:
    """Raise a `UserError` unless this could be an export of `size` bytes."""
    for strange in _strange(proto):
        raise UserError(f"'{path}' was not written by `shoal export`: it has {strange}.")
    try:
        shapes = inferred(proto.graph)
    except Contradiction as error:
        raise UserError(f"'{path}' is damaged: the shapes of its {error} are inconsistent.") from None
    computed = _check_work(path, shapes, proto.graph, size)
    check_fits(
        f"The policy in '{path}'",
        4 * (size + computed),  # its bytes are read, parsed, unpacked and prepacked
        lambda usable: "use a machine with more memory",
    )


def _strange(proto: onnx.ModelProto) -> Iterator[str]:
    """Properties that an export never has."""
    graph = proto.graph
    if proto.functions or proto.training_info:
        yield "custom functions"
    if len(graph.node) > MOST_NODES:
        yield f"{len(graph.node):,} nodes, more than {MOST_NODES:,}"
    if graph.sparse_initializer:
        yield "sparse constants"
    for node in graph.node:
        if node.domain or node.op_type not in OPERATORS:
            yield f"the operator {_shown(node.op_type)}"
        if any(attribute.type not in ATTRIBUTES for attribute in node.attribute):
            yield f"a constant or a graph inside a node {_shown(node.op_type)}"
    for tensor in graph.initializer:
        if tensor.data_location != TensorProto.DEFAULT or tensor.external_data:
            yield "weights in another file"
        elif min(tensor.dims, default=0) < 0 or len(tensor.raw_data) != _bytes(tensor):
            yield f"a constant {_shown(tensor.name)} of another size than it declares"


def _shown(name: str) -> str:
    """A name from an untrusted file, safe to print."""
    return repr(name)[:60]


def _bytes(tensor: TensorProto) -> int:
    """Bytes of a constant; -1 for a type without a fixed size."""
    try:
        return math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, ValueError):
        return -1


def _check_work(path: Path, shapes: dict[str, Shape], graph: onnx.GraphProto, size: int) -> int:
    """Refuse more work for one state than the file's size justifies; returns the number of computed values."""
    touched = computed = products = 0
    for node in graph.node:
        outputs = sum(math.prod(shapes[name]) for name in node.output if name)
        touched += outputs + sum(math.prod(shapes[name]) for name in node.input if name)
        computed += outputs
        if node.op_type.startswith("MatMul"):
            products += outputs * shapes[node.input[0]][-1]
        elif node.op_type.startswith("Conv"):
            products += outputs * math.prod(shapes[node.input[1]][1:])
    for what, count, most in (
        ("numbers", touched, TIMES * size + ANY),
        ("products", products, TIMES * size + MOST_PRODUCTS),
    ):
        if count > most:
            raise UserError(
                f"'{path}' was not written by `shoal export`: a file of {size:,} bytes would compute with "
                f"{count:,} {what} for one state."
            )
    return computed
