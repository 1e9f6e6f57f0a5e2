"""The graphs of every form against plain numpy, at every level of ONNX Runtime's optimisation, and what is in them."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest

from shoal.errors import UserError
from shoal.inference import Grid, Head, Quantized
from shoal.inference.correction import calibrated
from shoal.inference.form import Form
from shoal.inference.graph import OPSET, build
from shoal.inference.grid import safe_bits
from shoal.inference.layers import layer_codes
from shoal.inference.options import PRECISIONS
from shoal.inference.runtime import audit, onnxruntime
from tests.inference.policies import few_bits, image_policy, observations, random_policy
from tests.inference.simulated import int8_outputs

LEVELS = onnxruntime.GraphOptimizationLevel
POLICIES = {
    "one agent": random_policy(head="box", squash="none"),
    "a team": random_policy(agents=3, observation=(6, 4, 5), action=(4, 2, 3), head="box", squash="none"),
    "a large team": random_policy(agents=2, hidden=(192, 64), head="box", squash="none"),
    "tanh": random_policy(activation="tanh", normalised=True, head="box", squash="none"),
    "image": replace(image_policy(), head=Head("box", "none")),
    "signed image": replace(image_policy(activation="leaky-relu"), head=Head("box", "none"), scale_image=False),
}

POSITIONS = {"image": (49, 49)}  # that each convolution looks at


def play(policy, form, x, level=LEVELS.ORT_ENABLE_ALL):
    """(B, N, A) of the model in ONNX Runtime."""
    model = build(policy, form)
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rows = x if policy.agents > 1 else x[:, 0]
    rows = rows.reshape(-1, *policy.image) if policy.image else rows
    return session.run(["action"], {"observation": rows})[0].reshape(len(x), policy.agents, -1)


def rounded(policy, bits):
    """The policy with its weights frozen to so many bits."""
    layers = (replace(layer, quantized=Quantized(layer_codes(layer, bits)[1])) for layer in policy.layers)
    return replace(policy, layers=tuple(layers))


@pytest.mark.parametrize("name", POLICIES)
def test_float32_graph_matches_the_policy(name):
    policy = POLICIES[name]
    x = observations(policy)
    expected = policy.reference(x)
    assert np.abs(play(policy, Form(), x) - expected).max() < 1e-5 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("name", POLICIES)
def test_float16_applies_to_weights_only(name):
    policy = POLICIES[name]
    halved = tuple(replace(layer, weight=layer.weight.astype(np.float16).astype(np.float32)) for layer in policy.layers)
    x = observations(policy)
    expected = replace(policy, layers=halved).reference(x)
    assert np.abs(play(policy, Form("float16"), x) - expected).max() < 1e-5 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("bits", range(2, 8))
def test_packed_weights_equal_rounded_weights(name, bits):
    policy = POLICIES[name]
    x = observations(policy, 5)
    expected = rounded(policy, bits).reference(x)
    assert np.abs(play(policy, Form("packed", bits), x) - expected).max() < 1e-5 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("level", [LEVELS.ORT_DISABLE_ALL, LEVELS.ORT_ENABLE_BASIC, LEVELS.ORT_ENABLE_ALL])
@pytest.mark.parametrize("name", ["one agent", "a team", "a large team", "image", "signed image"])
def test_int8_by_rows_at_every_level_of_optimisation(name, level):
    """ONNX Runtime 1.31 fuses a product of scales by rows as if it were one scale: the graph must not let it."""
    policy = POLICIES[name]
    x = observations(policy)
    expected = int8_outputs(policy, x, 7)
    assert np.array_equal(play(policy, Form("int8", 7), x, level), expected)
    alone = np.concatenate([play(policy, Form("int8", 7, alone=True), x[b : b + 1], level) for b in range(4)])
    assert np.array_equal(alone, expected[:4])


@pytest.mark.parametrize("name", ["one agent", "a team", "a large team", "tanh"])
@pytest.mark.parametrize("bits", [8, 7, 4, 2])
def test_static_int8_matches_simulation(name, bits):
    policy = POLICIES[name]
    x = observations(policy)
    frozen = calibrated(policy, x, bits)
    expected = frozen.reference(x, dtype=np.float32)
    wrong = np.abs(play(frozen, Form("static-int8", bits), x) - expected)
    assert np.median(wrong) < 1e-6 and wrong.max() < np.ptp(expected) / 255  # a tie may fall to the next code


@pytest.mark.parametrize("bits", range(2, 9))
def test_static_convolutions_are_within_one_code_of_simulation(bits):
    """Their biases are rounded to multiples of both scales, so a code may be the next one."""
    for seed in range(4):
        policy = replace(image_policy(seed), head=Head("box", "none"))
        x = observations(policy, seed=seed)
        frozen = few_bits(policy, x, bits)
        expected = frozen.reference(x, dtype=np.float32)
        code = np.ptp(expected) / (2**bits - 1)
        wrong = np.abs(play(frozen, Form("static-int8", bits), x) - expected)
        assert wrong.max() < code and wrong.mean() < 0.03 * code


@pytest.mark.parametrize("name", ["one agent", "a team", "image"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bits", range(2, 9))
def test_frozen_ranges_apply_in_every_precision(name, precision, bits):
    """Weights and inputs of few bits, as training leaves them: rounded alike whatever the arithmetic is."""
    if precision == "packed" and bits == 8:
        pytest.skip("packed weights have up to 7 bits")
    x = observations(POLICIES[name])
    frozen = few_bits(POLICIES[name], x, bits)
    expected = frozen.reference(x, dtype=np.float32)
    code = np.ptp(expected) / (2**bits - 1)
    form = Form(precision, min(bits, safe_bits()) if precision == "int8" else bits)
    model = build(frozen, form).SerializeToString()
    assert audit(model, POSITIONS.get(name, ())).share == (1 if "int8" in precision else 0)
    wrong = np.abs(play(frozen, form, x) - expected)
    if precision in ("float16", "int8"):  # weights or inputs are rounded once more, so codes may be the next ones
        assert wrong.max() < 4 * np.ptp(expected) / (2 ** min(bits, form.bits) - 1)
        assert bits > 5 or wrong.mean() < 0.3 * np.abs(POLICIES[name].reference(x) - expected).mean()
    elif name == "image" and (precision == "static-int8" or bits == 8):  # biases or sums differ in their last bits
        assert wrong.max() < code and wrong.mean() < 0.02 * code
    else:
        assert wrong.max() < 1e-5 * np.ptp(expected)


def test_calibration_covers_observed_values():
    policy = POLICIES["tanh"]
    x = observations(policy)
    for layer, seen in zip(calibrated(policy, x, 7).layers, policy.inputs_of_layers(x), strict=True):
        grid = layer.quantized.input
        assert np.abs(grid.round(seen) - seen).max() <= grid.scale.max() / 2 * 1.01
        assert not grid.round(np.zeros_like(seen)).any()


def test_a_grid_always_holds_zero():
    for ends in ([2.0, 4.0], [-4.0, -2.0]):
        grid = Grid.of_numbers(np.float32([[ends]]), 8, keep=(0,))
        assert grid.scale == np.float32(4 / 255) and grid.round(np.float32([[[0.0]]])) == 0


def test_the_share_of_products_in_8_bits():
    for name, share in (("one agent", 1.0), ("a team", 1.0), ("a large team", 1.0), ("tanh", 1.0)):
        policy = POLICIES[name]
        x, products = observations(policy), sum(layer.weight.size for layer in policy.layers)
        frozen = calibrated(policy, x, 7)
        for form, which in (
            (Form("int8", 7), policy),
            (Form("int8", 7, alone=True), policy),
            (Form("static-int8", 7), frozen),
        ):
            counted = audit(build(which, form).SerializeToString())
            assert (counted.share, counted.all) == (share, products)
        for precision in ("float32", "float16", "packed"):
            counted = audit(build(policy, Form(precision, 4)).SerializeToString())
            assert (counted.int8, counted.all) == (0, products)


def test_full_temporary_folder_is_reported(monkeypatch):
    def full(model, options):
        raise RuntimeError("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Protobuf serialization failed.")

    monkeypatch.setattr("shoal.inference.runtime.new_session", full)
    with pytest.raises(UserError, match=r"cannot be checked in the temporary folder .*: Protobuf serialization failed"):
        audit(b"")


def test_share_of_convolution_products_in_8_bits():
    policy, places = POLICIES["image"], (49, 49)
    x = observations(policy)
    products = sum(layer.weight.size * (49 if layer.weight.ndim == 4 else 1) for layer in policy.layers)
    static = audit(build(calibrated(policy, x, 7), Form("static-int8", 7)).SerializeToString(), places)
    dynamic = audit(build(policy, Form("int8", 7)).SerializeToString(), places)
    assert (static.int8, static.all) == (dynamic.int8, dynamic.all) == (products, products)


def test_metadata_of_a_file():
    policy = replace(random_policy(agents=2), metadata={"env": "chess"})
    for precision in PRECISIONS:
        model = build(
            policy if precision != "static-int8" else calibrated(policy, observations(policy), 7), Form(precision, 5)
        )
        (prop,) = model.metadata_props
        facts = json.loads(prop.value)
        assert prop.key == "shoal" and facts["precision"] == precision and facts["env"] == "chess"
        assert facts["agents"] == ["agent_0", "agent_1"] and facts["observation_sizes"] == [6, 6]
        assert [opset.version for opset in model.opset_import] == [OPSET]


def test_sizes_of_files():
    policy = random_policy(hidden=(128, 128))
    sizes = {form: len(build(policy, form).SerializeToString()) / policy.nbytes for form in
             (Form(), Form("float16"), Form("int8", safe_bits()), Form("packed", 4), Form("packed", 2))}  # fmt: skip
    assert [round(size, 1) for size in sizes.values()] == [1.0, 0.5, 0.3, 0.2, 0.1]
