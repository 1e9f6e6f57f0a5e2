"""Exports: a trained team's actions from the file, the check before it is written, and the commands around it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from shoal import TrainConfig, train
from shoal.algorithms import make_team
from shoal.cli import main
from shoal.commands.export import played_states, states_of_run, stored_observations, team_jobs, write
from shoal.envs import make_env
from shoal.envs.base import EnvSpec
from shoal.errors import UserError
from shoal.inference import Head, Linear, Policy
from shoal.inference.codes import safe_bits
from shoal.inference.file import PolicyFile
from shoal.inference.form import PRECISIONS
from shoal.quantization import export
from shoal.quantization.export import export_policy, from_team, make_form, refuse_if_wrong, team_outputs
from shoal.quantization.qat import Qat
from shoal.quantization.stable_baselines import read_zip
from shoal.replay import Ring
from shoal.training.checkpoint import Checkpoints
from shoal.training.evaluation import load_team
from shoal.training.loop import Training
from shoal.training.snapshot import snapshot
from shoal.training.subjects import model_subject
from tests.quantization.zips import Pictures, make, saved

SMALL = TrainConfig(
    env="cooperative-navigation", agents=3, episodes=40, warmup=200, batch=32, hidden=(16, 16), copies=5,
    evaluate_episodes=0, tensorboard=False, checkpoint_every=20, threads=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of three agents with choices."""
    folder = tmp_path_factory.mktemp("runs") / "team"
    train(replace(SMALL, out=str(folder)))
    return folder


@pytest.fixture
def shoal(capsys):
    def call(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return call


def box_spec(agents=2):
    names = tuple(f"agent_{n}" for n in range(agents))
    high = np.float32([[2.0, 3.0, 1.0], [1.0, 5.0, 0.0]][:agents])
    low = np.float32([[-2.0, 1.0, -1.0], [-1.0, -5.0, 0.0]][:agents])
    return EnvSpec("toy", names, (4, 3)[:agents], (3, 2)[:agents], False, action_low=low, action_high=high)


def choice_spec():
    return EnvSpec("toy", ("a", "b", "c"), (4, 3, 5), (3, 2, 4), True)


def states_for(spec, batch=64):
    x = np.random.default_rng(0).standard_normal((batch, spec.agents, spec.observation_size)).astype(np.float32)
    return x * (np.arange(spec.observation_size)[None] < np.array(spec.observation_sizes)[:, None])


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
@pytest.mark.parametrize("spec", [choice_spec(), box_spec()])
def test_a_teams_policy_acts_as_the_team(algorithm, spec):
    config = replace(SMALL, algorithm=algorithm)
    team = make_team(spec, config, 3, torch.device("cpu"))
    x = states_for(spec)
    policy = from_team(team).check()
    assert np.allclose(policy.to_world(policy.reference(x)), team.to_world(team.act(x, explore=False)), atol=1e-5)
    assert np.allclose(policy.outputs(x), team_outputs(team, x), atol=1e-5)
    assert policy.parameters == team.actors.weight_count


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("spec", [choice_spec(), box_spec()])
def test_every_precision_is_written_and_close_to_pytorch(tmp_path, spec, precision, single):
    team = make_team(spec, replace(SMALL, algorithm="masac"), 3, torch.device("cpu"))
    x, path = states_for(spec), tmp_path / "policy.onnx"
    policy, bits = from_team(team), 7 if precision == "packed" else None
    found = export_policy(policy, path, precision, x, team_outputs(team, x), bits, single)
    file = PolicyFile(path)
    played, expected = file.play(x), team.to_world(team.act(x, explore=False))
    if spec.discrete:
        assert (played == expected).all(-1).mean() == pytest.approx(found.agreement) and found.agreement > 0.9
    else:
        width = np.where(spec.action_mask, spec.action_high - spec.action_low, 1)
        assert (np.abs(played - expected) / width).max() < {"float32": 1e-5, "float16": 2e-3}.get(precision, 0.1)
        assert found.error > 0 or precision == "float32"
    assert found.error <= found.tolerance and found.alone_equal and found.bytes == path.stat().st_size
    assert found.int8_share == (1.0 if precision.endswith("int8") else 0.0)
    assert file.facts["error"] == found.error and file.facts["scheme"] and file.facts["states"] == 64


def test_the_check_refuses_and_leaves_the_old_file(tmp_path, monkeypatch):
    team = make_team(box_spec(), SMALL, 3, torch.device("cpu"))
    x, path = states_for(box_spec()), tmp_path / "policy.onnx"
    path.write_bytes(b"old")
    policy, outputs = from_team(team), team_outputs(team, x)
    with pytest.raises(UserError, match="was not written: the policy's layers one after the other give other outputs"):
        export_policy(policy, path, "float32", x, outputs + 0.01)
    with pytest.raises(UserError, match=r"with packed the actions are wrong by .* at most 1e-06"):
        export_policy(policy, path, "packed", x, outputs, 3, tolerance=1e-6)
    with pytest.raises(UserError, match="NaN or infinity for a state"):
        export_policy(policy, path, "float32", x, outputs * np.nan)
    monkeypatch.setattr(export, "refuse_other_network", lambda *given: None)
    with pytest.raises(UserError, match="was not written: with float32 the actions are wrong by"):
        export_policy(policy, path, "float32", x, outputs + 0.01)
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def test_what_does_not_run_in_8_bits_or_differs_alone_is_refused(tmp_path):
    team, x = make_team(box_spec(), SMALL, 3, torch.device("cpu")), states_for(box_spec())
    found = export_policy(from_team(team), tmp_path / "p.onnx", "int8", x, team_outputs(team, x))
    with pytest.raises(UserError, match="only 40% of its products would run in 8 bits"):
        refuse_if_wrong(replace(found, int8_share=0.4))
    with pytest.raises(UserError, match="a state alone gets another action"):
        refuse_if_wrong(replace(found, alone_equal=False))


def test_an_error_in_one_action_of_a_choice_is_seen(tmp_path, monkeypatch):
    """Logits that differ in one agent's best choice: the measure of choices is not blind."""
    team = make_team(choice_spec(), SMALL, 3, torch.device("cpu"))
    x = states_for(choice_spec())
    other = team_outputs(team, x).copy()
    other[:, 1, :2] = other[:, 1, 1::-1]
    monkeypatch.setattr(export, "refuse_other_network", lambda *given: None)
    with pytest.raises(UserError, match="wrong by"):
        export_policy(from_team(team), tmp_path / "p.onnx", "int8", x, other)


def broken(change):
    policy = from_team(make_team(box_spec(), SMALL, 3, torch.device("cpu")))
    weight = policy.layers[1].weight.copy()
    change(weight)
    return replace(policy, layers=(policy.layers[0], replace(policy.layers[1], weight=weight), policy.layers[2]))


def fill(value, agent=slice(None)):
    def change(weight):
        weight[agent] = value

    return change


@pytest.mark.parametrize(
    ("policy", "precision", "said"),
    [
        (broken(fill(np.nan)), "float32", "Layer 2 of the policy has NaN or infinity among its weights"),
        (broken(fill(0, 1)), "int8", "Layer 2 of 'agent_1' has only zero weights"),
        (broken(fill(1e5)), "float16", "float16 ends at 65504"),
    ],
)
def test_policies_that_cannot_be_exported(tmp_path, policy, precision, said):
    with pytest.raises(UserError, match=said):
        export_policy(
            policy, tmp_path / "p.onnx", precision, states_for(box_spec()), policy.outputs(states_for(box_spec()))
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("precision", "bits", "said"),
    [
        ("packed", 8, "--bits is 8, but must be from 2 to 7"),
        ("packed", 1, "--bits is 1"),
        ("int8", 9, "--bits is 9, but must be from 2 to 8"),
        ("float32", 8, "float32 has no choice of bits"),
        ("int4", None, "'int4' is not known"),
    ],
)
def test_bits_out_of_range(precision, bits, said):
    with pytest.raises(UserError, match=said):
        make_form(broken(fill(1)), precision, bits)


def test_a_policy_with_boxes_is_not_sampled():
    with pytest.raises(UserError, match="Only choices can be drawn"):
        from_team(make_team(box_spec(), SMALL, 3, torch.device("cpu")), sample=True)


def test_a_team_in_one_file_and_one_each(tmp_path, run):
    team, config = load_team(run, print)
    states, source = states_of_run(run, team, config, 0)
    assert source == "played"
    (whole,) = write(team_jobs(team, config, tmp_path / "p.onnx", states), "int8")
    each = write(team_jobs(team, config, tmp_path / "p.onnx", states, each=True), "int8", single=True)
    assert [Path(one.path).name for one in each] == ["p-agent_0.onnx", "p-agent_1.onnx", "p-agent_2.onnx"]
    together = PolicyFile(Path(whole.path)).act(states)
    for n, one in enumerate(each):
        alone = PolicyFile(Path(one.path)).act(states[:, n : n + 1])
        assert np.array_equal(alone[:, 0], together[:, n])


@pytest.mark.parametrize("storage", ["float32", "float16", "bfloat16"])
def test_states_of_the_replay(storage):
    env = make_env("cooperative-navigation", agents=2, copies=3, stagger=False)
    ring = Ring(env.spec, 3, 60, storage)
    seen = [env.reset().copy()]
    ring.begin(seen[0])
    for _ in range(10):
        actions = np.zeros((3, 2, 5), np.float32)
        step = env.step(actions)
        ring.add(actions, step)
        seen.append(step.observation.copy())
    found = stored_observations(ring.segment(0, 10)["rows"], 2, env.spec.observation_size, storage)
    expected = np.stack(seen[:10], 1).reshape(30, 2, -1)  # copy by copy
    assert found.shape == expected.shape
    assert np.allclose(found, expected, rtol={"float32": 0, "float16": 1e-3, "bfloat16": 1e-2}[storage], atol=1e-6)


def test_a_run_under_way_is_checked_with_its_replay(tmp_path):
    folder = tmp_path / "run"
    training = Training(SMALL)
    for _ in range(60):
        training.step()
    folder.mkdir()
    (folder / "config.json").write_text(SMALL.to_json())
    parts, meta = snapshot(training)
    Checkpoints(folder / "checkpoints").save(20, parts, meta, training.ring)
    team, config = load_team(folder, print)
    states, source = states_of_run(folder, team, config, 0)
    assert source == "replay" and states.shape == (512, 3, 18) and np.ptp(states) > 0
    assert played_states(team, config, 0, np.random.default_rng(0)).shape == states.shape


def test_export_and_evaluate_by_command(tmp_path, run, shoal):
    path = tmp_path / "policy.onnx"
    code, out, _ = shoal("export", run, "--precision", "int8", "--out", path, "--json")
    (file,) = json.loads(out)["files"]
    assert code == 0 and file["int8_share"] == 1.0 and file["bytes"] == path.stat().st_size
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


def test_float32_plays_the_very_same_episodes(tmp_path, run, shoal):
    path = tmp_path / "policy.onnx"
    shoal("export", run, "--out", path)
    returns = [json.loads(shoal("evaluate", what, "--episodes", 8, "--json")[1])["return_mean"] for what in (run, path)]
    assert returns[0] == pytest.approx(returns[1], rel=1e-6)


def test_a_policy_is_played_where_torch_cannot_be_imported(tmp_path, run, shoal):
    path = tmp_path / "policy.onnx"
    shoal("export", run, "--precision", "int8", "--out", path)
    blocked = tmp_path / "blocked"
    (blocked / "torch").mkdir(parents=True)
    (blocked / "torch" / "__init__.py").write_text("raise ImportError('there is no torch here')")
    code = "import sys; from shoal.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "evaluate", str(path), "--env", "cooperative-navigation", "--episodes", "5"]
    paths = os.pathsep.join([str(blocked), str(Path(__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": paths}
    ran = subprocess.run([*words, "--json"], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    here = json.loads(shoal("evaluate", path, "--episodes", 5, "--json")[1])
    assert json.loads(ran.stdout)["return_mean"] == here["return_mean"]
    run_needs_torch = subprocess.run(
        [sys.executable, "-c", code, "evaluate", str(run)], capture_output=True, text=True, env=environment
    )
    assert "there is no torch here" in run_needs_torch.stderr  # so it was really blocked


WRONG = [
    ("export {run} --precision int9 --out {tmp}/p.onnx", "'int9' is not one of"),
    ("export {run} --precision packed --bits 1 --out {tmp}/p.onnx", "--bits is 1, but must be from 2 to 8"),
    ("export {run} --precision packed --bits 8 --out {tmp}/p.onnx", "--bits is 8, but must be from 2 to 7"),
    ("export {run} --bits 8 --out {tmp}/p.onnx", "float32 has no choice of bits"),
    ("export {run} --out {tmp}/p.txt", "must end in .onnx"),
    ("export {run} --out {tmp}/none/p.onnx", "there is no folder"),
    (f"export {{run}} --out {{tmp}}/{'p' * 300}.onnx", "File name too long"),
    ("export {tmp}/none --out {tmp}/p.onnx", "There is no run folder"),
    ("export {run} --tolerance 7 --out {tmp}/p.onnx", "--tolerance is 7.0"),
    ("export {run} --precision packed --bits 2 --tolerance 0 --out {tmp}/p.onnx", "was not written"),
    ("evaluate {tmp}/none.onnx --env gym:CartPole-v1", "No such file"),
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
def test_wrong_inputs_end_in_one_sentence(tmp_path, run, policy_file, shoal, line, said):
    (tmp_path / "other.onnx").write_bytes(b"something else")
    words = line.format(run=run, tmp=tmp_path, policy=policy_file).split()
    code, out, err = shoal(*words)
    assert code == 2 and out == "" and said in err and err.count("\n") == 1 and "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["other.onnx"]


def test_a_world_that_the_file_does_not_name(tmp_path, shoal):
    weights = np.random.default_rng(0).standard_normal((1, 4, 2)).astype(np.float32)
    policy = Policy((Linear(weights, np.zeros((1, 2), np.float32)),), Head("argmax"), (4,), (2,), ("agent",))
    path = tmp_path / "policy.onnx"
    states = np.random.default_rng(1).standard_normal((32, 1, 4)).astype(np.float32)
    export_policy(policy, path, "float32", states, policy.outputs(states))
    code, _, err = shoal("evaluate", path)
    assert code == 2 and "name one with --env" in err
    code, out, _ = shoal("evaluate", path, "--env", "gym:CartPole-v1", "--episodes", 5, "--json")
    assert code == 0 and json.loads(out)["return_mean"] >= 8


@pytest.mark.parametrize("world", ["pettingzoo:somebodys_module", "gym:somebodys_module:Env-v0"])
def test_a_file_does_not_say_which_code_is_imported(tmp_path, shoal, monkeypatch, world):
    """A module that is named only in the file is not imported: it would run."""
    (tmp_path / "somebodys_module.py").write_text("raise SystemExit('it was run')")
    monkeypatch.syspath_prepend(tmp_path)
    weights = np.random.default_rng(0).standard_normal((1, 4, 2)).astype(np.float32)
    policy = Policy((Linear(weights, np.zeros((1, 2), np.float32)),), Head("argmax"), (4,), (2,), ("agent",))
    path, states = tmp_path / "policy.onnx", np.random.default_rng(1).standard_normal((32, 1, 4)).astype(np.float32)
    export_policy(policy, path, "float32", states, policy.outputs(states), metadata={"world": {"env": world}})
    code, _, err = shoal("evaluate", path)
    assert code == 2 and f"--env {world}" in err
    with pytest.raises(SystemExit, match="it was run"):
        shoal("evaluate", path, "--env", world)


def test_quantization_aware_training_is_exported_as_it_was_trained(tmp_path):
    folder = tmp_path / "run"
    train(replace(SMALL, out=str(folder), qat_bits=4, quant_delay=0.5))
    team, config = load_team(folder, print)
    policy = from_team(team)
    assert all(layer.quantized is not None and layer.quantized.bits == 4 for layer in policy.layers)
    states, _ = states_of_run(folder, team, config, 0)
    outputs = team_outputs(team, states)
    assert np.abs(policy.outputs(states, np.float32) - outputs).max() < np.ptp(outputs) / 15
    boxes = replace(policy, head=Head("box", "none"))  # shows the outputs themselves
    export_policy(boxes, tmp_path / "p.onnx", "static-int8", states, outputs)
    assert np.abs(PolicyFile(tmp_path / "p.onnx").act(states) - outputs).max() < np.ptp(outputs) / 15
    with pytest.raises(UserError, match="was trained for 4"):
        make_form(policy, "static-int8", 3)
    with pytest.raises(UserError, match="was trained for 4"):
        make_form(policy, "static-int8", 8)
    assert make_form(policy, "packed", None).bits == 4
    for precision in ("float32", "packed"):
        export_policy(boxes, tmp_path / "p.onnx", precision, states, outputs, tolerance=1e-5)


def test_a_team_with_one_agent_in_few_bits_takes_a_file_an_agent(tmp_path):
    spec = choice_spec()
    team = make_team(spec, SMALL, 3, torch.device("cpu"))
    qat, x, path = Qat({"actors": team.rollout_actors}, 4, delay=0, only=1), states_for(spec), tmp_path / "p.onnx"
    team.rollout_actors(torch.from_numpy(x).transpose(0, 1))  # ranges are observed
    qat.freeze()
    with pytest.raises(UserError, match="takes one file an agent: say --each"):
        team_jobs(team, SMALL, path, x)
    jobs = team_jobs(team, SMALL, path, x, each=True)
    assert [len(job.policy.grids) for job in jobs] == [0, 3, 0]
    for precision, others in (("float32", None), ("static-int8", safe_bits())):
        found = write(jobs, precision)
        facts = [PolicyFile(one.path).facts for one in found]
        assert [one["frozen_bits"] for one in facts] == [others, 4, others]
    assert found[1].agreement == 1.0


def test_files_of_a_team_are_all_checked_before_one_is_written(tmp_path):
    team = make_team(box_spec(), SMALL, 3, torch.device("cpu"))
    jobs = team_jobs(team, SMALL, tmp_path / "p.onnx", states_for(box_spec()), each=True)
    jobs[-1] = jobs[-1]._replace(outputs=jobs[-1].outputs + 0.01)
    with pytest.raises(UserError, match="was not written"):
        write(jobs, "float32")
    assert not list(tmp_path.iterdir())


def test_a_drawn_policy_by_command(tmp_path, run, shoal):
    path = tmp_path / "policy.onnx"
    assert shoal("export", run, "--sample", "--out", path)[0] == 0
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["observation", "noise"]
    assert shoal("evaluate", path, "--episodes", 5)[0] == 0
    assert onnx.load(path).producer_name == "shoal"


@pytest.mark.parametrize(
    ("algorithm", "env", "precision"),
    [
        ("ppo", "CartPole-v1", "int8"),
        ("dqn", "CartPole-v1", "static-int8"),
        ("a2c", "Pendulum-v1", "float16"),
        ("ddpg", "Pendulum-v1", "packed"),
    ],
)
def test_a_stable_baselines_model_plays_as_in_its_own_library(tmp_path, shoal, algorithm, env, precision):
    model, path = make(algorithm, env), tmp_path / "policy.onnx"
    zip_path = saved(model, tmp_path / "model.zip")
    bits = ["--bits", 7] if precision == "packed" else []
    code, out, err = shoal("export", zip_path, "--env", env, "--precision", precision, "--out", path, *bits, "--json")
    assert code == 0, err
    space = model.observation_space
    low, high = np.maximum(space.low, -2), np.minimum(space.high, 2)
    seen = np.random.default_rng(0).uniform(low, high, (200, *space.shape)).astype(np.float32)
    theirs, _ = model.predict(seen, deterministic=True)
    ours = PolicyFile(path).act(seen[:, None])[:, 0]
    if algorithm in ("ppo", "dqn"):
        assert (ours == theirs).mean() > 0.95
    else:
        assert np.abs(ours - theirs).mean() < (0.002 if precision == "float16" else 0.04) * 4  # the box is 4 wide
    code, out, err = shoal("evaluate", path, "--env", env, "--episodes", 2, "--json")
    assert code == 0 and json.loads(out)["env"] == f"gym:{env}", err


@pytest.mark.parametrize("precision", ["float32", "int8", "static-int8"])
def test_whole_numbers_go_in_as_they_are(tmp_path, shoal, precision):
    model, path = make("ppo", "FrozenLake-v1"), tmp_path / "policy.onnx"
    zip_path = saved(model, tmp_path / "model.zip")
    code, _, err = shoal("export", zip_path, "--env", "FrozenLake-v1", "--precision", precision, "--out", path)
    assert code == 0, err
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (squares,) = session.run(["action"], {"observation": np.arange(16, dtype=np.float32)[:, None]})
    theirs = [int(model.predict(np.array(square), deterministic=True)[0]) for square in range(16)]
    assert (squares == theirs).mean() >= (1 if precision == "float32" else 0.8)
    code, out, err = shoal("evaluate", path, "--episodes", 20, "--json")
    assert code == 0 and 0 <= json.loads(out)["return_mean"] <= 1, err


def test_whole_numbers_of_a_run(tmp_path, shoal):
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


def test_options_of_a_strangers_file_are_not_taken_unasked(tmp_path, shoal):
    run, options = tmp_path / "run", '{"is_slippery": false}'
    words = ["--episodes", 20, "--warmup", 50, "--batch", 16, "--hidden", 8, "--evaluate-episodes", 0, "--copies", 2]
    words += ["--env", "gym:FrozenLake-v1", "--env-options", options]
    assert shoal("train", *words, "--out", run, "--quiet")[0] == 0
    code, out, err = shoal("export", run, "--each", "--out", tmp_path / "policy.onnx")
    path = tmp_path / "policy-agent.onnx"
    assert code == 0 and out.endswith(f"play it with: shoal evaluate {path} --env-options '{options}'\n"), err
    code, _, err = shoal("evaluate", path, "--episodes", 2)
    assert code == 2 and f"trust them with --env-options '{options}', or '{{}}' for none" in err
    for said in (options, "{}"):
        assert shoal("evaluate", path, "--episodes", 2, "--env-options", said)[0] == 0


def test_choices_that_a_file_does_not_have(tmp_path):
    team = make_team(choice_spec(), SMALL, 3, torch.device("cpu"))
    x, path = states_for(choice_spec()), tmp_path / "policy.onnx"
    export_policy(from_team(team), path, "float32", x, team_outputs(team, x))
    model = onnx.load(path)
    (last,) = [node for node in model.graph.node if "action" in node.output]
    last.output[0] = "before"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.int64(100), "more"))
    model.graph.node.append(onnx.helper.make_node("Add", ["before", "more"], ["action"]))
    onnx.save(model, path)
    with pytest.raises(UserError, match="takes a choice that it says it does not have"):
        PolicyFile(path).act(x)


@pytest.mark.parametrize("bits", [2, 4, 7, 8])
def test_a_model_of_images_trained_for_few_bits(tmp_path, bits):
    from shoal.quantization import QatCallback

    model = make("dqn", Pictures(), "CnnPolicy", policy_kwargs={}, learning_starts=8, buffer_size=64)
    model.learn(40, callback=QatCallback(bits=bits, delay=0.2))
    subject = model_subject(read_zip(saved(model, tmp_path / "m.zip")), "tests.quantization.zips:TinyPictures-v0")
    x = np.random.default_rng(0).integers(0, 256, (100, 1, 36 * 36)).astype(np.float32)
    for precision in ("float32", "static-int8"):
        found = export_policy(subject.policy(), tmp_path / "p.onnx", precision, x, subject.outputs(x))
        assert found.int8_share == (1 if precision == "static-int8" else 0) and found.agreement > 0.9


def test_a_model_of_images(tmp_path, shoal):
    gymnasium.register("ShoalExportPictures-v0", Pictures)
    try:
        env = gymnasium.make("ShoalExportPictures-v0")
        model, path = make("dqn", env, "CnnPolicy", policy_kwargs={}), tmp_path / "policy.onnx"
        zip_path = saved(model, tmp_path / "model.zip")
        words = ["--env", "ShoalExportPictures-v0", "--out", path, "--json"]
        code, out, err = shoal("export", zip_path, "--precision", "static-int8", *words)
        assert code == 0, err
        assert json.loads(out)["files"][0]["int8_share"] == 1.0
        seen = np.random.default_rng(0).integers(0, 256, (50, 1, 36, 36), np.uint8)
        theirs, _ = model.predict(seen, deterministic=True)
        ours = PolicyFile(path).act(seen.reshape(50, 1, -1).astype(np.float32))[:, 0]
        assert (ours == theirs).mean() > 0.8
        code, out, err = shoal("evaluate", path, "--episodes", 3, "--json")
        assert code == 0 and 0 <= json.loads(out)["return_mean"] <= 4, err
        code, _, err = shoal("evaluate", path, "--episode-length", 3)
        assert code == 2 and "--episode-length has no effect" in err
        code, out, err = shoal("export", zip_path, "--precision", "int8", *words)
        assert code == 0 and json.loads(out)["files"][0]["int8_share"] == 1.0 and "static-int8 is faster" in err
    finally:
        gymnasium.registry.pop("ShoalExportPictures-v0")


def test_wrong_zips_and_options(tmp_path, run, shoal):
    path = tmp_path / "policy.onnx"
    zip_path = saved(make("ppo", "CartPole-v1"), tmp_path / "model.zip")
    dqn_path = saved(make("dqn", "CartPole-v1"), tmp_path / "dqn.zip")
    for words, said in (
        ((zip_path, "--out", path), "--env is missing"),
        ((zip_path, "--env", "Pendulum-v1", "--out", path), "does not fit"),
        ((run, "--env", "CartPole-v1", "--out", path), "are for zips"),
        ((dqn_path, "--env", "CartPole-v1", "--sample", "--out", path), "A2C and PPO"),
        ((zip_path, "--env", "CartPole-v1", "--each", "--out", path), "is one agent"),
    ):
        code, _, err = shoal("export", *words)
        assert code == 2 and said in err and not path.exists()
    assert shoal("export", zip_path, "--env", "CartPole-v1", "--sample", "--out", path)[0] == 0
