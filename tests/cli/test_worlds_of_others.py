"""A person's own worlds: they print, cannot draw themselves, or fail."""

import io
import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.training.config import read_config
from tests.cli.helpers import HOME, QUIET, SHORT, one_sentence, strict

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


def test_a_world_that_prints_does_not_spoil_json(shoal, workplace):
    words = ["--env", "pettingzoo:worlds_of_mine:chatty", "--out", "run"]
    code, out, err = shoal("train", *QUIET, *words, "--json")
    assert code == 0 and strict(out)["finished"] and "step" in err
    code, out, _ = shoal("evaluate", "run", "--episodes", "3", "--json")
    assert code == 0 and strict(out)["episodes"] == 3


def test_a_world_whose_native_code_prints_does_not_spoil_json(process, workplace):
    words = shlex.join([*QUIET, "--env", "pettingzoo:worlds_of_mine:native", "--evaluate-episodes", "0"])
    result = process(f"shoal train {words} --json --out run", env={**os.environ, "PYTHONPATH": str(HOME)})
    assert result.returncode == 0 and strict(result.stdout)["finished"] and "from C" in result.stderr


def test_a_world_that_cannot_draw_itself(shoal, workplace):
    assert shoal("train", *QUIET, "--env", "pettingzoo:worlds_of_mine:World", "--out", "run")[0] == 0
    code, out, err = shoal("watch", "run")
    assert code == 2 and out == "" and "its render() fails (no light)" in one_sentence(err)
    assert not list((workplace / "run").glob("episode*"))


@pytest.mark.parametrize("out", [[], ["--out", "run"], ["--out", "full"]], ids=str)
def test_a_world_that_fails_at_its_first_step_leaves_no_run(shoal, workplace, out):
    (workplace / "full").mkdir()
    for name in ("notes.txt", "events.csv"):
        (workplace / "full" / name).write_text("mine")
    with pytest.raises(RuntimeError, match="a wheel came off"):
        shoal("train", *SHORT, "--quiet", "--env", "pettingzoo:worlds_of_mine:broken", *out)
    assert {*os.listdir(workplace)} - {"runs"} == {"worlds_of_mine.py", "full"}
    assert not list(workplace.glob("runs/*"))
    assert sorted(os.listdir("full")) == ["events.csv", "notes.txt"]


def test_a_resumed_run_that_cannot_step_is_kept(workplace, shoal, finished_run):
    """Its world may be back tomorrow."""
    held = json.loads((finished_run / "config.json").read_text())
    (workplace / "run").mkdir()
    (workplace / "run" / "config.json").write_text(json.dumps({**held, "env": "pettingzoo:worlds_of_mine:broken"}))
    with pytest.raises(RuntimeError, match="a wheel came off"):
        shoal("train", "--resume", "run")
    assert read_config(Path("run")).batch == 32


class Gone(io.StringIO):
    """A terminal that went away."""

    def write(self, text):
        raise BrokenPipeError


def test_a_world_that_prints_to_a_terminal_that_went_away(workplace, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", Gone())
    words = [word for word in QUIET if word != "--quiet"]
    assert main(["train", *words, "--env", "pettingzoo:worlds_of_mine:talker", "--json", "--out", "run"]) == 0
    assert strict(capsys.readouterr().out)["finished"]
