"""The options of `shoal train`: in groups, with aliases, and with all settings of a run."""

import dataclasses
import re

import pytest

from shoal.commands.arguments import parse
from shoal.commands.train import train
from shoal.commands.train_arguments import ALIASES, TrainArguments
from shoal.training.config import TrainConfig

GROUPS = ["world", "algorithm", "network", "replay", "precision", "actor", "run"]


def test_help_is_in_groups_and_names_aliases(shoal, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        shoal("train", "--help")
    out = capsys.readouterr().out
    assert re.findall(r"^\W*(\w+) options\W*$", out, re.M) == GROUPS
    assert all(alias in out for alias in ALIASES)
    replay = out[out.index("replay options") : out.index("precision options")]
    assert "--capacity INT" in replay and "--episodes" not in replay
    joined = " ".join(out.replace("│", " ").split())
    assert "gym:ID, dm:DOMAIN/TASK (dm:humanoid/stand), or gym:MODULE:CLASS" in joined
    assert "Learning rate of Adam; also --lr. None: 0.01 (maddpg, masac), 0.0001 (d4pg, dqn)." in joined
    assert not [line for line in out.splitlines() if re.search(r" gym:ID,\W*$", line)]  # as in the source


def test_every_setting_reaches_the_config():
    words = "--env predator-prey --algorithm masac --hidden 8 --batch 16 --actors 2 --actor-precision int8 --seed 3"
    assert parse(TrainArguments, train, words.split()).config() == TrainConfig(
        env="predator-prey", algorithm="masac", hidden=(8,), batch=16, actors=2, actor_precision="int8", seed=3
    )
    defaults = {name: value for group in vars(TrainArguments()).values() for name, value in vars(group).items()}
    assert {field.name for field in dataclasses.fields(TrainConfig)} <= defaults.keys()
    assert TrainArguments().config() == TrainConfig()


def test_aliases_set_their_settings(shoal, tmp_path):
    words = "--episodes 1 --copies 1 --evaluate-episodes 0 --no-tensorboard --quiet --threads 1 --hidden 8"
    code, _, err = shoal(
        "train", *words.split(), "--lr", "0.25", "--gamma=0.5", "--batch_size", "7", "--out", tmp_path / "run"
    )
    assert code == 0, err
    from shoal.training.config import read_config

    config = read_config(tmp_path / "run")
    assert (config.learning_rate, config.discount, config.batch) == (0.25, 0.5, 7)
    code, _, err = shoal("train", "--resume", tmp_path / "run", "--gamma", "0.9", "--quiet")
    assert code == 2 and "--discount is 0.9, but the run in" in err
