"""A policy as an ONNX graph, built by hand: raw observations in, the environment's actions out, for any batch.

Several agents: observation (B, N, O), action (B, N) or (B, N, A). One agent: no agent axis; images are
(B, C, height, width). A policy that samples its choices takes `noise` (B, N, A) in (0, 1) as a second input.

int8 is dynamic and per row: every state is quantized on its own, so it gets the same action alone and in a batch:

    scale = (max(x, 0) - min(x, 0)) / 255    code = round(x / scale) + zero    zero = round(-min(x, 0) / scale)
    y = (sum of code * weight - zero * sum of weight) * (scale * weight scale) + bias

DynamicQuantizeLinear computes the same for a single row, so graphs for one state (`alone`) use it: ONNX Runtime fuses
it with the product. The results are bit-identical: both multiply the whole sum by the product of the scales.
Agents that share a network are rows of the same products, whose weights are stored once.
Shape letters: B batch rows, N agents, M agents of a network, O observation, A action, I inputs of a layer, U its
outputs.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from shoal.inference.form import (
    ACTION,
    NOISE,
    OBSERVATION,
    Arrays,
    Form,
    Ports,
    apart,
    key,
    single_rows,
    together,
    weight_arrays,
)  # fmt: skip
from shoal.inference.grid import code_range, fields
from shoal.inference.layers import BOUND, LEAK, Activation, Conv2d, Layer, Linear
from shoal.inference.policy import FORMAT, MASKED, Policy

Facts = Mapping[str, Any]
OPSET, IR_VERSION = 21, 10
TINY = np.finfo(np.float32).tiny
MEASURED_ROOM = 192  # characters that the results of a check take in the metadata


class Graph:
    """Nodes and constants, with generated names."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: Arrays = {}
        self._count = 0

    def __call__(self, operation: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; returns the name of its output, or a list of names if it has several."""
        names = [self._name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(operation, inputs, names, name=f"{operation}_{names[0]}", **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, kind: Any = np.float32, name: str | None = None) -> str:
        """Add a constant and return its name; equal constants without a name of their own are shared."""
        array = np.ascontiguousarray(value, kind)
        if name is None:
            for known, other in self.arrays.items():
                if known.startswith("=") and other.dtype == array.dtype and np.array_equal(other, array):
                    return known
            name = f"={self._name()}"
        self.arrays[name] = array.reshape(np.shape(value))
        return name

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count}"


def build(policy: Policy, form: Form) -> onnx.ModelProto:
    """The model of a policy."""
    policy = policy.played()
    graph = Graph()
    ports, batch = Ports.of(policy), 1 if form.alone else "batch"
    inputs = [_value(name, TensorProto.FLOAT, (batch, *shape)) for name, shape in ports.inputs.items()]
    x = _observe(graph, policy, OBSERVATION)
    x = _network(graph, policy, form, x)
    _head(graph, policy, x)
    graph.nodes[-1].output[0] = ACTION
    kind = TensorProto.INT64 if ports.discrete else TensorProto.FLOAT
    outputs = [_value(ACTION, kind, (batch, *ports.output))]
    stored = graph.arrays
    if form.given:
        given = {name for name in stored if name.startswith("layer")}
        inputs += [_value(name, TensorProto.FLOAT, stored[name].shape) for name in stored if name in given]
        stored = {name: array for name, array in stored.items() if name not in given}
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    model = helper.make_model(
        helper.make_graph(graph.nodes, "policy", inputs, outputs, tensors),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="shoal",
    )
    set_facts(model, policy, form, {}, {})
    return model


def set_facts(model: onnx.ModelProto, policy: Policy, form: Form, facts: Facts, measured: Facts) -> None:
    """Write the policy's metadata and these facts into the model.

    What was `measured` takes the same room whatever its values, filled up with blanks, so that a file's size can be
    predicted without its check.
    """
    known = describe(policy, form) | dict(facts)
    text = json.dumps(known | dict(measured)).ljust(len(json.dumps(known)) + MEASURED_ROOM)
    helper.set_model_props(model, {"shoal": text})


def describe(policy: Policy, form: Form) -> dict[str, Any]:
    """What a reader of the file needs to know beyond the graph."""
    return {
        "format": FORMAT,
        "precision": form.precision,
        "bits": form.stored_bits,
        "frozen_bits": max((layer.quantized.bits for layer in policy.layers if layer.quantized), default=None),
        "batch": 1 if form.alone else None,
        "agents": list(policy.agent_names),
        "observation_sizes": list(policy.observation_sizes),
        "action_sizes": list(policy.action_sizes),
        "discrete": policy.head.discrete,
        "head": policy.head.kind,
        "squash": policy.head.squash,
        "normalised": policy.normaliser is not None,
        "one_hot": policy.one_hot,
        "image": policy.image,
        "layers": [layer.outputs for layer in policy.layers],
        "parameters": policy.parameters,
        **({"network_of": list(policy.network_of)} if policy.network_of else {}),
        **policy.metadata,
    }


def _value(name: str, kind: int, shape: tuple[int | str, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _observe(graph: Graph, policy: Policy, x: str) -> str:
    """The raw observation as the first layer takes it."""
    if policy.one_hot:
        whole = graph("Cast", graph("Round", x), to=TensorProto.INT64)
        whole = graph("Squeeze", whole, graph.constant([-1], np.int64))
        return graph("OneHot", whole, graph.constant(policy.one_hot, np.int64), graph.constant([0, 1]), axis=-1)
    if policy.scale_image:
        x = graph("Div", x, graph.constant(255))
    if (norm := policy.normaliser) is not None:
        shape = policy.image or (norm.mean.shape if policy.agents > 1 else norm.mean.shape[1:])
        x = graph("Sub", x, graph.constant(norm.mean.reshape(shape), name="mean"))
        x = graph("Div", x, graph.constant(norm.deviation.astype(np.float32).reshape(shape), name="deviation"))
        x = graph("Clip", x, graph.constant(-norm.clip), graph.constant(norm.clip))
    return x


def _network(graph: Graph, policy: Policy, form: Form, x: str) -> str:
    """(B, …) to (B, U) of one agent, (B, N, U) of several."""
    for name, array in weight_arrays(policy, form).items():
        graph.constant(array, array.dtype, name)
    if not apart(policy, form):
        x = _chain(graph, policy, form, graph("Transpose", x, perm=[1, 0, 2]), None)
        return str(graph("Transpose", x, perm=[1, 0, 2]))
    if policy.agents == 1:
        return _chain(graph, policy, form, x, 0)
    if len(policy.members) == 1:
        return _of_members(graph, policy, form, x, 0)
    parts = graph("Split", x, outputs=policy.agents, axis=1, num_outputs=policy.agents)
    ends = [""] * policy.agents
    axis = graph.constant([1], np.int64)
    for network, agents in enumerate(policy.members):
        if len(agents) == 1:
            row = _chain(graph, policy, form, graph("Squeeze", parts[agents[0]], axis), network)
            own = [graph("Unsqueeze", row, axis)]
        else:
            rows = _of_members(graph, policy, form, graph("Concat", *(parts[i] for i in agents), axis=1), network)
            own = graph("Split", rows, outputs=len(agents), axis=1, num_outputs=len(agents))
        for agent, end in zip(agents, own, strict=True):
            ends[agent] = end
    return str(graph("Concat", *ends, axis=1))


def _of_members(graph: Graph, policy: Policy, form: Form, x: str, network: int) -> str:
    """(B, M, I) to (B, M, U): one product for the rows of all agents that share a network."""
    seen, members, outputs = policy.layers[0].weight.shape[1], len(policy.members[network]), policy.layers[-1].outputs
    x = _chain(graph, policy, form, graph("Reshape", x, graph.constant([-1, seen], np.int64)), network)
    return str(graph("Reshape", x, graph.constant([-1, members, outputs], np.int64)))


def _chain(graph: Graph, policy: Policy, form: Form, x: str, network: int | None) -> str:
    """All layers: (B, I) of one network, or (N, B, I) of all where `network` is None."""
    form = replace(form, alone=single_rows(policy, form))
    positive = bool(policy.one_hot) or (policy.scale_image and policy.normaliser is None)
    image = policy.image is not None
    for k, layer in enumerate(policy.layers):
        x = _on_grid(graph, layer, form, x, network)
        if isinstance(layer, Linear) and image:
            x, image = graph("Flatten", x, axis=1), False
            if form.precision == "static-int8":  # rounding twice changes nothing; both neighbours run in 8 bits
                x = _on_grid(graph, layer, form, x, network)
        x = _layer(graph, layer, form, x, k, network, positive)
        x = _activate(graph, x, layer.activation)
        positive = layer.activation in ("relu", "sigmoid")
    return x


def _layer(graph: Graph, layer: Layer, form: Form, x: str, k: int, network: int | None, positive: bool) -> str:
    """One layer without its activation."""
    weight, bias, scale = (key(k, name, network) for name in ("weight", "bias", "scale"))
    linear, sums = isinstance(layer, Linear), key(k, "sums", network)
    if form.precision == "int8":
        if isinstance(layer, Conv2d):
            return _images(graph, layer, x, weight, scale, bias, sums, positive)
        if form.alone:  # in the pattern that ONNX Runtime fuses into one kernel
            codes, x_scale, zero = graph("DynamicQuantizeLinear", x, outputs=3)
            whole = graph("Cast", graph("MatMulInteger", codes, weight, zero), to=TensorProto.FLOAT)
            return str(graph("Add", graph("Mul", whole, graph("Mul", x_scale, scale)), bias))
        return _rows(graph, x, layer.weight.shape[1], weight, scale, bias, sums, network is None, positive)
    if form.precision == "static-int8":
        weight = graph("DequantizeLinear", weight, scale, key(k, "zero", network), axis=1 if linear else 0)
    elif form.precision == "float16":
        weight = graph("Cast", weight, to=TensorProto.FLOAT)
    elif form.precision == "packed":
        weight = _unpack(graph, layer, form.bits, k, network)
    if linear and form.precision == "static-int8":
        # Not Add: ONNX Runtime would round the bias to a multiple of both scales, which is coarse at low precision, or
        # fuse both into one float32 node where the output is not on a grid.
        return str(graph("Sub", graph("MatMul", x, weight), graph("Neg", bias)))
    if linear:
        return str(graph("Add", graph("MatMul", x, weight), bias))
    assert isinstance(layer, Conv2d)
    (ph, pw), stride = layer.padding, list(layer.stride)
    return str(graph("Conv", x, weight, bias, strides=stride, pads=[ph, pw, ph, pw]))


def _codes(graph: Graph, x: str, rows: str, sums: str, positive: bool) -> tuple[str, str, str]:
    """The codes of x (…, B, I), whose `rows` are (R, I), their scales (…, B, 1) and zero points, "" if all are 0."""
    axis = flat = graph.constant([-1], np.int64)
    extent = graph("ReduceMax", x, axis, keepdims=1)  # (…, B, 1)
    if positive:
        graph.arrays.pop(sums)
        row_scale = graph("Max", graph("Div", extent, graph.constant(255.0)), graph.constant(TINY))
        return graph("QuantizeLinear", rows, graph("Reshape", row_scale, flat), axis=0), row_scale, ""
    nothing = graph.constant(0.0)
    lowest = graph("Min", graph("ReduceMin", x, axis, keepdims=1), nothing)
    extent = graph("Sub", graph("Max", extent, nothing), lowest)
    row_scale = graph("Max", graph("Div", extent, graph.constant(255.0)), graph.constant(TINY))
    zero = graph("Cast", graph("Round", graph("Neg", graph("Div", lowest, row_scale))), to=TensorProto.UINT8)
    points = graph("Reshape", row_scale, flat), graph("Reshape", zero, flat)
    return graph("QuantizeLinear", rows, *points, axis=0), row_scale, zero


def _rows(
    graph: Graph, x: str, size: int, weight: str, scale: str, bias: str, sums: str, stacked: bool, positive: bool
) -> str:
    """The int8 product of many rows, each with its own scale."""
    rows = graph("Reshape", x, graph.constant([-1, size], np.int64)) if stacked else x
    codes, row_scale, zero = _codes(graph, x, rows, sums, positive)
    if stacked:
        codes = graph("Reshape", codes, graph("Shape", x))
    whole = graph("MatMulInteger", codes, weight)
    if zero:
        whole = graph("Sub", whole, graph("Mul", graph("Cast", zero, to=TensorProto.INT32), sums))
    whole = graph("Cast", whole, to=TensorProto.FLOAT)
    # MatMul, not Mul: ONNX Runtime 1.31 mistakes Mul for a single scale for all rows and computes wrong results.
    wide = scale if stacked else graph("Unsqueeze", scale, graph.constant([0], np.int64))
    both = graph("MatMul", row_scale, wide)
    return str(graph("Add", graph("Mul", whole, both), bias))


def _images(graph: Graph, layer: Conv2d, x: str, weight: str, scale: str, bias: str, sums: str, positive: bool) -> str:
    """The int8 convolution of many images (B, C, height, width), each with its own scale."""
    if any(layer.padding):  # padded before quantizing: zero points differ between images
        x = graph("Pad", x, graph.constant([0, 0, *layer.padding] * 2, np.int64))
    flat = graph("Flatten", x, axis=1)
    codes, row_scale, zero = _codes(graph, flat, flat, sums, positive)
    codes = graph("Reshape", codes, graph("Shape", x))
    whole = graph("ConvInteger", codes, weight, strides=list(layer.stride))
    images, channels = graph.constant([-1, 1, 1, 1], np.int64), graph.constant([-1, 1, 1], np.int64)
    scale, bias = (graph("Reshape", name, channels) for name in (scale, bias))
    if zero:
        zero = graph("Reshape", graph("Cast", zero, to=TensorProto.INT32), images)
        whole = graph("Sub", whole, graph("Mul", zero, graph("Reshape", sums, channels)))
    both = graph("Mul", graph("Reshape", row_scale, images), scale)
    return str(graph("Add", graph("Mul", graph("Cast", whole, to=TensorProto.FLOAT), both), bias))


def _on_grid(graph: Graph, layer: Layer, form: Form, x: str, network: int | None) -> str:
    """x rounded to the layer's frozen grid, if it has one: (B, …) of one network, or (N, B, I) where `network` is None.

    Only where products run in 8 bits on codes: between such nodes ONNX Runtime would quantize float32 weights itself.
    """
    frozen = layer.quantized
    if frozen is None or frozen.input is None:
        return x
    grid = frozen.input
    scale, zero, highest = grid.scale[:, 0, 0], grid.zero_point[:, 0, 0], grid.highest  # (N,)
    if form.precision == "static-int8":  # which has a separate chain of layers per network
        point = graph.constant(scale[network]), graph.constant(zero[network], np.uint8)
        codes = graph("QuantizeLinear", x, *point)
        if grid.bits < 8:  # the type's range exceeds the codes'
            codes = graph("Clip", codes, graph.constant(0, np.uint8), graph.constant(highest, np.uint8))
            if isinstance(layer, Conv2d):
                finer = 8 - grid.bits
                codes = graph("BitShift", codes, graph.constant(finer, np.uint8), direction="LEFT")
                point = graph.constant(scale[network] / 2**finer), graph.constant(zero[network] << finer, np.uint8)
        return str(graph("DequantizeLinear", codes, *point))
    index = (slice(None), None, None) if network is None else network
    step, lowest, most = (graph.constant(part[index]) for part in (scale, -zero, highest - zero))
    steps = graph("Round", graph("Div", x, step))
    return str(graph("Mul", graph("Max", graph("Min", steps, most), lowest), step))


def _unpack(graph: Graph, layer: Layer, bits: int, k: int, network: int | None) -> str:
    """Unpack the weights' codes; ONNX Runtime folds all of this when the file is loaded."""
    codes, below = "", bits
    shape = layer.weight.shape
    for i, width in enumerate(fields(bits)):
        below -= width
        column = graph(
            "Unsqueeze", key(k, f"packed{i}", None if together(layer) else network), graph.constant([1], np.int64)
        )
        shifts = graph.constant(np.arange(0, 8, width), np.uint8)
        part = graph("BitShift", column, shifts, direction="RIGHT")
        part = graph("BitwiseAnd", part, graph.constant(2**width - 1, np.uint8))
        part = graph("Reshape", part, graph.constant([-1], np.int64))
        part = graph("Slice", part, graph.constant([0], np.int64), graph.constant([layer.weight.size], np.int64))
        if below:
            part = graph("BitShift", part, graph.constant(below, np.uint8), direction="LEFT")
        codes = graph("BitwiseOr", codes, part) if codes else part
    if network is not None and together(layer):
        codes = graph("Reshape", codes, graph.constant(shape, np.int64))
        codes = graph("Split", codes, outputs=len(layer.weight), axis=0, num_outputs=len(layer.weight))[network]
    if isinstance(layer, Linear) and network is not None:
        shape = shape[1:]
    weight = graph("Cast", graph("Reshape", codes, graph.constant(shape, np.int64)), to=TensorProto.FLOAT)
    weight = graph("Sub", weight, graph.constant(code_range(bits, "symmetric")[1]))
    scale = key(k, "scale", network)
    if isinstance(layer, Conv2d):
        scale = graph("Reshape", scale, graph.constant([-1, 1, 1, 1], np.int64))
    return str(graph("Mul", weight, scale))


def _activate(graph: Graph, x: str, activation: Activation) -> str:
    if activation == "none":
        return x
    if activation == "leaky-relu":
        return str(graph("LeakyRelu", x, alpha=LEAK))
    if activation == "elu":  # ONNX Runtime's Elu may differ in the last bit depending on the position in the array
        nothing, one = graph.constant(0.0), graph.constant(1.0)
        below = graph("Sub", graph("Exp", graph("Min", x, nothing)), one)
        return str(graph("Add", graph("Max", x, nothing), below))
    if activation == "clip-2":
        return str(graph("Clip", x, graph.constant(-BOUND), graph.constant(BOUND)))
    if activation in ("gelu", "gelu-tanh"):
        return str(graph("Gelu", x, approximate="tanh" if activation == "gelu-tanh" else "none"))
    if activation == "silu":  # Sigmoid is less accurate
        return str(graph("Div", x, graph("Add", graph("Exp", graph("Neg", x)), graph.constant(1.0))))
    if activation == "mish":  # ONNX Runtime's Mish may differ in the last bit depending on the position in the array
        exp, two = graph("Exp", graph("Min", x, graph.constant(20.0))), graph.constant(2.0)
        n = graph("Mul", exp, graph("Add", exp, two))  # tanh(log(1 + exp)) = n / (n + 2)
        return str(graph("Mul", x, graph("Div", n, graph("Add", n, two))))
    return str(graph({"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}[activation], x))


def _head(graph: Graph, policy: Policy, x: str) -> str:
    """The environment's action."""
    head, one = policy.head, policy.agents == 1
    if head.discrete:
        if policy.masked:
            part = (graph.constant([number], np.int64) for number in (0, policy.action_size, -1))
            full = graph.constant(1.0)
            forbidden = graph("Sub", full, graph("Min", graph("Slice", OBSERVATION, *part), full))
            x = graph("Add", x, graph("Mul", forbidden, graph.constant(MASKED)))
        if policy.padded:
            x = graph("Add", x, graph.constant(policy.mask, name="mask"))
        if head.kind == "categorical":
            x = graph("Sub", x, graph("Log", graph("Neg", graph("Log", NOISE))))
        return str(graph("ArgMax", x, axis=-1, keepdims=0))
    if head.squash == "none":
        return str(graph("Identity", x))
    assert head.low is not None and head.high is not None
    low, high = (end[0] if one else end for end in (head.low, head.high))
    if head.squash == "clip":
        return str(graph("Min", graph("Max", x, graph.constant(low)), graph.constant(high)))
    x = graph("Mul", graph("Tanh", x), graph.constant((high - low) / 2))
    return str(graph("Add", x, graph.constant((high + low) / 2)))
