"""Conversions of published returns, cells of both sides, and the study of trainings that nobody had to run."""

import os
import stat
import sys
from itertools import pairwise

import numpy as np
import pytest

from shoal.envs import make_env
from shoal.errors import UserError
from shoal.report.panels import draw_figures
from shoal.system.files import finite
from shoal_papers import Options, run_study, study_of
from shoal_papers import cells as cells_module
from shoal_papers.marl import returns
from shoal_papers.marl.published import LENGTH, MPE2, OLD, OPENAI, PUBLISHED, Published, to_mpe2, to_openai
from tests.papers.at_once import AtOnce

TINY = {"batch": 32, "hidden": (8,), "warmup": 50}


@pytest.mark.parametrize("agents", [2, 5])
def test_conversions_equal_the_rewards_of_the_same_trajectory(agents):
    env = make_env("cooperative-navigation", agents=agents, copies=1, rules="mpe2", seed=3, episode_length=LENGTH)
    seen, rng = env.reset(), np.random.default_rng(3)
    summed, openai = 0.0, 0.0
    for _ in range(LENGTH):
        step = env.step(np.eye(5, dtype=np.float32)[rng.integers(0, 5, (1, agents))])
        seen = step.observation if not step.truncated[0] else step.final_observation
        own = np.array(seen[0, :, 2:4], float)
        landmarks = own[0] + seen[0, 0, 4 : 4 + 2 * agents].reshape(agents, 2)
        distance = sum(min(np.linalg.norm(place - agent) for agent in own) for place in landmarks)
        contacts = sum(np.linalg.norm(one - other) < 0.3 for one in own for other in own)  # with itself, too
        openai -= agents * distance + contacts
        summed += float(step.reward.sum())
    assert to_openai(summed / agents, agents) == pytest.approx(openai, abs=1e-3)
    assert to_mpe2(openai, agents) == pytest.approx(summed / agents, abs=1e-3)
    old = Published("", "", summed / agents - LENGTH / 2, "", "", "", rules=OLD, agents=agents)
    assert old.openai == pytest.approx(openai, abs=1e-3)


def test_published_returns_are_between_random_and_the_best_possible():
    for row in PUBLISHED:
        if row.world == "simple_spread" and row.agents == 3:
            assert -235 < row.openai < -100 and -28 < row.mpe2 < -4, row
    summed = next(row for row in PUBLISHED if row.summed and row.rules == OPENAI)
    assert summed.per_agent == summed.openai == summed.value / 3


def test_a_cell_of_ours_is_evaluated_at_its_marks():
    train = {**returns.WORLDS[MPE2], "agents": 2, "seed": 1, "update": "torch", **TINY}
    result = returns.train_ours({"train": train, "marks": [0.001, 0.02, 0.04], "evaluate": 4, "evaluate_at_end": 6})
    curve = result["curve"]
    assert 1 < len(curve) <= 3 and curve[-1]["cpu"] >= 0.04 and result["random"] < 0
    assert all(before["env_steps"] <= after["env_steps"] for before, after in pairwise(curve))
    assert set(curve[0]) == {"env_steps", "updates", "cpu", "wall", "return", "ci95", "covered"}


def test_a_cell_depends_on_what_its_preset_is():
    cell = returns.our_cell(OPENAI, 3, "tuned", 1, 60.0)
    assert cell.settings["train"]["preset"] == "tuned" and cell.settings["train"]["n_step"] > 1
    assert "preset" not in returns.our_cell(OPENAI, 3, "papers", 1, 60.0).settings["train"]


@pytest.fixture
def interpreter(tmp_path, monkeypatch):
    """Makes an interpreter that prints what is given, and is named as BenchMARL's."""

    def make(text, code=0):
        path = tmp_path / "python"
        path.write_text(
            f"#!{sys.executable}\nimport sys\nprint({text!r})\nprint('a fault', file=sys.stderr)\nsys.exit({code})\n"
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv(returns.PYTHON, str(path))

    return make


def test_benchmarl_runs_in_its_own_interpreter(interpreter, monkeypatch):
    cell = returns.their_cell(MPE2, 3, "MASAC", 1, 60.0)
    interpreter('{"curve": [], "random": -1.5}')
    assert returns.measure(dict(cell.settings), None) == {"curve": [], "random": -1.5}
    interpreter("", code=1)
    with pytest.raises(UserError, match="BenchMARL ended with code 1: a fault"):
        returns.measure(dict(cell.settings), None)
    interpreter("")
    with pytest.raises(UserError, match="BenchMARL ended with code 0: a fault"):
        returns.measure(dict(cell.settings), None)
    monkeypatch.setenv(returns.PYTHON, "/nowhere/python")
    with pytest.raises(UserError, match="cannot be run"):
        returns.measure(dict(cell.settings), None)


@pytest.mark.slow
@pytest.mark.skipif(returns.PYTHON not in os.environ, reason="needs BenchMARL")
@pytest.mark.parametrize("algorithm", returns.BENCHMARL)
def test_benchmarl_is_trained(algorithm):
    cell = returns.their_cell(MPE2, 3, algorithm, 1, 3.0)
    result = returns.measure({**cell.settings, "evaluate": 5, "evaluate_at_end": 100}, None)
    assert result["curve"][-1]["updates"] > 0 and result["curve"][-1]["cpu"] >= 3.0
    assert result["random"] == pytest.approx(-26.0, abs=2.0)


def made_up(settings, folder):
    """Ours learn twice as much as theirs."""
    low, high = (-230.0, -110.0) if settings["world"] == OPENAI else (-26.0, -8.0)
    learned = (high - low) * (1.0 if "train" in settings else 0.5)
    end = settings["marks"][-1]
    same = {"ci95": 0.1, "covered": 1.0}
    curve = [
        {"env_steps": 100 * at, "updates": at, "cpu": at, "wall": 2 * at, "return": low + learned * at / end, **same}
        for at in settings["marks"]
    ]
    return {"curve": curve, "random": low}


def test_the_study(monkeypatch, tmp_path):
    monkeypatch.setattr(cells_module, "ChildPool", AtOnce)
    monkeypatch.setattr(cells_module, "do_cell", lambda module, work, settings, folder: made_up(settings, folder))
    monkeypatch.setattr(returns, "SEEDS", (1, 2))
    monkeypatch.setenv(returns.PYTHON, "python")
    options = Options(tmp_path, cells=tmp_path / "cells")
    study = run_study("returns", False, lambda amount, label: None, options)
    text = " ".join(study.findings)
    assert "-110.0 ± 0.0 after 60 CPU seconds" in text and "QMIX" in text
    assert "ours has that return after 30.0 s" in text and "env steps: 6,000 and 6,000" in text
    assert [len(table.rows) for table in study.tables] == [24, 5, 16]
    assert [panel.level for panel in study.figures[0].panels] == [-58.93 / 3, -126.62, 27.5, -716.98 / 12, -225.04 / 6]
    assert draw_figures(study, tmp_path)[0].stat().st_size > 5_000
    assert study_of("returns", finite(study.data)).findings == study.findings
    monkeypatch.delenv(returns.PYTHON)
    (tmp_path / "cells" / "returns" / "mpe2-3-agents-BenchMARL-MAPPO-seed-2.json").unlink()
    again = run_study("returns", False, lambda amount, label: None, options)
    assert "Not measured: 1 cell (mpe2 3 agents BenchMARL MAPPO seed 2); set SHOAL_BENCHMARL" in again.findings[-1]
    for path in (tmp_path / "cells" / "returns").glob("*BenchMARL*"):
        path.unlink()
    ours = run_study("returns", False, lambda amount, label: None, options)
    assert "not measured: needs SHOAL_BENCHMARL" in str(ours.tables[-1]) and "BenchMARL's best" not in " ".join(
        ours.findings
    )
