"""Files that ask for more than they look like are refused before ONNX Runtime sees them."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from shoal.errors import UserError
from shoal.inference.file import PolicyFile
from shoal.inference.form import Form
from shoal.inference.graph import build
from shoal.inference.options import PRECISIONS
from tests.inference.policies import image_policy, random_policy

LARGE = 3 * 10**9


def bomb(*nodes, **constants):
    """A policy to whose choice the greatest number of an array `huge` is added."""
    model = build(random_policy(), Form())
    model.graph.node[-1].output[0] = "choice"
    constants |= {"first": np.array([0])}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    model.graph.node.extend(nodes)
    model.graph.node.extend(
        [
            node("ReduceMax", "huge", "first", to="flat", keepdims=1),
            node("Cast", "flat", to="whole", type=TensorProto.INT64),
            node("Add", "choice", "whole", to="action"),
        ]
    )
    return model


def node(operation, *inputs, to="huge", type=None, **attributes):
    attributes |= {} if type is None else {"to": type}
    return helper.make_node(operation, inputs, [to], **attributes)


def doubled(times):
    return [node("Concat", f"c{i}", f"c{i}", to=f"c{i + 1}" if i < times - 1 else "huge", axis=0) for i in range(times)]


def multiplied(times):
    return [node("MatMul", "c0", f"c{i}", to=f"c{i + 1}" if i < times - 1 else "huge") for i in range(times)]


def numbers(*shape):
    return np.zeros(shape, np.float32)


def changed(change):
    model = build(random_policy(), Form())
    change(model)
    return model


def outside(model):
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")


BOMBS = {
    "a constant": (
        bomb(node("ConstantOfShape", "n"), n=np.array([LARGE])),
        "it has the operator 'ConstantOfShape'",
    ),
    "an operator of somebody's": (
        changed(lambda model: setattr(model.graph.node[0], "domain", "com.microsoft")),
        "it has the operator 'Transpose'|it has the operator 'MatMul'",
    ),
    "a graph in a node": (
        changed(lambda model: model.graph.node[0].attribute.add(name="body", type=5)),
        "it has a constant or a graph inside",
    ),
    "a product": (bomb(node("MatMul", "a", "b"), a=numbers(60_000, 1), b=numbers(1, 60_000)), "numbers for one state"),
    "a sum": (bomb(node("Add", "a", "b"), a=numbers(60_000, 1), b=numbers(1, 60_000)), "numbers for one state"),
    "doubling": (bomb(*doubled(40), c0=numbers(1)), "numbers for one state"),
    "choices": (
        bomb(node("OneHot", "i", "d", "v", axis=-1), i=np.array([0]), d=np.array([LARGE]), v=numbers(2)),
        "numbers for one state",
    ),
    "a margin": (bomb(node("Pad", "a", "p"), a=numbers(1), p=np.array([0, LARGE])), "numbers for one state"),
    "a margin of images": (
        bomb(node("Conv", "a", "k", pads=[30_000] * 4), a=numbers(1, 1, 9, 9), k=numbers(1, 1, 9, 9)),
        "numbers for one state",
    ),
    "many products": (bomb(*multiplied(100), c0=numbers(800, 800)), "products for one state"),
    "reading again": (
        bomb(*(node("ReduceMax", "a", "first", to=f"r{i}", keepdims=1) for i in range(600)),
             node("Max", *(f"r{i}" for i in range(600))), a=numbers(10**6)),
        "numbers for one state",
    ),
    "nodes": (bomb(*(node("Relu", "a", to=f"r{i}") for i in range(70_000)), node("Relu", "a"), a=numbers(1)), "nodes"),
    "weights elsewhere": (changed(outside), "weights in another file"),
    "a size that is not there": (
        changed(lambda model: model.graph.initializer[0].dims.__setitem__(0, LARGE)),
        "of another size than it declares",
    ),
    "sizes that contradict": (changed(lambda model: model.graph.node.reverse()), "are inconsistent"),
    "functions": (changed(lambda model: model.functions.add(name="f")), "custom functions"),
    "sparse constants": (changed(lambda model: model.graph.sparse_initializer.add()), "sparse constants"),
    "names with line breaks": (
        changed(lambda model: setattr(model.graph.node[0], "op_type", "Mat\nMul")),
        r"it has the operator 'Mat\\nMul'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_decompression_bombs_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr("shoal.inference.file.new_session", lambda *_: pytest.fail("a session was made"))
    model, said = BOMBS[name]
    path = tmp_path / "policy.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=said) as refused:
        PolicyFile(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_exports_stay_far_below_the_limits(tmp_path, monkeypatch, precision):
    monkeypatch.setattr("shoal.inference.untrusted.TIMES", 64)
    monkeypatch.setattr("shoal.inference.untrusted.ANY", 2**18)
    wide = random_policy(hidden=(256, 256))
    image = image_policy()
    for bits in range(2, 8) if precision == "packed" else (8,):
        for policy in (wide, image):
            path = tmp_path / "policy.onnx"
            path.write_bytes(build(policy, Form(precision, bits)).SerializeToString())
            assert PolicyFile(path).precision == precision


def test_policy_that_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "policy.onnx"
    path.write_bytes(build(random_policy(hidden=(256, 256)), Form()).SerializeToString())
    monkeypatch.setattr("shoal.system.memory.free_memory", lambda: 500_000)
    with pytest.raises(UserError, match=r"The policy in '.*' needs .* but only 500 kB of memory is free"):
        PolicyFile(path)
