"""Checks of an untrusted ONNX file before ONNX Runtime sees it.

ONNX Runtime folds constants while it creates a session, so a file of a few hundred bytes can demand any amount of time
and memory. A file that passes these checks has only operators that `shoal export` writes, contains its own weights, and
its computation for one state is bounded by its size.

onnx infers shapes too, but a malicious file can make it take any amount of memory. The rules below take time linear in
the number of nodes; they cover the operators that `graph.build` writes, and no others.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper

from shoal.errors import UserError
from shoal.system.memory import check_fits

Shape = tuple[int, ...]
SMALL = 1024  # largest constant, in bytes, that shapes may depend on
MOST_AXES = 8
ATTRIBUTES = {AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.INTS, AttributeProto.STRING}
MOST_NODES = 2**16  # a team of 1024 agents in int8 has 50,000
TIMES, ANY = 128, 2**25
"""Values that one state may touch: per byte of the file (weights packed to three bits: 60), plus a constant."""
MOST_PRODUCTS = 2**32  # multiplications for one state, in addition to those per byte: a convolution reuses its weights


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
    needed = 4 * (size + computed)  # its bytes are read, parsed, unpacked and prepacked
    check_fits(f"The policy in '{path}'", needed, lambda usable: "use a machine with more memory")


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
    for what, count, constant in (("numbers", touched, ANY), ("products", products, MOST_PRODUCTS)):
        if count > TIMES * size + constant:
            raise UserError(
                f"'{path}' was not written by `shoal export`: a file of {size:,} bytes would compute with "
                f"{count:,} {what} for one state."
            )
    return computed


class Contradiction(ValueError):
    """The graph's shapes are inconsistent, or cannot be inferred without computing."""


def inferred(graph: onnx.GraphProto) -> dict[str, Shape]:
    """The shapes of all inputs, constants and intermediate results, by name; the batch size is 1."""
    shapes: dict[str, Shape] = {}
    constants: dict[str, list[int]] = {}
    for value in graph.input:
        _batch, *sizes = value.type.tensor_type.shape.dim or [None]
        _add(shapes, value.name, (1, *(size.dim_value or -1 for size in sizes)), "input")
    for tensor in graph.initializer:
        _add(shapes, tensor.name, tuple(tensor.dims), "constant")
        if tensor.data_type == TensorProto.INT64 and len(tensor.raw_data) <= SMALL:
            constants[tensor.name] = np.frombuffer(tensor.raw_data, "<i8").tolist()
    for node in graph.node:
        try:
            outputs = list(zip(node.output, _outputs(node, shapes, constants), strict=True))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise Contradiction(f"node {node.op_type}") from error
        for name, shape in outputs:
            _add(shapes, name, shape, f"node {node.op_type}")
        if node.op_type == "Shape":
            constants[node.output[0]] = list(shapes[node.input[0]])
    return shapes


def _add(shapes: dict[str, Shape], name: str, shape: Shape, what: str) -> None:
    """Record a shape, if it is valid and the name is new."""
    if name in shapes or len(shape) > MOST_AXES or any(size < 0 for size in shape):
        raise Contradiction(what)
    shapes[name] = shape


def _outputs(node: onnx.NodeProto, shapes: Mapping[str, Shape], constants: Mapping[str, list[int]]) -> list[Shape]:
    """The shapes of a node's outputs."""
    inputs = [shapes[name] for name in node.input if name]
    numbers = [constants.get(name) for name in node.input]
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type in SAME:
        return [inputs[0]]
    if node.op_type in BROADCAST:
        return [np.broadcast_shapes(*inputs)]
    if node.op_type == "DynamicQuantizeLinear":
        return [inputs[0], (), ()]
    if node.op_type == "Split":
        return _split(inputs, attributes, len(node.output))
    return [_output(node.op_type, inputs, numbers, attributes)]


def _require(right: bool) -> None:
    """Refuse a node that no export has, or whose shapes are inconsistent."""
    if not right:
        raise Contradiction("shape")


def _output(operator: str, inputs: list[Shape], numbers: list[Any], attributes: dict[str, Any]) -> Shape:
    """The shape of a node's only output, from the inputs' shapes, their known values and the attributes."""
    x = inputs[0]
    match operator:
        case "MatMul" | "MatMulInteger":
            right = inputs[1]
            _require(len(x) >= 2 and len(right) >= 2 and x[-1] == right[-2])
            return (*np.broadcast_shapes(x[:-2], right[:-2]), x[-2], right[-1])
        case "Conv" | "ConvInteger":
            (batch, channels, *sizes), (outputs, depth, *kernel) = inputs[:2]
            strides, pads = attributes.get("strides", [1] * len(sizes)), attributes.get("pads", [0] * 2 * len(sizes))
            _require(
                not attributes.keys() - {"strides", "pads"} and channels == depth and min(strides) > 0 <= min(pads)
            )
            sides = zip(sizes, kernel, strides, pads[: len(sizes)], pads[len(sizes) :], strict=True)
            places = ((size + low + high - width) // stride + 1 for size, width, stride, low, high in sides)
            return (batch, outputs, *places)
        case "ReduceMax" | "ReduceMin":
            axes = _axes(numbers[1], len(x))
            _require(bool(axes) and attributes == {"keepdims": 1})
            return tuple(1 if axis in axes else size for axis, size in enumerate(x))
        case "ArgMax":
            axes = _axes([attributes["axis"]], len(x))
            _require(attributes["keepdims"] == 0)
            return tuple(size for axis, size in enumerate(x) if axis not in axes)
        case "Reshape":
            wanted, count = numbers[1], math.prod(x)
            if -1 in wanted:
                rest = -math.prod(wanted)
                wanted = [count // rest if size == -1 else size for size in wanted]
            _require(math.prod(wanted) == count > 0)
            return tuple(wanted)
        case "Shape":
            _require(not attributes)
            return (len(x),)
        case "Squeeze":
            axes = _axes(numbers[1], len(x))
            _require(all(x[axis] == 1 for axis in axes))
            return tuple(size for axis, size in enumerate(x) if axis not in axes)
        case "Unsqueeze":
            rank = len(x) + len(numbers[1])
            axes, left = _axes(numbers[1], rank), iter(x)
            return tuple(1 if axis in axes else next(left) for axis in range(rank))
        case "Transpose":
            _require(sorted(attributes["perm"]) == list(range(len(x))))
            return tuple(x[axis] for axis in attributes["perm"])
        case "Flatten":
            axis = attributes["axis"]
            return math.prod(x[:axis]), math.prod(x[axis:])
        case "Concat":
            (axis,) = _axes([attributes["axis"]], len(x))
            _require(len({(shape[:axis], shape[axis + 1 :]) for shape in inputs}) == 1)
            return (*x[:axis], sum(shape[axis] for shape in inputs), *x[axis + 1 :])
        case "Slice":
            _, (start,), (end,), *axes = numbers
            _require(axes == [[-1]] if len(x) > 1 else not axes)
            return (*x[:-1], len(range(x[-1])[start:end]))
        case "Pad":
            _, pads = numbers
            _require(min(pads) >= 0 and not attributes)
            return tuple(low + size + high for low, size, high in zip(pads[: len(x)], x, pads[len(x) :], strict=True))
        case "OneHot":
            (depth,) = numbers[1]
            _require(attributes["axis"] == -1)
            return (*x, depth)
    raise LookupError(operator)


def _split(inputs: list[Shape], attributes: dict[str, Any], outputs: int) -> list[Shape]:
    (shape,), (axis,), parts = inputs, _axes([attributes["axis"]], len(inputs[0])), attributes["num_outputs"]
    _require(parts == outputs and shape[axis] % parts == 0)
    return [(*shape[:axis], shape[axis] // parts, *shape[axis + 1 :])] * parts


def _axes(axes: Sequence[int], rank: int) -> list[int]:
    """Non-negative axes."""
    return [range(rank)[axis] for axis in axes]


SAME = {
    "Cast", "Clip", "DequantizeLinear", "Exp", "Gelu", "Identity", "LeakyRelu", "Log", "Neg", "QuantizeLinear", "Relu",
    "Round", "Sigmoid", "Tanh",
}  # fmt: skip
BROADCAST = {"Add", "BitShift", "BitwiseAnd", "BitwiseOr", "Div", "Max", "Min", "Mul", "Sub"}
OPERATORS = SAME | BROADCAST | {
    "ArgMax", "Concat", "Conv", "ConvInteger", "DynamicQuantizeLinear", "Flatten", "MatMul", "MatMulInteger", "OneHot",
    "Pad", "ReduceMax", "ReduceMin", "Reshape", "Shape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
}  # fmt: skip
"""All operators that `graph.build` writes."""
