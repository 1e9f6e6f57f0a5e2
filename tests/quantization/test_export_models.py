"""Exports of Stable-Baselines3 models: the same actions as in their own library."""

import json

import gymnasium
import numpy as np
import pytest

from shoal.inference.file import PolicyFile
from shoal.inference.runtime import onnxruntime
from shoal.policies.baselines_model import read_zip
from tests.policies.zips import Pictures, make, playing, saved
from tests.quantization.teams import export_policy


@pytest.mark.parametrize(
    ("algorithm", "env", "precision"),
    [
        ("ppo", "CartPole-v1", "int8"),
        ("dqn", "CartPole-v1", "static-int8"),
        ("a2c", "Pendulum-v1", "float16"),
        ("ddpg", "Pendulum-v1", "packed"),
        ("td3", "Pendulum-v1", "float16"),
        ("sac", "Pendulum-v1", "int8"),
    ],
)
def test_exported_model_plays_as_in_stable_baselines(tmp_path, shoal, algorithm, env, precision):
    model, path = make(algorithm, env), tmp_path / "policy.onnx"
    zip_path = saved(model, tmp_path / "model.zip")
    bits = ["--bits", 7] if precision == "packed" else []
    code, out, err = shoal("export", zip_path, "--env", env, "--precision", precision, "--out", path, *bits, "--json")
    assert code == 0, err
    space = model.observation_space
    low, high = np.maximum(space.low, -2), np.minimum(space.high, 2)
    seen = np.random.default_rng(0).uniform(low, high, (200, *space.shape)).astype(np.float32)
    theirs, _ = model.predict(seen, deterministic=True)
    ours = PolicyFile(path).act(seen[:, None])[:, 0]
    if algorithm in ("ppo", "dqn"):
        assert (ours == theirs).mean() > 0.95
    else:
        assert np.abs(ours - theirs).mean() < (0.002 if precision == "float16" else 0.04) * 4  # the box is 4 wide
    code, out, err = shoal("evaluate", path, "--env", env, "--episodes", 2, "--json")
    assert code == 0 and json.loads(out)["env"] == f"gym:{env}", err


@pytest.mark.parametrize("precision", ["float32", "int8", "static-int8"])
def test_integer_observations_are_passed_unchanged(tmp_path, shoal, precision):
    model, path = make("ppo", "FrozenLake-v1"), tmp_path / "policy.onnx"
    zip_path = saved(model, tmp_path / "model.zip")
    code, _, err = shoal("export", zip_path, "--env", "FrozenLake-v1", "--precision", precision, "--out", path)
    assert code == 0, err
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (squares,) = session.run(["action"], {"observation": np.arange(16, dtype=np.float32)[:, None]})
    theirs = [int(model.predict(np.array(square), deterministic=True)[0]) for square in range(16)]
    assert (squares == theirs).mean() >= (1 if precision == "float32" else 0.8)
    code, out, err = shoal("evaluate", path, "--episodes", 20, "--json")
    assert code == 0 and 0 <= json.loads(out)["return_mean"] <= 1, err


@pytest.mark.parametrize("bits", [2, 4, 7, 8])
def test_image_model_trained_quantized(tmp_path, bits):
    from shoal.quantization import QatCallback

    model = make("dqn", Pictures(), "CnnPolicy", policy_kwargs={}, learning_starts=8, buffer_size=64)
    model.learn(40, callback=QatCallback(bits=bits, delay=0.2))
    subject = playing(read_zip(saved(model, tmp_path / "m.zip")), "tests.policies.zips:TinyPictures-v0")
    x = np.random.default_rng(0).integers(0, 256, (100, 1, 36 * 36)).astype(np.float32)
    for precision in ("float32", "static-int8"):
        found = export_policy(subject.portable(), tmp_path / "p.onnx", precision, x, subject.outputs(x).numpy())
        assert found.int8_share == (1 if precision == "static-int8" else 0) and found.agreement > 0.9


def test_image_model(tmp_path, shoal):
    gymnasium.register("ShoalExportPictures-v0", Pictures)
    try:
        env = gymnasium.make("ShoalExportPictures-v0")
        model, path = make("dqn", env, "CnnPolicy", policy_kwargs={}), tmp_path / "policy.onnx"
        zip_path = saved(model, tmp_path / "model.zip")
        words = ["--env", "ShoalExportPictures-v0", "--out", path, "--json"]
        code, out, err = shoal("export", zip_path, "--precision", "static-int8", *words)
        assert code == 0, err
        assert json.loads(out)["files"][0]["int8_share"] == 1.0
        seen = np.random.default_rng(0).integers(0, 256, (50, 1, 36, 36), np.uint8)
        theirs, _ = model.predict(seen, deterministic=True)
        ours = PolicyFile(path).act(seen.reshape(50, 1, -1).astype(np.float32))[:, 0]
        assert (ours == theirs).mean() > 0.8
        code, out, err = shoal("evaluate", path, "--episodes", 3, "--json")
        assert code == 0 and 0 <= json.loads(out)["return_mean"] <= 4, err
        code, _, err = shoal("evaluate", path, "--episode-length", 3)
        assert code == 2 and "--episode-length has no effect" in err
        code, out, err = shoal("export", zip_path, "--precision", "int8", *words)
        assert code == 0 and json.loads(out)["files"][0]["int8_share"] == 1.0 and "static-int8 is faster" in err
    finally:
        gymnasium.registry.pop("ShoalExportPictures-v0")


def test_wrong_zips_and_options_are_refused(tmp_path, run, shoal):
    path = tmp_path / "policy.onnx"
    zip_path = saved(make("ppo", "CartPole-v1"), tmp_path / "model.zip")
    dqn_path = saved(make("dqn", "CartPole-v1"), tmp_path / "dqn.zip")
    for words, said in (
        ((zip_path, "--out", path), "--env is missing"),
        ((zip_path, "--env", "Pendulum-v1", "--out", path), "does not fit"),
        ((run, "--env", "gym:CartPole-v1", "--out", path), "does not fit the run"),
        ((dqn_path, "--env", "CartPole-v1", "--sample", "--out", path), "A2C and PPO"),
        ((zip_path, "--env", "CartPole-v1", "--each", "--out", path), "is a single agent"),
    ):
        code, _, err = shoal("export", *words)
        assert code == 2 and said in err and not path.exists()
    assert shoal("export", zip_path, "--env", "CartPole-v1", "--sample", "--out", path)[0] == 0
