"""Refusals before heavy imports: the sentence is the same, and neither torch nor numba is loaded for it."""

import subprocess
import sys

import pytest

from shoal.errors import UserError
from shoal.training.config import TrainConfig
from shoal.training.early import check_new

WRONG = [
    ({"env": "nothing"}, "The world 'nothing' is not known"),
    ({"agents": 0}, "--agents is 0"),
    ({"landmarks": 0}, "--landmarks is 0"),
    ({"env": "predator-prey", "landmarks": 3}, "--landmarks is not a setting of predator-prey"),
    ({"env_options": "x"}, "--env-options is not JSON"),
    ({"threads": 10_000}, "--threads is 10000"),
    ({"env": "gym:CartPole-v1", "env_workers": 30}, "only 25 copies to share"),
    ({"out": " "}, "--out is empty"),
    ({"out": "/dev/null"}, "is a file"),
]


@pytest.mark.parametrize(("settings", "sentence"), WRONG)
def test_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        check_new(TrainConfig(**settings))


def test_nothing_heavy_is_imported_for_it(tmp_path):
    (tmp_path / "config.json").touch()
    code = f"""
import sys
from shoal.cli import main
for words in ("--env nothing", "--agents 0", "--threads 9999", "--out {tmp_path}", "--batch 0", "--episode 3"):
    assert main(["train", *words.split()]) == 2
heavy = {{"torch", "numba", "scipy", "matplotlib", "tensorboard", "onnx", "onnxruntime", "gymnasium", "rich"}}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
    assert len(done.stderr.splitlines()) == 6
