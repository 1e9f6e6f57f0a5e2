"""An untrusted ONNX file, bounded before ONNX Runtime sees it.

ONNX Runtime computes what depends on constants alone while it makes a session, so a file of a few hundred bytes can ask
for any amount of time and memory. What passes here holds only operators that `shoal export` writes, keeps its weights
inside, and computes about as much for one state as the size of the file says.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import AttributeProto, TensorProto, helper

from shoal.errors import UserError
from shoal.inference.shapes import OPERATORS, Contradiction, Shape, inferred
from shoal.memory import check_fits

ATTRIBUTES = {AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.INTS, AttributeProto.STRING}
MOST_NODES = 2**16
"""A team of 1024 agents in int8 has 50,000."""
TIMES, ANY = 128, 2**25
"""Numbers that one state may touch per byte of the file (weights packed to three bits: 60), and in a small file."""
MOST_PRODUCTS = 2**32
"""Multiplications of one state on top of those per byte: a convolution uses its weights many times."""


def parsed(path: Path, model: bytes) -> onnx.ModelProto:
    """The model, if it is one."""
    try:
        proto = onnx.ModelProto.FromString(model)
    except Exception:  # protobuf's own kind, which has no name that it promises
        raise UserError(f"'{path}' is not an ONNX file or is damaged (it cannot be parsed).") from None
    if not proto.graph.node:
        raise UserError(f"'{path}' is not an ONNX file or is damaged (it holds no graph).")
    return proto


def check_graph(path: Path, proto: onnx.ModelProto, size: int) -> None:
    """Raise a `UserError` unless this could be an export, as large as its `size` bytes look."""
    for strange in _strange(proto):
        raise UserError(f"'{path}' is not as `shoal export` writes policies: it has {strange}.")
    try:
        shapes = inferred(proto.graph)
    except Contradiction as error:
        raise UserError(f"'{path}' is damaged: the shapes of its {error} do not fit together.") from None
    computed = _check_work(path, shapes, proto.graph, size)
    check_fits(
        f"The policy in '{path}'",
        4 * (size + computed),  # its bytes are read, parsed, unpacked and laid out anew
        lambda usable: "play it on a machine with more memory",
    )


def _strange(proto: onnx.ModelProto) -> Iterator[str]:
    """What an export never has."""
    graph = proto.graph
    if proto.functions or proto.training_info:
        yield "functions of its own"
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
            yield f"a constant {_shown(tensor.name)} of another size than it says"


def _shown(name: str) -> str:
    """A name in somebody's file as it can be shown."""
    return repr(name)[:60]


def _bytes(tensor: TensorProto) -> int:
    """What the numbers of a constant take; -1 of a type that has no fixed size."""
    try:
        return math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, ValueError):
        return -1


def _check_work(path: Path, shapes: dict[str, Shape], graph: onnx.GraphProto, size: int) -> int:
    """Refuse more work for one state than the file's size can account for; returns how many numbers are computed."""
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
                f"'{path}' is not as `shoal export` writes policies: a file of {size:,} bytes would compute with "
                f"{count:,} {what} for one state."
            )
    return computed
