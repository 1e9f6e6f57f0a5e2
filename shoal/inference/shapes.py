"""Shape inference for exported graphs, for one state, without computing anything.

onnx has shape inference too, but a malicious file can make it take any amount of memory; these rules take time linear
in the number of nodes. They cover the operators that `graph.build` writes, and no others.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

Shape = tuple[int, ...]
SMALL = 1024
"""Largest constant, in bytes, that shapes may depend on."""
MOST_AXES = 8


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
            found = list(zip(node.output, _outputs(node, shapes, constants), strict=True))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise Contradiction(f"node {node.op_type}") from error
        for name, shape in found:
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
        return [broadcast(inputs)]
    if node.op_type == "DynamicQuantizeLinear":
        return [inputs[0], (), ()]
    if node.op_type == "Split":
        return _split(inputs, attributes, len(node.output))
    return [RULES[node.op_type](inputs, numbers, attributes)]


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The broadcast shape, by numpy's rules."""
    found = []
    for sizes in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        others = set(sizes) - {1}
        _require(len(others) <= 1)
        found.append(others.pop() if others else 1)
    return tuple(reversed(found))


Rule = Callable[[list[Shape], list[Any], dict[str, Any]], Shape]
"""The output's shape from the inputs' shapes, their known values and the attributes."""


def _require(right: bool) -> None:
    """Refuse a node that no export has, or whose shapes are inconsistent."""
    if not right:
        raise Contradiction("shape")


def _matmul(inputs: list[Shape], numbers: list[Any], attributes: dict[str, Any]) -> Shape:
    left, right = inputs[:2]
    _require(len(left) >= 2 and len(right) >= 2 and left[-1] == right[-2])
    return (*broadcast([left[:-2], right[:-2]]), left[-2], right[-1])


def _conv(inputs: list[Shape], numbers: list[Any], attributes: dict[str, Any]) -> Shape:
    (batch, channels, *sizes), (outputs, depth, *kernel) = inputs[:2]
    strides, pads = attributes.get("strides", [1] * len(sizes)), attributes.get("pads", [0] * 2 * len(sizes))
    _require(not attributes.keys() - {"strides", "pads"} and channels == depth and min(strides) > 0 <= min(pads))
    places = zip(sizes, kernel, strides, pads[: len(sizes)], pads[len(sizes) :], strict=True)
    return (batch, outputs, *((size + low + high - width) // stride + 1 for size, width, stride, low, high in places))


def _reduce(inputs: list[Shape], numbers: list[Any], attributes: dict[str, Any]) -> Shape:
    axes = _axes(numbers[1], len(inputs[0]))
    _require(bool(axes) and attributes == {"keepdims": 1})
    return tuple(1 if axis in axes else size for axis, size in enumerate(inputs[0]))


def _argmax(inputs: list[Shape], numbers: list[Any], attributes: dict[str, Any]) -> Shape:
    axes = _axes([attributes["axis"]], len(inputs[0]))
    _require(attributes["keepdims"] == 0)
    return tuple(size for axis, size in enumerate(inputs[0]) if axis not in axes)


def _reshape(inputs: list[Shape], numbers: list[Any], attributes: dict[str, Any]) -> Shape:
    wanted, count = numbers[1], math.prod(inputs[0])
    if -1 in wanted:
        rest = -math.prod(wanted)
        wanted = [count // rest if size == -1 else size for size in wanted]
    _require(math.prod(wanted) == count > 0)
    return tuple(wanted)


def _shape(inputs: list[Shape], numbers: list[Any], attributes: dict[str, Any]) -> Shape:
    _require(not attributes)
    return (len(inputs[0]),)


def _squeeze(inputs: list[Shape], numbers: list[Any], attributes: dict[str, Any]) -> Shape:
    axes = _axes(numbers[1], len(inputs[0]))
    _require(all(inputs[0][axis] == 1 for axis in axes))
    return tuple(size for axis, size in enumerate(inputs[0]) if axis not in axes)


def _unsqueeze(inputs: list[Shape], numbers: list[Any], attributes: dict[str, Any]) -> Shape:
    rank = len(inputs[0]) + len(numbers[1])
    axes, sizes = _axes(numbers[1], rank), iter(inputs[0])
    return tuple(1 if axis in axes else next(sizes) for axis in range(rank))


def _transpose(inputs: list[Shape], numbers: list[Any], attributes: dict[str, Any]) -> Shape:
    _require(sorted(attributes["perm"]) == list(range(len(inputs[0]))))
    return tuple(inputs[0][axis] for axis in attributes["perm"])


def _flatten(inputs: list[Shape], numbers: list[Any], attributes: dict[str, Any]) -> Shape:
    axis = attributes["axis"]
    return math.prod(inputs[0][:axis]), math.prod(inputs[0][axis:])


def _split(inputs: list[Shape], attributes: dict[str, Any], outputs: int) -> list[Shape]:
    (shape,), (axis,), parts = inputs, _axes([attributes["axis"]], len(inputs[0])), attributes["num_outputs"]
    _require(parts == outputs and shape[axis] % parts == 0)
    return [(*shape[:axis], shape[axis] // parts, *shape[axis + 1 :])] * parts


def _concat(inputs: list[Shape], numbers: list[Any], attributes: dict[str, Any]) -> Shape:
    (axis,) = _axes([attributes["axis"]], len(inputs[0]))
    _require(len({(shape[:axis], shape[axis + 1 :]) for shape in inputs}) == 1)
    return (*inputs[0][:axis], sum(shape[axis] for shape in inputs), *inputs[0][axis + 1 :])


def _slice(inputs: list[Shape], numbers: list[Any], attributes: dict[str, Any]) -> Shape:
    (count,), (_, (start,), (end,)) = inputs[0], numbers
    return (len(range(count)[start:end]),)


def _pad(inputs: list[Shape], numbers: list[Any], attributes: dict[str, Any]) -> Shape:
    rank, (_, pads) = len(inputs[0]), numbers
    _require(min(pads) >= 0 and not attributes)
    return tuple(low + size + high for low, size, high in zip(pads[:rank], inputs[0], pads[rank:], strict=True))


def _one_hot(inputs: list[Shape], numbers: list[Any], attributes: dict[str, Any]) -> Shape:
    (depth,) = numbers[1]
    _require(attributes["axis"] == -1)
    return (*inputs[0], depth)


def _axes(axes: Sequence[int], rank: int) -> list[int]:
    """Non-negative axes."""
    return [range(rank)[axis] for axis in axes]


SAME = {
    "Cast", "Clip", "DequantizeLinear", "Exp", "Gelu", "Identity", "LeakyRelu", "Log", "Neg", "QuantizeLinear", "Relu",
    "Round", "Sigmoid", "Tanh",
}  # fmt: skip
BROADCAST = {"Add", "BitShift", "BitwiseAnd", "BitwiseOr", "Div", "Max", "Min", "Mul", "Sub"}
RULES: dict[str, Rule] = {
    "ArgMax": _argmax,
    "Concat": _concat,
    "Conv": _conv,
    "ConvInteger": _conv,
    "Flatten": _flatten,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "OneHot": _one_hot,
    "Pad": _pad,
    "ReduceMax": _reduce,
    "ReduceMin": _reduce,
    "Reshape": _reshape,
    "Shape": _shape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
OPERATORS = frozenset({"DynamicQuantizeLinear", "Split"} | SAME | BROADCAST | RULES.keys())
"""All operators that `graph.build` writes."""
