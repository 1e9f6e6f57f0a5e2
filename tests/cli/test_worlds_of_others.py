"""A person's own worlds: they print, cannot draw themselves, or fail."""

import dataclasses
import importlib
import io
import os
import shutil
import signal
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from shoal import TrainConfig, train
from shoal.cli import main
from shoal.errors import UserError, install
from shoal.training import loop
from shoal.training.config import read_config
from tests.cli.helpers import QUIET, SHORT, call_before, one_sentence, send, strict

WORLDS = '''
import os

import numpy as np
from gymnasium.spaces import Box, Discrete


class World:
    """One agent, episodes of five steps."""

    possible_agents = ["a"]

    def __init__(self, render_mode=None):
        self.render_mode, self.agents = render_mode, []

    def observation_space(self, agent):
        return Box(-1, 1, (2,))

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.time = ["a"], 0
        return {"a": np.zeros(2, np.float32)}, {"a": {}}

    def step(self, actions):
        self.time += 1
        over = {"a": self.time == 5}
        self.agents = [] if over["a"] else ["a"]
        return {"a": np.zeros(2, np.float32)}, {"a": float(actions["a"])}, over, {"a": False}, {"a": {}}

    def render(self):
        raise RuntimeError("no light.\\nAnd more about it.")

    def close(self):
        pass


class chatty(World):
    def __init__(self, render_mode=None):
        print("made")
        super().__init__(render_mode)

    def reset(self, seed=None, options=None):
        print("reset")
        return super().reset(seed)

    def step(self, actions):
        print("step")
        return super().step(actions)


class talker(World):
    def step(self, actions):
        print("step")
        return super().step(actions)


class native(World):
    def reset(self, seed=None, options=None):
        os.write(1, b"from C\\n")
        return super().reset(seed)


class broken(World):
    def step(self, actions):
        raise RuntimeError("a wheel came off")
'''


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A working directory with a person's own worlds in it."""
    (tmp_path / "worlds_of_mine.py").write_text(WORLDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop("worlds_of_mine", None)


def test_printing_world_does_not_break_json(shoal, workplace):
    words = ["--env", "pettingzoo:worlds_of_mine:chatty", "--out", "run"]
    code, out, err = shoal("train", *QUIET, *words, "--json")
    assert code == 0 and strict(out)["finished"] and "step" in err
    code, out, _ = shoal("evaluate", "run", "--episodes", "3", "--json", "--trust")
    assert code == 0 and strict(out)["episodes"] == 3


def test_printing_native_code_does_not_break_json(capfd, monkeypatch, workplace):
    for number, name in ((1, "stdout"), (2, "stderr")):  # as in a process of its own
        monkeypatch.setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115
    words = [*QUIET, "--env", "pettingzoo:worlds_of_mine:native", "--evaluate-episodes", "0"]
    assert main(["train", *words, "--json", "--out", "run"]) == 0
    out, err = capfd.readouterr()
    assert strict(out)["finished"] and "from C" in err


def test_watch_of_a_world_without_rendering_is_refused(shoal, workplace):
    assert shoal("train", *QUIET, "--env", "pettingzoo:worlds_of_mine:World", "--out", "run")[0] == 0
    code, out, err = shoal("watch", "run", "--trust")
    assert code == 2 and out == "" and "World raised RuntimeError in render(): no light. And more" in one_sentence(err)
    assert not list((workplace / "run").glob("episode*"))


@pytest.mark.parametrize("out", [[], ["--out", "run"], ["--out", "full"]], ids=str)
def test_a_world_that_fails_at_its_first_step_leaves_no_run(shoal, workplace, out):
    (workplace / "full").mkdir()
    for name in ("notes.txt", "events.csv"):
        (workplace / "full" / name).write_text("mine")
    code, _, err = shoal("train", *SHORT, "--quiet", "--env", "pettingzoo:worlds_of_mine:broken", *out)
    assert code == 2 and "raised RuntimeError in step(): a wheel came off (worlds_of_mine.py:" in one_sentence(err)
    assert {*os.listdir(workplace)} - {"runs"} == {"worlds_of_mine.py", "full"}
    assert not list(workplace.glob("runs/*"))
    assert sorted(os.listdir("full")) == ["events.csv", "notes.txt"]


def test_a_resumed_run_that_cannot_step_is_kept(workplace, shoal, finished_run):
    """Its world may be back tomorrow."""
    config = dataclasses.replace(read_config(finished_run), env="pettingzoo:worlds_of_mine:broken")
    (workplace / "run").mkdir()
    (workplace / "run" / "config.json").write_text(config.to_json())
    code, _, err = shoal("train", "--resume", "run", "--trust", "--quiet")
    assert code == 2 and "a wheel came off" in err
    assert read_config(Path("run")).batch == 32


def test_stopped_run_prints_the_resume_command(workplace, shoal, monkeypatch):
    with monkeypatch.context() as patch:
        call_before(patch, loop.Training, "step", lambda: send(signal.SIGINT), at=3)
        code, _, err = shoal("train", *QUIET, "--env", "pettingzoo:worlds_of_mine:World", "--out", "run")
    command = err.strip().rpartition("resume with: shoal ")[2]
    assert code == 128 + signal.SIGINT and command == "train --resume run"
    assert shoal(*command.split(), "--quiet")[0] == 0
    (workplace / "run").rename(workplace / "moved")
    assert shoal("train", "--resume", "moved", "--quiet")[0] == 2


@pytest.fixture(scope="module")
def run_of_others(tmp_path_factory):
    """A finished run in a world of somebody's own, to be looked at only."""
    place = tmp_path_factory.mktemp("others")
    (place / "worlds_of_mine.py").write_text(WORLDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setattr(sys, "path", [*sys.path])
        assert main(["train", *QUIET, "--env", "pettingzoo:worlds_of_mine:World", "--out", "run"]) == 0
    sys.modules.pop("worlds_of_mine", None)
    return place / "run"


COMMANDS = ["train --resume", "evaluate --episodes 2", "watch", "quantize --bits 8 --episodes 2", "export"]


@pytest.mark.parametrize("command", COMMANDS)
def test_code_named_by_a_run_is_not_imported_untrusted(shoal, workplace, run_of_others, command):
    """Not even one that lies in the working directory: it is the run's word, not the user's."""
    code, out, err = shoal(*command.split(), run_of_others)
    assert code == 2 and out == "" and os.listdir(workplace) == ["worlds_of_mine.py"]
    assert "names the environment 'pettingzoo:worlds_of_mine:World', which is third-party code: add --trust" in err
    one_sentence(err)
    assert "worlds_of_mine" not in sys.modules and str(workplace) not in sys.path


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "watch"])
def test_own_run_needs_no_trust(shoal, run_of_others, monkeypatch, command):
    """On the machine and account that trained it, with the same module; not if the folder was copied."""
    monkeypatch.chdir(run_of_others.parent)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    copy = run_of_others.with_name("copy")
    shutil.copytree(run_of_others, copy)
    try:
        code, _, err = shoal(*command.split(), "copy")
        assert code == 2 and "add --trust" in one_sentence(err) and "worlds_of_mine" not in sys.modules
        code, _, err = shoal(*command.split(), "run")
        assert code == 0, err
    finally:
        shutil.rmtree(copy)
        sys.modules.pop("worlds_of_mine", None)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "watch"])
def test_trusted_run_imports_its_code(shoal, workplace, run_of_others, command):
    code, _, err = shoal(*command.split(), run_of_others, "--trust")
    assert code == 0 and ("worlds_of_mine" in sys.modules) is (command != "train --resume"), err


def test_run_in_another_world_does_not_import_its_own(shoal, run_of_others, tmp_path, monkeypatch):
    """The sizes are in the run; its own module is neither trusted nor there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "worlds_of_theirs.py").write_text(WORLDS.replace('["a"]', '["b"]').replace('"a"', '"b"'))
    for command in ("evaluate --episodes 2", "quantize --bits 8 --episodes 2", "export"):
        code, _, err = shoal(*command.split(), run_of_others, "--env", "pettingzoo:worlds_of_theirs:World")
        assert code == 0, err
    code, _, err = shoal("evaluate", run_of_others, "--env", "gym:Pendulum-v1")
    assert code == 2 and "does not fit the run" in one_sentence(err)
    sys.modules.pop("worlds_of_theirs")
    shutil.copytree(run_of_others, "old")
    os.remove("old/world.json")  # as earlier versions left it
    code, _, err = shoal("evaluate", "old", "--env", "gym:Pendulum-v1")
    assert code == 2 and "add --trust" in one_sentence(err)


def test_env_option_implies_trust(shoal, workplace, run_of_others):
    world = "pettingzoo:worlds_of_mine:World"
    for words in (["--env", world], [f"--env={world}"]):
        assert shoal("train", "--resume", run_of_others, *words)[0] == 0
    assert shoal("quantize", run_of_others, "--env", world, "--bits", "8", "--episodes", "2")[0] == 0
    code, _, err = shoal("train", "--resume", run_of_others, "--env", "pettingzoo:worlds_of_mine:talker")
    assert code == 2 and "a resumed run keeps its settings" in one_sentence(err)


def test_trust_from_python(workplace, run_of_others):
    with pytest.raises(UserError, match="third-party code"):
        train(TrainConfig(out=str(run_of_others)), resume=True)
    for settings, trust in (({}, True), ({"env": "pettingzoo:worlds_of_mine:World"}, False)):
        assert train(TrainConfig(**settings, out=str(run_of_others)), resume=True, trust=trust).finished


def test_a_class_from_python_is_named_in_the_run(workplace, shoal, monkeypatch):
    monkeypatch.syspath_prepend(workplace)
    world = importlib.import_module("worlds_of_mine").World
    small = {"episodes": 8, "copies": 2, "warmup": 20, "batch": 8, "hidden": (8,), "threads": 1, "tensorboard": False}
    config = TrainConfig(env=world, evaluate_episodes=0, out="run", **small)
    assert train(config).finished and read_config(Path("run")).env == "pettingzoo:worlds_of_mine:World"
    sys.modules.pop("worlds_of_mine")
    shutil.copytree("run", "copy")
    code, _, err = shoal("evaluate", "copy", "--episodes", "2")
    assert code == 2 and "'pettingzoo:worlds_of_mine:World', which is third-party code: add --trust" in err
    assert "worlds_of_mine" not in sys.modules
    assert shoal("evaluate", "copy", "--episodes", "2", "--trust")[0] == 0
    world = sys.modules["worlds_of_mine"].World
    assert train(TrainConfig(env=world, out="copy"), resume=True).finished  # named, so trusted
    with pytest.raises(UserError, match="third-party code"):
        train(TrainConfig(out="copy"), resume=True)


@pytest.mark.parametrize("name", ["mpe2", "pettingzoo"])
def test_broken_local_module_is_not_reported_as_missing_library(shoal, workplace, monkeypatch, name):
    """The name of a library needs no trust, so nothing else may answer to it, whether it is installed or not."""
    (workplace / name).mkdir()
    (workplace / name / "__init__.py").write_text("raise SystemExit('it was run')")
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)

    class NotInstalled:
        @staticmethod
        def find_spec(module, path=None, target=None):
            if module != name:
                return None
            spec = PathFinder.find_spec(name, [path for path in sys.path if path == str(workplace)])
            if spec is None:
                raise ModuleNotFoundError(f"No module named '{name}'", name=name)
            return spec

    monkeypatch.setattr(sys, "meta_path", [NotInstalled, *sys.meta_path])
    code, _, err = shoal("train", *QUIET, "--env", f"pettingzoo:{name}.simple_v3", "--out", "run")
    assert code == 2 and f"the package {name} is not installed; {install('pettingzoo')}" in one_sentence(err)


class Gone(io.StringIO):
    """A terminal that went away."""

    def write(self, text):
        raise BrokenPipeError


def test_world_printing_to_a_closed_terminal(workplace, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", Gone())
    words = [word for word in QUIET if word != "--quiet"]
    assert main(["train", *words, "--env", "pettingzoo:worlds_of_mine:talker", "--json", "--out", "run"]) == 0
    assert strict(capsys.readouterr().out)["finished"]
