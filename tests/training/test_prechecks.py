"""Refusals before heavy imports: the sentence is the same, and neither torch nor numba is loaded for it."""

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.errors import UserError
from shoal.runs.settings import check_kept
from shoal.training.config import TrainConfig
from shoal.training.prechecks import check_new

WRONG = [
    ({"env": "nothing"}, "The world 'nothing' is not known"),
    ({"env": "mpe2.simple_spread_v3"}, "perhaps you meant pettingzoo:mpe2.simple_spread_v3.; known"),
    ({"env": "mpe2:simple_spread_v3"}, "perhaps you meant pettingzoo:mpe2.simple_spread_v3.; known"),
    ({"env": "simple_spread_v3"}, "perhaps you meant pettingzoo:mpe2.simple_spread_v3.; known"),
    ({"env": "pettingzoo.sisl.multiwalker_v9"}, "perhaps you meant pettingzoo:pettingzoo.sisl.multiwalker_v9.; known"),
    ({"agents": 0}, "`agents` is 0"),
    ({"landmarks": 0}, "`landmarks` is 0"),
    ({"env": "predator-prey", "landmarks": 3}, "`landmarks` is not a setting of predator-prey"),
    ({"env_options": "x"}, "`env_options` is not JSON"),
    ({"threads": 10_000}, "`threads` is 10000"),
    ({"env": "gym:CartPole-v1", "env_workers": 30}, "only 25 copies to share"),
    ({"out": " "}, "`out` is empty"),
    ({"out": "/dev/null"}, "is a file"),
    ({"out": "/proc/x"}, "'/proc/x' cannot be written"),
    ({"capacity": 10}, "`capacity` is 10, but must be at least 25"),
]


@pytest.mark.parametrize(("settings", "sentence"), WRONG)
def test_wrong_settings_are_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        check_new(TrainConfig(**settings))


def test_layers_are_named_by_their_options():
    stored = TrainConfig(hidden=(64, 32))
    with pytest.raises(UserError, match="`hidden` is 8, but the run in 'run' has 64 32"):
        check_kept({"hidden": (8,)}, stored, Path("run"))


NOTHING_HEAVY = """
train --env nothing
train --agents 0
train --threads 9999
train --out {run}
train --out /proc/x
train --batch 0
train --episode 3
train --capacity 10
train --seeds a
train --seeds 0-3 --seed 3
train --seeds 0-3 --out {run}
train --resume
train --resume {tmp}/none
train --resume {run} --batch 7
train --resume {run}
profile --agents x
profile --agents 0
profile --env nope
profile --algorithm ppo
profile --caches zz
profile --threads 99999
quantize {run} --bits 1
quantize {run} --bits a
quantize {run} --bits ,
quantize {run} --what wieghts
quantize {run} --edge-bits x
quantize none
export {run} --bits 4
export none
study breakdown --data nope.json
study breakdown --model x.zip
study ptq-table --model nope.zip --env CartPole-v1
bench gemm --agents 3
bench updates
"""
NO_TORCH = """
watch {run} --checkpoint best
evaluate {run} --checkpoint best
export {run} --checkpoint best
quantize {run} --checkpoint best
evaluate none --checkpoint best
"""
CODE = """
import sys
from shoal.cli import main
heavy = {"torch", "scipy", "matplotlib", "tensorboard", "onnx", "onnxruntime", "gymnasium", "rich"}
for lines, also in ((sys.argv[1], {"numba", "scipy"}), (sys.argv[2], set())):
    for line in lines.split("\\n"):
        code, found = main(line.split()), sorted((heavy - {"scipy"} | also) & set(sys.modules))  # numba imports scipy
        assert code == 2 and not found, (line, found)
"""


def test_prechecks_import_nothing_heavy(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(TrainConfig(env="gym:a_module:AClass").to_json())
    lines = [text.strip().format(run=run, tmp=tmp_path) for text in (NOTHING_HEAVY, NO_TORCH)]
    done = subprocess.run(
        [sys.executable, "-c", CODE, *lines], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == len("\n".join(lines).splitlines())
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # nothing is made
