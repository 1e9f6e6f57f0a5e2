"""The studies of QuaRL, with budgets of seconds."""

import json

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import PPO

from shoal.cli import main
from shoal.errors import UserError
from shoal.policies import torch_policy
from shoal.report.panels import draw_figures
from shoal.system.files import finite
from shoal_papers import Options, run_study, study_length, study_of
from shoal_papers import cells as cells_module
from shoal_papers.quarl import baselines, edge, ptq_table, qat, recipes, weight_bits
from tests.papers.at_once import AtOnce
from tests.policies.zips import make, saved

RECIPES = dict(recipes.RECIPES)
TINY = {"n_steps": 16, "batch_size": 16, "policy_kwargs": {"net_arch": [8]}}


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """In this process, with small networks that hardly learn."""
    monkeypatch.setattr(cells_module, "ChildPool", AtOnce)
    tiny = {
        ("ppo", "CartPole-v1"): recipes.Recipe(64, 100, 1.0, {**TINY, "learning_rate": "lin_0.001"}, 2, True),
        ("ddpg", "Pendulum-v1"): recipes.Recipe(
            64, 100, 1.0, {"buffer_size": 100, "learning_starts": 10, "batch_size": 8, "train_freq": [1, "episode"],
            "policy_kwargs": {"net_arch": [8]}}, noise=("normal", 0.1),
        ),
    }  # fmt: skip
    monkeypatch.setattr(recipes, "RECIPES", tiny)
    monkeypatch.setattr(baselines, "CHOSEN_BY", 1)
    monkeypatch.setattr(ptq_table, "QUICK_EPISODES", 2)
    monkeypatch.setattr(torch_policy, "VISITED", 512)
    monkeypatch.setattr(torch_policy, "VISITED_IMAGES", 16)
    monkeypatch.setattr(ptq_table, "QUICK", (("ppo", "CartPole-v1", 64), ("ddpg", "Pendulum-v1", 64)))


def ran(name, folder, tmp_path, quick=True, **told):
    """A study, which is the same when it is made of its data, with its picture."""
    done = []
    options = Options(folder, **told)
    study = run_study(name, quick, lambda amount, label: done.append(amount), options)
    assert sum(done) == pytest.approx(study_length(name, quick, options))
    again = study_of(name, finite(study.data))
    assert again.findings == study.findings and again.tables == study.tables
    assert draw_figures(study, tmp_path)[0].stat().st_size > 5_000
    return study


def test_paper_table_recomputed():
    errors = ptq_table.paper_errors()
    assert len(errors["int8"]) == 36
    assert sum(errors["fp16"]) / 36 == pytest.approx(0.025, abs=5e-4)
    assert sum(errors["int8"]) / 36 == pytest.approx(0.075, abs=5e-4)
    assert ptq_table.paper_of("ALE/Breakout-v5", "dqn") == (214, 217, 78)
    assert ptq_table.paper_of("BreakoutNoFrameskip-v4", "dqn") == (214, 217, 78)
    assert ptq_table.paper_of("MountainCarContinuous-v0", "ddpg") == (92, 92, 92)
    assert ptq_table.paper_of("Pendulum-v1", "ddpg") is None


def test_statistics_over_models():
    """A gain is an error but no loss; a loss of exactly 5 % is within 5 %."""
    assert ptq_table.statistics_of([0.05, -0.15, 0.4]) == {
        "mean |relative error|": "20.0%", "median": "15.0%", "mean loss": "15.0%", "models within 5 %": "2 of 3",
    }  # fmt: skip
    assert set(ptq_table.statistics_of([]).values()) == {None}


def test_models_are_trained_once_for_the_table_and_the_bits(tmp_path):
    study = ran("ptq-table", tmp_path, tmp_path)
    assert "7.5%" in study.findings[0] and len(study.tables[0].rows) == 2
    assert study.tables[0].records()[0]["paper fp32 / fp16 / int8"] == "500 / 500 / 500"
    zips = {path: path.stat().st_mtime_ns for path in (tmp_path / "models").iterdir()}
    assert len(zips) == 3  # two models, one normaliser
    assert any(said.startswith("per channel, bias: mean |relative error|") for said in study.findings)
    assert study.tables[0].records()[0]["paper, bias"] is not None
    over = {row["statistic"]: row for row in study.tables[1].records()}
    said = next(said for said in study.findings if said.startswith("int8 (paper): "))
    assert f"mean |relative error| {over['mean |relative error|']['int8 (paper)']} over 2 models" in said
    assert over["models within 5 %"]["fp16"].endswith(" of 2") and len(over) == 4 + 2  # of two algorithms
    bits = ran("weight-bits", tmp_path, tmp_path)
    assert [line["bits"] for line in bits.data["rows"][0]["lines"]] == [32, 16, 7, 7, 5, 5, 3, 3]
    assert [row["corrected"] for row in bits.tables[0].records()] == ["–", "bias"] * 2
    assert "With bias corrected: mean |relative error|" in bits.findings[-1]
    over = bits.tables[1].records()
    assert [row["corrected"] for row in over] == ["–"] * 4 + ["bias"] * 4
    assert f"mean |relative error| {over[4]['7 bits']} at 7 bits, {over[4]['5 bits']} at 5 bits" in bits.findings[-1]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "models").iterdir()} == zips


def test_an_atari_game_of_a_zip_is_measured_end_to_end(tmp_path, capsys):
    short = {"game": "pong", "max_num_frames_per_episode": 160}
    gymnasium.register("ALE/ShortPong-v5", "ale_py.env:AtariEnv", kwargs=short)
    path = saved(make("dqn", Frames(), "CnnPolicy", policy_kwargs={}), tmp_path / "pong.zip")
    words = ["study", "ptq-table", "--quick", "--model", path, "--env", "ALE/ShortPong-v5", "--out", tmp_path, "--json"]
    assert main([*map(str, words)]) == 0
    study = json.loads(capsys.readouterr().out)
    (row,) = study["data"]["rows"]
    assert row["algorithm"] == "dqn" and len(row["precisions"]) == 6 and "Paper" in study["findings"][0]


class Frames(gymnasium.Env):
    """The spaces of an Atari game with four stacked frames."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)


def test_misplaced_options_are_refused(tmp_path):
    nothing = lambda amount, label: None  # noqa: E731
    for name, told, sentence in (
        ("weight-bits", {"model": "a.zip", "env": "CartPole-v1"}, "`model` is for the study ptq-table"),
        ("ptq-table", {"model": "a.zip"}, "`env` is missing"),
        ("ptq-table", {"env": "CartPole-v1"}, "are for a `model`"),
        ("ptq-table", {"trust": True}, "are for a `model`"),
        ("ptq-table", {"model": __file__, "env": "Pong", "normaliser": "a.npz"}, "--normaliser 'a.npz' cannot be read"),
        ("ptq-table", {"model": str(tmp_path / "a.zip"), "env": "CartPole-v1"}, "cannot be read"),
    ):
        with pytest.raises(UserError, match=sentence):
            run_study(name, True, nothing, Options(tmp_path, **told))


def test_best_model_of_the_second_half_is_kept():
    returns, kept = iter([3.0, 7.0, 5.0, 7.0, 6.0]), []
    best = baselines.best_callback(50, lambda model: next(returns), lambda: kept.append(best.num_timesteps))
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=10, batch_size=10, n_epochs=1, device="cpu")
    model.learn(50, callback=best)
    assert kept == [30, 35, 45]  # where two got the same the later one


def test_qat_and_ptq_cells(tmp_path, monkeypatch):
    monkeypatch.setattr(qat, "QUICK_TASKS", {("ppo", "CartPole-v1"): 64})
    monkeypatch.setattr(qat, "TEAM_PLAYED", 20)
    small = {"env": "cooperative-navigation", "episodes": 30, "hidden": (8,), "batch": 32, "warmup": 200, "copies": 5}
    monkeypatch.setattr(qat, "QUICK_WORLDS", {3: small})
    study = ran("qat", tmp_path, tmp_path)
    rows = {(row["algorithm"], row["how"], row["bits"]) for row in study.data["rows"]}
    ours = {("maddpg", f"{how}{one}", 4) for how in ("PTQ", "QAT") for one in ("", ", one agent")}
    ours |= {(algorithm, "QAT, actors", 4) for algorithm in ("ppo", "maddpg")}
    assert ours | {("ppo", "PTQ", 2), ("ppo", "QAT", 4), ("maddpg", "float32", 32)} <= rows
    assert "5 or 6 bits" in study.findings[0] and any("one agent is at or above" in said for said in study.findings)


def every_cell(study):
    return study.cells(False, Options())


def test_sentences_of_trained_bits(monkeypatch):
    group = {("float32", 32): [100.0, 102.0], ("PTQ", 8): [99.0], ("PTQ", 4): [50.0], ("QAT", 4): [97.0]}
    group[("PTQ", 2)] = [100.0]
    (said,) = qat.sentences("PPO", group)
    team = {("float32", 32): [-100.0], ("PTQ", 8): [-101.0], ("PTQ", 4): [-130.0], ("PTQ, one agent", 8): [-500.0]}
    model = {("float32", 32): [10.0, 30.0], ("PTQ", 8): [15.0]}
    assert qat.losses({"a": team, "b": model, "c": {("QAT", 4): [1.0]}}) == [
        "PTQ costs models on average 25.0% at 8 bits.",
        "PTQ costs teams on average 1.0% at 8 bits, 30.0% at 4 bits.",
    ]
    assert said == "PPO: 101.0 in float32; within 5 % of it: PTQ down to 8 bits, QAT down to 4 bits."
    assert "in 1 of 1 cells" in qat.against({"PPO": group})[0]
    monkeypatch.setattr(recipes, "RECIPES", RECIPES)
    monkeypatch.setattr(recipes, "can_play", lambda env: True)
    assert recipes.left_out() == []
    full = [cell for cell in every_cell(qat.Qat()) if cell.settings["bits"] is None]
    assert len(full) == 3 * (6 + 4) and len({cell.name for cell in every_cell(qat.Qat())}) == 3 * (9 * 6 + 13 * 4)
    monkeypatch.setattr(recipes, "can_play", lambda env: env not in recipes.MUJOCO)
    assert "Reacher-v5 are left out" in recipes.left_out()[0] and len(recipes.left_out()) == 1
    assert len({cell.name for cell in every_cell(qat.Qat())}) == 3 * (9 * 5 + 13 * 4)


def test_policies_on_a_small_device(tmp_path, monkeypatch):
    monkeypatch.setattr(edge, "POLICIES", {"I": (8,), "II": (16,)})
    monkeypatch.setattr(edge, "QUICK", {"I": (30, 25, 1.0), "II": (30, 25, 1.0)})
    monkeypatch.setattr(edge, "TASK", {**edge.TASK, "batch": 16, "warmup": 100, "copies": 5})
    monkeypatch.setattr(edge, "SPACES", (0.001, 1024))
    study = ran("edge", tmp_path, tmp_path)
    assert "18.85" in study.findings[0] and "points lost (paper: 15)" in study.findings[1]
    row = study.data["device"][0]
    assert row["least_mb"] == 1024 and row["free"]["latency_ms"] > 0 and row["free"]["memory_mb"] > 10
    assert len(study.tables[1].rows) == 4 and len(list((tmp_path / "models").glob("*.onnx"))) == 4
    alone = study_of("edge", {**study.data, "device": []})
    assert len(alone.tables) == 1 and draw_figures(alone, tmp_path, "-alone")[0].name == "edge-alone.png"


def test_reached_goals_count_once():
    class World:
        """Two copies of two steps; the second copy's goal is reached in its first step."""

        copies = 2

        def reset(self):
            self.time = 0
            return np.zeros((2, 1, 1), np.float32)

        def step(self, actions):
            self.time += 1
            from types import SimpleNamespace

            reward = np.array([[0.0], [10.0 * (self.time % 2)]])
            return SimpleNamespace(reward=reward, ended=np.full(2, self.time % 2 == 0), observation=actions)

        def close(self):
            pass

    assert edge.success(World(), lambda observation: observation, 6) == 0.5


@pytest.mark.parametrize("name", ["ptq-table", "weight-bits", "edge"])
def test_budget_of_zero(tmp_path, name):
    with pytest.raises(UserError, match=r"Nothing could be measured: Not reached within 0 min: [23] cells"):
        run_study(name, True, lambda amount, label: None, Options(tmp_path, budget=0))


def line(bits, mean, half=1.0):
    return {
        "precision": f"{bits} bits" if bits < 32 else "float32",
        "bits": bits,
        "what": "weights",
        "return_mean": mean,
        "return_ci95": half,
        "relative_error": None,
        "equal_actions": 1.0,
        "kl": None,
        "bytes": 100,
    }


def test_sentences_of_weight_bits():
    row = {"cell": "ppo", "lines": [line(32, 100.0), line(8, 103.0), line(4, 96.0), line(3, 50.0), line(2, 97.0)]}
    assert weight_bits.sentence(row) == "ppo: 100.0 in float32, within 5 % down to 4 bits; above it at 8 bits."
    cost = {"cell": "ddpg", "lines": [line(32, -100.0), line(8, -106.0)]}
    assert "down to float32." in weight_bits.sentence(cost)


def test_corrected_lines_of_weight_bits():
    lines = [line(32, 100.0), line(16, 100.0), line(4, 50.0) | {"relative_error": 0.5}]
    lines.append(line(4, 98.0) | {"relative_error": 0.02, "corrected": True, "rounding": "output-error"})
    row = {"cell": "dqn", "lines": lines}
    assert weight_bits.hows_of(row) == ["–", "bias and rounding"]
    assert [found.return_mean for found in weight_bits.lines_of(row, "bias and rounding")] == [100.0, 100.0, 98.0]
    raw, fixed = weight_bits.mean_errors([row])
    assert "50.0% at 4 bits" in raw and fixed.startswith("With bias and rounding corrected: mean |relative error| 2.0%")
    assert [series.values[-1] for series in weight_bits.panel_of(row).series] == [50.0, 98.0]
    older = [{"precision": name, **dict(list(line(8, 1.0).items())[1:])} for name in ("float32", "int8 (an output)")]
    found = {"precisions": older}
    assert ptq_table.line_of(found, ptq_table.CHANNELS).precision == "int8 (an output)"
    assert ptq_table.line_of(found, ptq_table.CHANNELS, ptq_table.BIAS) is None


def test_models_of_earlier_versions_are_reused(monkeypatch):
    """Their names hold a digest of the recipe."""
    monkeypatch.setattr(recipes, "RECIPES", RECIPES)
    assert recipes.digest_of("dqn", "CartPole-v1") == "a5c27acf06"
    assert recipes.digest_of("a2c", "Walker2d-v5") == "dc02cc0741"


def test_bipedal_walker_needs_box2d(monkeypatch):
    monkeypatch.setattr(recipes, "RECIPES", RECIPES)
    walkers = [cell.name for cell in every_cell(ptq_table.PtqTable()) if "Bipedal" in cell.name]
    assert walkers == [f"{algorithm} BipedalWalker-v3" for algorithm in ("a2c", "ppo", "ddpg")]
    assert ptq_table.paper_of("BipedalWalker-v3", "ppo") == (304, 280, 291)
    monkeypatch.setattr(recipes.importlib.util, "find_spec", lambda name: None if name == "Box2D" else True)
    (said,) = recipes.left_out()
    assert said.startswith("BipedalWalker-v3 is left out: box2d is not installed; ") and "'.[box2d]'" in said
    assert not any("Bipedal" in cell.name for cell in every_cell(ptq_table.PtqTable()))


def test_sentences_of_the_table():
    assert "4.0% over 2 models: within" in ptq_table.sentence("int8", {"a": 0.08, "b": 0.0})
    assert "more than the paper's" in ptq_table.sentence("int8", {"a": 0.08})


def test_every_recipe_can_be_built():
    """Names of settings are those of Stable-Baselines3."""
    import inspect

    import stable_baselines3

    for (algorithm, _), recipe in RECIPES.items():
        known = inspect.signature(getattr(stable_baselines3, algorithm.upper())).parameters
        assert set(recipe.settings) <= set(known)
