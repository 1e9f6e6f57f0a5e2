"""What needs an extra that is not installed says which, in one sentence."""

import tomllib

import pytest

from shoal.cli import main
from tests.absent import take_away
from tests.cli.conftest import tidy  # noqa: F401  signal handlers and the path of modules are put back
from tests.cli.helpers import one_sentence
from tests.doc_commands import EXTRAS, ROOT

NEEDS = {
    "pettingzoo": ("pettingzoo mpe2", ["train --env pettingzoo:mpe2.simple_tag_v3", "bench env"]),
    "sb3": ("stable_baselines3", ["bench qat"]),
    "control": ("dm_control mujoco", ["train --env dm:cartpole/balance", "train --env gym:HalfCheetah-v5"]),
    "box2d": ("Box2D", ["train --env gym:BipedalWalker-v3"]),
    "atari": ("ale_py", ["train --env gym:ALE/Pong-v5"]),
    "cluster": ("ray", ["train --actors 1 --cluster local"]),
    "data": ("sklearn", ["mac train"]),
    "track": ("wandb mlflow", ["train --track wandb", "train --track mlflow"]),
}


@pytest.mark.parametrize(("extra", "words"), [(extra, words) for extra, (_, lines) in NEEDS.items() for words in lines])
def test_a_missing_extra_is_named(extra, words, monkeypatch, capsys, tmp_path):
    for package in NEEDS[extra][0].split():
        take_away(monkeypatch, package)
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert f".[{extra}]'" in one_sentence(capsys.readouterr().err)


def test_every_extra_is_in_the_readme():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (ROOT / "README.md").read_text()
    assert all(f"| `{extra}` |" in text for extra in extras) and set(NEEDS) == set(EXTRAS) == set(extras) - {
        "docs",
        "dev",
    }
