"""Files that are policies, and files that are not."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from shoal.envs.base import EnvSpec
from shoal.errors import UserError
from shoal.inference.file import PolicyFile
from shoal.inference.form import Form
from shoal.inference.graph import build
from shoal.system.files import write_whole
from tests.inference.policies import image_policy, observations, random_policy


def written(tmp_path, policy, form=Form(), **facts):  # noqa: B008
    path = tmp_path / "policy.onnx"
    write_whole(path, build(replace(policy, metadata=facts), form).SerializeToString())
    return path


@pytest.mark.parametrize(
    "policy",
    [
        random_policy(),
        random_policy(agents=3, observation=(6, 4, 5), action=(4, 2, 3)),
        random_policy(agents=2, head="gaussian", normalised=True),
        random_policy(head="categorical"),
        random_policy(one_hot=5),
        image_policy(),
    ],
)
@pytest.mark.parametrize("single", [False, True])
def test_a_file_acts_as_its_policy(tmp_path, policy, single):
    x = observations(policy, 9)
    noise = np.random.default_rng(0).random((9, policy.agents, policy.action_size)).astype(np.float32)
    file = PolicyFile(written(tmp_path, policy, Form(alone=single)))
    assert np.allclose(file.act(x, noise), policy.reference(x, noise), atol=1e-5)
    assert (file.agents, file.observation_size, file.action_size) == (
        policy.agents, policy.observation_size, policy.action_size)  # fmt: skip


def test_choices_for_worlds(tmp_path):
    policy = random_policy(one_hot=5)
    seen = np.eye(5, dtype=np.float32)[[3, 1]][:, None]  # as worlds hand whole numbers out
    played = PolicyFile(written(tmp_path, policy)).play(seen)
    expected = policy.reference(np.float32([[[3]], [[1]]]))
    assert played.shape == (2, 1, 4) and np.array_equal(played.argmax(-1), expected) and played.sum() == 2


def test_file_draws_its_own_noise(tmp_path):
    policy = random_policy(head="categorical")
    last = replace(policy.layers[-1], weight=0 * policy.layers[-1].weight, bias=0 * policy.layers[-1].bias)
    file = PolicyFile(written(tmp_path, replace(policy, layers=(*policy.layers[:-1], last))))
    assert np.bincount(file.act(np.zeros((400, 1, 6), np.float32))[:, 0], minlength=4).min() > 60


def other_model():
    node = helper.make_node("Relu", ["x"], ["y"])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def with_props(model, text):
    helper.set_model_props(model, {"shoal": text})
    return model.SerializeToString()


def facts(**changes):
    model = build(random_policy(), Form())
    held = json.loads(model.metadata_props[0].value) | changes
    return with_props(model, json.dumps({name: value for name, value in held.items() if value is not None}))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not an ONNX file or is damaged"),
        (b"PK\x03\x04 a zip", "is not an ONNX file or is damaged"),
        (build(random_policy(), Form()).SerializeToString()[:900], "is not an ONNX file or is damaged"),
        (other_model().SerializeToString(), "is an ONNX model, but not a policy that `shoal export` wrote"),
        (with_props(other_model(), "{"), "is damaged"),
        (with_props(other_model(), "[]"), "is damaged"),
        (facts(agents=None), "is damaged"),
        (facts(observation_sizes=[0]), "is damaged"),
        (facts(action_sizes=[4, 4]), "is damaged"),
        (facts(format=99), "has format 99, but this version of Shoal reads format 1"),
        (facts(head="categorical"), "its inputs and outputs do not match"),
        (facts(observation_sizes=[7]), "its inputs and outputs do not match"),
        (facts(discrete=False), "its inputs and outputs do not match"),
        (facts(image=True), "is damaged"),
        (facts(image=[1, 2, 4]), "is damaged"),
        (facts(one_hot=[1]), "is damaged"),
        (facts(precision="?").replace(b"?", b"\xff"), "is damaged"),
    ],
)
def test_non_policy_files_are_refused(tmp_path, content, said):
    path = tmp_path / "wrong.onnx"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said) as refused:
        PolicyFile(path)
    assert "\n" not in str(refused.value)


def test_unplayable_file_is_refused(tmp_path, capfd):
    model = build(random_policy(), Form())
    size = helper.make_tensor("size", TensorProto.INT64, [2], [2**21, 2**21])  # more than any memory
    model.graph.initializer.append(size)
    last = model.graph.node[-1]
    model.graph.node.extend(
        [
            helper.make_node("ConstantOfShape", ["size"], ["huge"]),
            helper.make_node("ReduceSum", ["huge"], ["sum"], keepdims=0),
            helper.make_node("Cast", ["sum"], ["whole"], to=TensorProto.INT64),
            helper.make_node("Add", ["choice", "whole"], ["action"]),
        ]
    )
    last.output[0] = "choice"
    path = tmp_path / "policy.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match="cannot be run") as refused:
        PolicyFile(path, trusted=True).act(np.zeros((1, 1, 6), np.float32))
    assert "\n" not in str(refused.value) and capfd.readouterr() == ("", "")


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        PolicyFile(tmp_path / "none.onnx")
    with pytest.raises(UserError, match="Is a directory"):
        PolicyFile(tmp_path)
    (tmp_path / "endless.onnx").symlink_to("/dev/zero")
    with pytest.raises(UserError, match="is not a regular file"):
        PolicyFile(tmp_path / "endless.onnx")
    with (tmp_path / "large.onnx").open("wb") as file:
        file.truncate(3 * 10**12)  # and empty on the disk
    with pytest.raises(UserError, match="has 3 TB, but an ONNX file has at most 2 GiB"):
        PolicyFile(tmp_path / "large.onnx")


def test_non_text_names_are_refused(tmp_path):
    path = tmp_path / "policy.onnx"
    path.write_bytes(build(random_policy(), Form()).SerializeToString().replace(b"\x05batch", b"\x05\xffatch"))
    with pytest.raises(UserError, match="its inputs and outputs do not match"):
        PolicyFile(path)


def spec(agents=1, seen=6, acted=4, discrete=True):
    names = tuple(f"agent_{n}" for n in range(agents))
    return EnvSpec("chess", names, (seen,) * agents, (acted,) * agents, discrete)


@pytest.mark.parametrize(
    ("world", "said"),
    [
        (spec(agents=2), r"for 1 agent \(agent_0\), but chess has 2"),
        (spec(seen=7), "observations of 6 numbers, but those of chess have 7"),
        (spec(acted=5), "actions of 4 numbers, but those of chess have 5"),
        (spec(discrete=False), "for choices, but the actions of chess are boxes"),
    ],
)
def test_incompatible_worlds_are_refused(tmp_path, world, said):
    file = PolicyFile(written(tmp_path, random_policy()))
    file.check_fits(spec())
    with pytest.raises(UserError, match=said):
        file.check_fits(world)


def test_writing_is_atomic(tmp_path):
    path = tmp_path / "policy.onnx"
    path.write_bytes(b"old")
    write_whole(path, build(random_policy(), Form()).SerializeToString())
    onnx.checker.check_model(onnx.load(path))
    assert [found.name for found in tmp_path.iterdir()] == ["policy.onnx"]
    with pytest.raises(UserError, match=r"Cannot write the policy .*none/policy.onnx: No such file"):
        write_whole(tmp_path / "none" / "policy.onnx", b"", "the policy")
