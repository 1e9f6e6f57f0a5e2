"""The examples: each runs in a small form; in full size (slow) it learns."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
NAMES = ["export_int8", "low_precision", "maddpg_single_file", "own_environment"]


@pytest.fixture
def example(monkeypatch, tmp_path):
    """A function that imports an example by name, as a script that is run in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def load(name):
        spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look it up
        spec.loader.exec_module(module)
        return module

    return load


def test_every_example_is_short_and_tested():
    lines = {path.stem: len(path.read_text().splitlines()) for path in FOLDER.glob("*.py")}
    assert sorted(lines) == NAMES and max(lines.values()) <= 120


def test_maddpg_single_file(example, capsys):
    maddpg = example("maddpg_single_file")
    trained, random = maddpg.main(maddpg.Settings(episodes=20, copies=5, batch=32, warmup=10))
    assert math.isfinite(trained) and trained != random


def test_low_precision(example, capsys):
    accuracies = example("low_precision").main(steps=10)
    assert all(0.4 < accuracy <= 1 for accuracy in accuracies)
    assert "E5M2:5+E6M5" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*warm-up")
def test_export_int8(example, capsys):
    float32, int8, _ = example("export_int8").main(episodes=10, evaluated=10, out="run")
    assert int8 == pytest.approx(float32, rel=0.2)
    assert "bytes" in capsys.readouterr().out and Path("run/int8.onnx").is_file()


def test_own_environment(example, capsys):
    trained, random = example("own_environment").main(episodes=22, evaluated=5, out="run")
    assert math.isfinite(trained) and random < 0


@pytest.mark.slow
def test_examples_learn_at_full_size(example, capsys):
    maddpg = example("maddpg_single_file")
    trained, random = maddpg.main(maddpg.Settings())
    assert trained > random + 15
    float32, int8, random = example("export_int8").main()
    assert min(float32, int8) > random + 15 and int8 == pytest.approx(float32, rel=0.05)
    assert min(example("low_precision").main()) > 0.95
    trained, random = example("own_environment").main()
    assert trained > -10 > random
