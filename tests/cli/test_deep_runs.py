"""Runs of D4PG and DQN from the command line: trained, stopped, resumed, evaluated, quantized, exported, watched."""

import signal

import numpy as np
import pytest
from safetensors.numpy import load_file

from shoal.training import loop
from shoal.training.config import read_config
from shoal.training.saved_team import load_team
from tests.cli.helpers import call_before, one_sentence, send, strict

COMMON = (
    "--episodes 24 --copies 4 --warmup 200 --batch 32 --hidden 16 16 --update-every 8 --target-period 7 --quiet "
    "--evaluate-episodes 0 --threads 1 --log-every 5 --no-tensorboard"
).split()
RUNS = {
    "d4pg": "--env gym:Pendulum-v1 --episode-length 40 --algorithm d4pg --layer-norm --critic-hidden 24 8",
    "dqn": "--env gym:CartPole-v1 --algorithm dqn --epsilon 0.1 --epsilon-decay 300 --qat-bits 8 --quant-delay 0.3",
}


@pytest.fixture(scope="module", params=RUNS)
def run(request, tmp_path_factory):
    """An uninterrupted run, and the words that made it."""
    from shoal.cli import main

    folder = tmp_path_factory.mktemp(request.param) / "run"
    words = [*COMMON, *RUNS[request.param].split()]
    assert main(["train", *words, "--out", str(folder)]) == 0
    return folder, words


def weights(folder):
    return load_file(sorted((folder / "checkpoints").glob("[0-9]*"))[-1] / "weights.safetensors")


def test_stop_and_resume_is_bit_identical(run, shoal, tmp_path, monkeypatch):
    folder, words = run
    call_before(monkeypatch, loop.Training, "step", lambda: send(signal.SIGTERM), at=60)
    assert shoal("train", *words, "--out", tmp_path / "run")[0] == 128 + signal.SIGTERM
    monkeypatch.undo()
    assert shoal("train", "--resume", tmp_path / "run", "--quiet")[0] == 0
    whole, resumed = weights(folder), weights(tmp_path / "run")
    assert whole.keys() == resumed.keys()
    assert all(whole[name].tobytes() == resumed[name].tobytes() for name in whole)


def test_config_records_algorithm_defaults(run):
    config = read_config(run[0])
    assert (config.n_step, config.tau, config.clip_by, config.batch) == (5, 1.0, "network", 32)
    assert config.v_max == (150.0 if config.algorithm == "d4pg" else None)


def test_evaluated_quantized_and_exported(run, shoal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, _ = run
    code, out, _ = shoal("evaluate", folder, "--episodes", 2, "--json")
    own = strict(out)
    assert code == 0 and np.isfinite(own["return_mean"])
    code, out, _ = shoal("quantize", folder, "--bits", "8", "--episodes", 2, "--json")
    assert code == 0 and {row["bits"] for row in strict(out)["rows"]} >= {8}
    code, out, err = shoal("export", folder, "--out", tmp_path / "policy.onnx", "--precision", "float32", "--json")
    assert code == 0, err
    code, out, _ = shoal("evaluate", tmp_path / "policy.onnx", "--episodes", 2, "--json")
    assert code == 0
    if "qat" not in str(RUNS[read_config(folder).algorithm]):  # few bits fall one way or the other in another sum
        assert strict(out)["return_mean"] == pytest.approx(own["return_mean"], rel=0.02)


def test_a_loaded_team_explores_as_the_run_did_at_its_end(run):
    team, config = load_team(run[0], pytest.fail)
    assert team.exploration == 0.1  # D4PG's noise by default; DQN's epsilon, which has come down from 1
    assert config.epsilon_decay in (None, 300)


def test_a_dqn_has_no_probabilities(run, shoal, tmp_path):
    folder, _ = run
    if read_config(folder).algorithm == "dqn":
        code, _, err = shoal("export", folder, "--out", tmp_path / "policy.onnx", "--sample")
        assert code == 2 and "no probabilities to sample from" in one_sentence(err)


def test_settings_kept_by_a_resumed_run(run, shoal):
    folder, _ = run
    code, _, err = shoal("train", "--resume", folder, "--n-step", "3")
    assert code == 2 and "--n-step is 3, but the run in" in one_sentence(err)
