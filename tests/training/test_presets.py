"""Settings by name: what they put in place of settings that are not given, and where there are none."""

import json

import pytest

from shoal import TrainConfig
from shoal.errors import UserError
from shoal.training.config import read_config
from shoal.training.presets import TUNED


def test_the_papers_settings_are_the_default():
    config = TrainConfig()
    assert (config.preset, config.share, config.entities, config.batch) == ("papers", "none", "index", 1024)
    assert TrainConfig(algorithm="dqn", env="gym:CartPole-v1").share == "none"


@pytest.mark.parametrize(("algorithm", "env"), TUNED, ids="-".join)
def test_tuned_settings_are_valid_and_give_way_to_given_ones(algorithm, env):
    config = TrainConfig(preset="tuned", algorithm=algorithm, env=env)
    config.check()
    assert {name: getattr(config, name) for name in TUNED[algorithm, env]} == TUNED[algorithm, env]
    given = TrainConfig(preset="tuned", algorithm=algorithm, env=env, share="none", learning_rate=0.5)
    assert (given.share, given.learning_rate) == ("none", 0.5)
    assert (given.entities, given.n_step) == (config.entities, config.n_step)


@pytest.mark.parametrize("settings", [{"algorithm": "masac"}, {"env": "gym:CartPole-v1"}], ids=str)
def test_there_are_not_tuned_settings_for_everything(settings):
    with pytest.raises(UserError, match="`preset=tuned` has settings for maddpg in cooperative-navigation, "):
        TrainConfig(preset="tuned", **settings).check()


def test_a_run_keeps_what_its_preset_was_then(shoal, tmp_path):
    """config.json has the settings themselves, so that a later version's preset does not change a resumed run."""
    line = "train --preset tuned --agents 2 --n-step 2 --episodes 30 --warmup 200 --hidden 8 8 --evaluate-episodes 0"
    code, _, err = shoal(*line.split(), "--out", tmp_path / "run")
    assert code == 0, err
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["share"] == "all" and stored["n_step"] == 2
    (tmp_path / "run" / "config.json").write_text(json.dumps(stored | {"share": "none"}))
    assert read_config(tmp_path / "run").share == "none"
