"""Relative paths are those of the working directory that a command was started in, wherever an environment goes."""

import os
from pathlib import Path

import pytest

from shoal import TrainConfig, load, train
from tests.cli.helpers import QUIET, strict

WORLD = ["--env", "gym:tests.envs.own_worlds:Wanderer"]


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Begin in a folder of its own before each command."""
    monkeypatch.chdir(tmp_path)

    def begin():
        os.chdir(tmp_path)
        return tmp_path

    return begin


@pytest.mark.slow
def test_every_command(shoal, start):
    words = [*WORLD, *QUIET, "--checkpoint-every", "10", "--evaluate-every", "20", "--snapshots", "2", "--out", "run"]
    assert shoal("train", *words, "--no-quiet")[0] == 0 and Path.cwd() == Path("/")
    run = start() / "run"
    assert {"curve.png", "result.json", "snapshots"} <= {path.name for path in run.iterdir()}
    code, out, err = shoal("train", "--resume", "run", "--episodes", "70", *WORLD)
    assert code == 0 and "PNG  run/curve.png\nin   run\n" in out and "into run\n" in err
    start()
    assert shoal("evaluate", "run", "--episodes", "2", "--trust")[0] == 0
    start()
    code, out, _ = shoal("watch", "run", "--trust")
    assert (code, out) == (0, "run/episode.png\nrun/episode.gif\n") and (run / "episode.gif").exists()
    start()
    assert shoal("export", "run", "--trust", "--out", "policy.onnx")[0] == 0 and (start() / "policy.onnx").exists()
    code, out, _ = shoal("quantize", "run", "--trust", "--out", "bits", "--bits", "8", "--episodes", "2", "--json")
    assert code == 0 and all(Path(path).exists() for path in strict(out)["pictures"])
    assert (start() / "bits" / "quantize.json").exists()


def test_from_python(start):
    small = {"hidden": (8,), "warmup": 100, "batch": 16, "tensorboard": False, "evaluate_episodes": 2, "threads": 1}
    env = "gym:tests.envs.own_worlds:Wanderer"
    result = train(TrainConfig(env=env, episodes=20, checkpoint_every=5, out="run", **small))
    assert Path.cwd() == Path("/") and Path(result.run) == start() / "run" and (start() / "run" / "curve.png").exists()
    policy = load("run", trust=True)
    policy.evaluate(2)
    assert policy.states()[1] == "played" and policy.name == "run"


@pytest.mark.slow
def test_sweep_after_chdir(shoal, start):
    words = [word for word in QUIET if word not in ("--threads", "1")]
    assert shoal("train", *WORLD, *words, "--seeds", "0-1", "--out", "two")[0] == 0
    assert {"seed0", "seed1", "curves.png", "sweep-result.json"} <= {path.name for path in (start() / "two").iterdir()}
