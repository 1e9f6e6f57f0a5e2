"""A run of the reference from beginning to end, and one that was interrupted."""

import dataclasses
import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from shoal import TrainConfig, train
from shoal.errors import UserError
from shoal.replay import Ring
from shoal.runs.observer import Observer
from shoal.training.evaluation import evaluate_team
from shoal.training.loop import Training
from shoal.training.saved_team import load_team
from shoal_papers.reference.replay import Replays
from shoal_papers.reference.training import fitted

SMALL = TrainConfig(
    implementation="reference", agents=2, episodes=12, warmup=100, batch=32, hidden=(16, 16), update_every=20,
    capacity=150, checkpoint_every=4, log_every=4, evaluate_episodes=4, tensorboard=False,
)  # fmt: skip


def run(out, resume=False, observer=None, **settings):
    config = dataclasses.replace(SMALL, out=str(out), **settings)
    return train(config, resume, observer)


def newest(folder):
    """All parts of the newest checkpoint but the world and the replay, which a finished run no longer has."""
    last = sorted(Path(folder, "checkpoints").glob("[0-9]*"))[-1]
    return {part: load_file(last / f"{part}.safetensors") for part in ("weights", "optimizer", "random")}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": "masac", "sampler": "neighbor", "env": "predator-prey", "copies": 1},
        {"algorithm": "masac", "variant": "tf2", "sampler": "neighbor-v1"},
        {"env": "predator-prey", "prey": "learned"},
        {"env": "predator-prey", "prey": "facmac", "prey_scale": 4.0},
    ],
    ids=str,
)
def test_run_folder(tmp_path, settings):
    result = run(tmp_path / "run", **settings)
    assert result.finished and result.episodes == 12 and result.env_steps == 300 and result.updates == 15
    assert result.phases["mini-batch sampling"] > 0 and result.phases["target update"] > 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["copies"] == 1 and config["minibatch"] == "independent"
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3
    team, config = load_team(tmp_path / "run", lambda sentence: None)  # as `shoal evaluate` and `shoal watch` do
    again = evaluate_team(team, config, 4, config.seed + 1)
    assert again["deterministic"].mean == pytest.approx(result.return_deterministic, rel=1e-4)


class StopAt(Observer):
    """Ends the run as a crash would, after so many calls."""

    def __init__(self, calls):
        self.calls = calls

    def advance(self, training):
        self.calls -= 1
        if self.calls == 0:
            raise RuntimeError("stopped here")


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
@pytest.mark.parametrize("env", ["cooperative-navigation", "predator-prey"])
@pytest.mark.filterwarnings("error:An earlier version of Shoal")  # nothing is missing
def test_resumed_run_ends_with_the_same_bits(tmp_path, algorithm, env):
    """Stopped twice: once with part-filled lists, once after they have wrapped."""
    settings = {"algorithm": algorithm, "env": env, "prey": "random" if env == "predator-prey" else "scripted"}
    run(tmp_path / "whole", **settings)
    with pytest.raises(RuntimeError, match="stopped here"):
        run(tmp_path / "run", observer=StopAt(135), **settings)
    with pytest.raises(RuntimeError, match="stopped here"):
        run(tmp_path / "run", resume=True, observer=StopAt(125), **settings)
    run(tmp_path / "run", resume=True, **settings)
    whole, resumed = newest(tmp_path / "whole"), newest(tmp_path / "run")
    for part, arrays in whole.items():
        assert arrays.keys() == resumed[part].keys()
        for name, array in arrays.items():
            assert array.tobytes() == resumed[part][name].tobytes(), (part, name)


def test_same_seed_same_start_as_the_engine():
    plain, engine = (Training(dataclasses.replace(SMALL, implementation=name)) for name in ("reference", "engine"))
    assert isinstance(plain.ring, Replays) and isinstance(engine.ring, Ring)
    ours, theirs = plain.team.weights(), engine.team.weights()
    assert ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name]).all() for name in ours)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"copies": 4}, "`copies` is 4"),
        ({"storage": "float16"}, "`storage` is float16"),
        ({"gumbel": "straight-through"}, "`gumbel` is 'straight-through'"),
        ({"others": "current"}, "`others` is current"),
        ({"learn_entropy": True}, "`learn_entropy` is True"),
        ({"include_center": True}, "`include_center` is True"),
        ({"sampler": "neighbor", "capacity": 1}, "`capacity=1` holds fewer"),
        ({"rules": "openai"}, "`rules` is 'openai'"),
    ],
    ids=str,
)
def test_unsupported_reference_settings_are_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        Training(dataclasses.replace(SMALL, **settings))


def test_defaults_of_the_reference():
    config = fitted(TrainConfig())
    assert (config.copies, config.minibatch, config.sampler) == (1, "independent", "uniform")
    assert fitted(config) == config
