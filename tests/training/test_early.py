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
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(TrainConfig(env="gym:a_module:AClass").to_json())
    code = f"""
import sys
from shoal.cli import main
wrong = ("--env nothing", "--agents 0", "--threads 9999", "--out {run}", "--batch 0", "--episode 3")
resumed = ("", "{tmp_path}/none", "{run} --batch 7", "{run}")
for words in [*wrong, *(f"--resume {{words}}" for words in resumed)]:
    assert main(["train", *words.split()]) == 2, words
heavy = {{"torch", "scipy", "matplotlib", "tensorboard", "onnx", "onnxruntime", "gymnasium", "rich"}}
print(sorted((heavy | {{"numba"}}) & set(sys.modules)))
for words in ("watch {run}", "evaluate {run}", "export {run}", "evaluate none", "export none", "quantize none"):
    assert main([*words.split(), "--checkpoint", "best"]) == 2, words
print(sorted(heavy - {{"scipy"}} & set(sys.modules)))  # which numba imports
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n[]\n", done.stderr
    assert len(done.stderr.splitlines()) == 16
