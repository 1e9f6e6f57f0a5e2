"""`shoal export` of runs and `shoal evaluate` of files: by ONNX Runtime alone, and with suspicion."""

import json

import numpy as np
import onnx
import pytest

from shoal.cli import main
from shoal.inference import Head, Linear, Policy
from shoal.inference.file import PolicyFile
from shoal.inference.runtime import onnxruntime
from shoal.training.saved_team import load_team
from tests.quantization.teams import export_policy


def test_export_and_evaluate_by_command(tmp_path, run, shoal):
    path = tmp_path / "policy.onnx"
    code, out, _ = shoal("export", run, "--precision", "int8", "--out", path, "--json")
    (file,) = json.loads(out)["files"]
    assert code == 0 and file["int8_share"] == 1.0 and file["bytes"] == path.stat().st_size
    assert file["corrected"] and file["rounding"] == "nearest"
    code, out, _ = shoal("evaluate", path, "--episodes", 20, "--json")
    exported = json.loads(out)
    code, out, _ = shoal("evaluate", run, "--episodes", 20, "--json")
    original = json.loads(out)
    assert exported["return_random"] == original["return_random"]  # the same starts
    assert exported["return_mean"] == pytest.approx(original["return_mean"], abs=0.1 * abs(original["return_mean"]))
    code, out, _ = shoal("export", run, "--out", path)
    assert code == 0 and "float32" in out and "shoal evaluate" in out
    code, out, _ = shoal("evaluate", path, "--episodes", 5)
    assert code == 0 and "exported, float32" in out and "random team" in out


def test_corrections_are_written_into_the_file_and_the_table(tmp_path, run, shoal):
    found = {}
    path = tmp_path / "p.onnx"
    for name, words in {"raw": ["--no-correct-bias"], "bias": [], "both": ["--rounding", "output-error"]}.items():
        code, out, err = shoal("export", run, "--precision", "packed", "--bits", 3, *words, "--out", path)
        assert code == 0, err
        said = {"raw": (False, False), "bias": (True, False), "both": (True, True)}[name]
        assert ("bias" in out, "rounding" in out) == said
        found[name] = PolicyFile(path).facts
    keys = ("bias_corrected", "rounding", "corrected_on")
    assert [found["bias"][key] for key in keys] == [True, "nearest", 4096]
    assert [found["both"][key] for key in keys] == [True, "output-error", 4096]
    assert not found["raw"].keys() & set(keys)
    assert found["both"]["error"] < found["bias"]["error"]


def test_float32_export_plays_identical_episodes(tmp_path, run, shoal):
    path = tmp_path / "policy.onnx"
    shoal("export", run, "--out", path)
    returns = [json.loads(shoal("evaluate", what, "--episodes", 8, "--json")[1])["return_mean"] for what in (run, path)]
    assert returns[0] == pytest.approx(returns[1], rel=1e-6)


def test_exported_policy_is_played_without_torch(tmp_path, run, shoal, without_torch):
    path = tmp_path / "policy.onnx"
    shoal("export", run, "--precision", "int8", "--out", path)
    ran = without_torch("evaluate", path, "--env", "cooperative-navigation", "--episodes", 5, "--json")
    assert ran.returncode == 0, ran.stderr
    here = json.loads(shoal("evaluate", path, "--episodes", 5, "--json")[1])
    assert json.loads(ran.stdout)["return_mean"] == here["return_mean"]
    assert "there is no torch here" in without_torch("evaluate", run).stderr  # so it was really blocked


WRONG = [
    ("export {run} --precision int9 --out {tmp}/p.onnx", "'int9' is not one of"),
    ("export {run} --precision packed --bits 1 --out {tmp}/p.onnx", "--bits is 1, but must be from 2 to 7"),
    ("export {run} --precision packed --bits 8 --out {tmp}/p.onnx", "--bits is 8, but must be from 2 to 7"),
    ("export {run} --bits 8 --out {tmp}/p.onnx", "the bits of float32 are fixed"),
    ("export {run} --rounding output-error --out {tmp}/p.onnx", "is for int8, static-int8 and packed, not float32"),
    ("export {run} --out {tmp}/p.txt", "must end in .onnx"),
    ("export {run} --out {tmp}/none/p.onnx", "there is no folder"),
    (f"export {{run}} --out {{tmp}}/{'p' * 300}.onnx", "File name too long"),
    ("export {tmp}/none --out {tmp}/p.onnx", "There is no run folder"),
    ("export {tmp}/none --precision int8 --bits 8 --out {tmp}/p.onnx", "There is no run folder"),
    ("export {run} --precision int8 --bits 3 --tolerance 0 --no-correct-bias --out {tmp}/p.onnx", "was not written"),
    ("export {run} --tolerance 7 --out {tmp}/p.onnx", "--tolerance is 7.0"),
    ("export {run} --precision packed --bits 2 --tolerance 0 --out {tmp}/p.onnx", "was not written"),
    ("evaluate {tmp}/none.onnx --env gym:CartPole-v1", "Stable-Baselines3 zip or ONNX file"),
    ("evaluate {tmp}/other.onnx", "is not an ONNX file or is damaged"),
    ("evaluate {policy} --env gym:CartPole-v1", "is a policy for 3 agents"),
    ("evaluate {policy} --env chess", "'chess' is not known"),
    ("evaluate {policy} --agents 4", "is a policy for 3 agents"),
    ("evaluate {policy} --agents 0", "agents is 0"),
    ("evaluate {policy} --episodes 0", "--episodes is 0"),
    ("evaluate {policy} --threads 0", "--threads is 0"),
]


@pytest.fixture(scope="module")
def policy_file(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("policies") / "policy.onnx"
    assert main(["export", str(run), "--out", str(path)]) == 0
    return path


@pytest.mark.parametrize(("line", "said"), WRONG)
def test_wrong_inputs_of_export_are_refused(tmp_path, run, policy_file, shoal, line, said):
    (tmp_path / "other.onnx").write_bytes(b"something else")
    words = line.format(run=run, tmp=tmp_path, policy=policy_file).split()
    code, out, err = shoal(*words)
    assert code == 2 and out == "" and said in err and err.count("\n") == 1 and "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["other.onnx"]


def test_world_missing_from_the_metadata(tmp_path, shoal):
    weights = np.random.default_rng(0).standard_normal((1, 4, 2)).astype(np.float32)
    policy = Policy((Linear(weights, np.zeros((1, 2), np.float32)),), Head("argmax"), (4,), (2,), ("agent",))
    path = tmp_path / "policy.onnx"
    states = np.random.default_rng(1).standard_normal((32, 1, 4)).astype(np.float32)
    export_policy(policy, path, "float32", states, policy.outputs(states))
    code, _, err = shoal("evaluate", path)
    assert code == 2 and "pass one with --env" in err
    code, out, _ = shoal("evaluate", path, "--env", "gym:CartPole-v1", "--episodes", 5, "--json")
    assert code == 0 and json.loads(out)["return_mean"] >= 8


@pytest.mark.parametrize("world", ["pettingzoo:somebodys_module", "gym:somebodys_module:Env-v0"])
def test_code_named_by_a_file_is_not_imported_untrusted(tmp_path, shoal, monkeypatch, world):
    """A module that is named only in the file is not imported: it would run."""
    (tmp_path / "somebodys_module.py").write_text("raise SystemExit('it was run')")
    monkeypatch.syspath_prepend(tmp_path)
    weights = np.random.default_rng(0).standard_normal((1, 4, 2)).astype(np.float32)
    policy = Policy((Linear(weights, np.zeros((1, 2), np.float32)),), Head("argmax"), (4,), (2,), ("agent",))
    path, states = tmp_path / "policy.onnx", np.random.default_rng(1).standard_normal((32, 1, 4)).astype(np.float32)
    export_policy(policy, path, "float32", states, policy.outputs(states), metadata={"world": {"env": world}})
    code, _, err = shoal("evaluate", path)
    assert code == 2 and f"names the environment '{world}', which is third-party code: add --trust" in err
    assert "it was run" not in err
    for words in (["--env", world], ["--trust"]):
        code, _, err = shoal("evaluate", path, *words)
        assert code == 2 and "it was run" in err


def test_options_of_an_untrusted_file(tmp_path, shoal):
    """Numbers are passed on; a text may name a module or a file, so it is not."""
    run, options = tmp_path / "run", '{"map_name": "4x4", "is_slippery": false}'
    words = ["--episodes", 20, "--warmup", 50, "--batch", 16, "--hidden", 8, "--evaluate-episodes", 0, "--copies", 2]
    words += ["--env", "gym:FrozenLake-v1", "--env-options", options]
    assert shoal("train", *words, "--out", tmp_path / "here", "--quiet")[0] == 0
    (tmp_path / "here").rename(run)  # else it would be known as one's own
    code, _, err = shoal("export", run, "--each", "--out", tmp_path / "policy.onnx")
    assert code == 2 and f"passes {options} to the environment's code: add --trust" in err
    code, out, err = shoal("export", run, "--each", "--out", tmp_path / "policy.onnx", "--trust")
    path = tmp_path / "policy-agent.onnx"
    assert code == 0 and out.endswith(f"play it with: shoal evaluate {path} --trust\n"), err
    code, _, err = shoal("evaluate", path, "--episodes", 2)
    assert code == 2 and f"passes {options} to the environment's code: add --trust" in err
    for said in (["--env-options", options], ["--env-options", "{}"], ["--trust"]):
        assert shoal("evaluate", path, "--episodes", 2, *said)[0] == 0


def test_sampling_policy_by_command(tmp_path, run, shoal):
    path = tmp_path / "policy.onnx"
    assert shoal("export", run, "--sample", "--out", path)[0] == 0
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["observation", "noise"]
    assert shoal("evaluate", path, "--episodes", 5)[0] == 0
    assert onnx.load(path).producer_name == "shoal"


def test_integer_choices_of_a_run(tmp_path, shoal):
    run, path = tmp_path / "run", tmp_path / "policy.onnx"
    words = ["--episodes", 20, "--warmup", 50, "--batch", 16, "--hidden", 8, "--evaluate-episodes", 0, "--copies", 2]
    assert shoal("train", "--env", "gym:FrozenLake-v1", *words, "--out", run, "--quiet")[0] == 0
    code, _, err = shoal("export", run, "--out", path)
    assert code == 0, err
    file, (team, _) = PolicyFile(path), load_team(run, print)
    squares = np.arange(16, dtype=np.float32)[:, None, None]
    one_hot = (squares == np.arange(16)).astype(np.float32)
    assert (file.act(squares)[:, 0] == team.act(one_hot, explore=False)[:, 0].argmax(-1)).all()
    assert (file.play(one_hot) == team.to_world(team.act(one_hot, explore=False))).all()
