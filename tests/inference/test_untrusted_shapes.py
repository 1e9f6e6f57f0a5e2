"""Shapes worked out by hand against onnx's own inference, in every form of every kind of policy."""

from dataclasses import replace

import pytest
from onnx import TensorProto, helper, shape_inference

from shoal.inference import Head
from shoal.inference.form import Form
from shoal.inference.graph import build
from shoal.inference.layers import ACTIVATIONS
from shoal.inference.options import PRECISIONS
from shoal.inference.untrusted import OPERATORS, Contradiction, inferred
from tests.inference.policies import few_bits, image_policy, observations, random_policy

POLICIES = [
    *(random_policy(activation=activation) for activation in ACTIVATIONS),
    random_policy(agents=3, observation=(6, 4, 5), action=(4, 2, 3)),
    random_policy(agents=2, hidden=(192, 256), head="gaussian", normalised=True),
    random_policy(head="box", squash="clip"),
    random_policy(head="box", squash="none"),
    random_policy(head="categorical"),
    random_policy(one_hot=5),
    image_policy(),
    replace(image_policy(activation="leaky-relu"), head=Head("box", "none"), scale_image=False),
]


def models():
    for policy in POLICIES:
        for form in (Form(kind, 3 if kind == "packed" else 8, single) for kind in PRECISIONS for single in (0, 1)):
            yield build(policy, form)
            yield build(few_bits(policy, observations(policy, 5)), form)


def of_one_state(model):
    """As onnx finds them, the batch set to 1."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    graph = shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True).graph
    values = (*graph.input, *graph.output, *graph.value_info)
    shapes = {value.name: tuple(size.dim_value for size in value.type.tensor_type.shape.dim) for value in values}
    return shapes | {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}


def test_shapes_match_onnx_for_every_operator():
    written = set()
    for model in models():
        assert inferred(model.graph) == of_one_state(model)
        written |= {node.op_type for node in model.graph.node}
    assert written == OPERATORS


def graph(*nodes, **constants):
    """Nodes behind an input x (B, 6)."""
    tensors = [helper.make_tensor(name, TensorProto.INT64, [len(value)], value) for name, value in constants.items()]
    for tensor in tensors:
        tensor.raw_data = b"".join(value.to_bytes(8, "little", signed=True) for value in tensor.int64_data)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])
    return helper.make_graph(nodes, "g", [x], [], tensors)


def node(operation, *inputs, outputs=("y",), **attributes):
    return helper.make_node(operation, inputs, outputs, **attributes)


@pytest.mark.parametrize(
    "wrong",
    [
        graph(node("Add", "x", "nobody")),
        graph(node("Relu", "x", outputs=("x",))),
        graph(node("Relu", "x", outputs=("y", "z"))),
        graph(node("Reshape", "x", "n"), n=[4]),
        graph(node("Reshape", "x", "n"), n=[0, 6]),
        graph(node("Reshape", "x", "n"), n=[0, -1]),
        graph(node("Reshape", "x", "n"), n=[-1, -6]),
        graph(node("Reshape", "x", "x")),
        graph(node("Concat", "x", "n", axis=0), n=[6]),
        graph(node("MatMul", "x", "n"), n=[6]),
        graph(node("MatMul", "x", "x")),
        graph(node("Add", "x", "n"), n=[1, 2]),
        graph(node("Transpose", "x", perm=[0, 0])),
        graph(node("Split", "x", outputs=("y", "z"), axis=0, num_outputs=2)),
        graph(node("ReduceMax", "x", "n"), n=[1]),
        graph(node("ReduceMax", "x", "n", keepdims=0), n=[1]),
        graph(node("Squeeze", "x", "n"), n=[1]),
        graph(node("Squeeze", "x", "n"), n=[7]),
        graph(node("Shape", "x", start=1)),
        graph(node("Pad", "x", "n"), n=[0, -1, 0, 0]),
        graph(node("OneHot", "x", "n", "x", axis=0), n=[3]),
        graph(node("Unsqueeze", "x", "n"), n=list(range(2, 12))),
    ],
    ids=str,
)
def test_inconsistent_graphs_are_refused(wrong):
    with pytest.raises(Contradiction):
        inferred(wrong)
