"""`shoal.load`: a trained policy from a run, a zip and a file, with one interface."""

import os
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO

import shoal as package
from shoal import TrainConfig, train
from shoal.errors import UserError
from shoal.policies.trained import check_loadable
from shoal.training.evaluation import evaluate_team
from shoal.training.saved_team import acting_team, load_team
from tests.policies.zips import make, saved

SMALL = TrainConfig(
    env="predator-prey", agents=6, episodes=20, copies=4, warmup=100, update_every=20, batch=32, hidden=(16, 16),
    evaluate_episodes=0, checkpoint_every=0, tensorboard=False, threads=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory with a run, its exports and a zip."""
    folder = tmp_path_factory.mktemp("policies")
    train(TrainConfig(**{**vars(SMALL), "out": str(folder / "runs" / "hunt")}))
    policy = package.load(folder / "runs" / "hunt")
    policy.export(str(folder / "hunt.onnx"))
    policy.export(str(folder / "drawn.onnx"), deterministic=False)
    saved(make("ppo", "CartPole-v1"), folder / "ppo.zip")
    saved(make("a2c", "Pendulum-v1"), folder / "a2c.zip")
    saved(make("dqn", "CartPole-v1"), folder / "dqn.zip")
    return folder


def loaded(folder, name):
    env = {"ppo.zip": "CartPole-v1", "dqn.zip": "CartPole-v1", "a2c.zip": "Pendulum-v1"}.get(name, "")
    return package.load(folder / name, env)


NAMES = ("runs/hunt", "hunt.onnx", "drawn.onnx", "ppo.zip", "a2c.zip", "dqn.zip")


def test_an_exported_file_is_loaded_and_played_without_torch(folder):
    code = "import sys, shoal; shoal.load(sys.argv[1]).evaluate(1); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(folder / "hunt.onnx")], check=True)


@pytest.mark.parametrize("name", NAMES)
def test_actions_have_the_form_that_the_world_takes(folder, name):
    policy = loaded(folder, name)
    env = policy.make_env(copies=5, seed=3)
    observation = env.reset()
    for _ in range(3):
        actions = policy.act(observation)
        assert actions.shape == (5, policy.agents, policy.action_size) and actions.dtype == np.float32
        assert np.allclose(policy.act(observation[2]), actions[2], atol=1e-5)
        if policy.agents == 1:
            assert np.allclose(policy.act(observation[1, 0]), actions[1, 0], atol=1e-5)
        observation = env.step(actions).observation
    assert policy.act(observation[:0]).shape == (0, policy.agents, policy.action_size)
    for wrong in (observation[..., 1:], observation[None], observation[0, 0, 0]):
        with pytest.raises(UserError, match=r"The observation has the shape .*, but the policy in .* takes"):
            policy.act(wrong)
    if policy.agents > 1:
        with pytest.raises(UserError, match=r"takes .6, 26. or .copies, 6, 26."):
            policy.act(observation[0, 0])
    env.close()


@pytest.mark.parametrize("name", NAMES)
def test_choices_as_integers(folder, name):
    """As Gymnasium and the exported graph have them, and as `env.step` takes them, too."""
    policy = loaded(folder, name)
    env = policy.make_env(copies=5, seed=3)
    observation = env.reset()
    if not policy.discrete:
        with pytest.raises(UserError, match="are numbers in a box, not choices"):
            policy.act(observation, as_choices=True)
        return
    choices = policy.act(observation, as_choices=True)
    assert choices.shape == (5, policy.agents) and choices.dtype == np.int64
    assert np.array_equal(choices, policy.act(observation).argmax(-1))
    env.step(choices)
    for one, shape in ((observation[:0], (0, policy.agents)), (observation[2], (policy.agents,))):
        assert policy.act(one, as_choices=True).shape == shape
    if policy.agents == 1:
        assert gymnasium.spaces.Discrete(2).contains(policy.act(observation[0, 0], as_choices=True))
    if policy.kind == "onnx":
        session = policy.file.session
        noise = {"noise": np.full((5, 6, 5), 0.5, np.float32)} if policy.file.draws else {}
        assert np.array_equal(session.run(["action"], {"observation": observation, **noise})[0], choices)
    env.close()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("runs/hunt", "run): MADDPG in predator-prey, 6 agents, observations of 26 numbers, actions of 5 choices"),
        ("hunt.onnx", "onnx): MADDPG in predator-prey, 6 agents, observations of 26 numbers, actions of 5 choices"),
        ("ppo.zip", "zip): PPO in gym:CartPole-v1, 1 agent, observations of 4 numbers, actions of 2 choices"),
        ("a2c.zip", "zip): A2C in gym:Pendulum-v1, 1 agent, observations of 3 numbers, actions of 1 number in a box"),
    ],
)
def test_attributes_of_a_policy(folder, name, said):
    policy = loaded(folder, name)
    assert repr(policy) == f"<trained policy in '{folder / name}' ({said}, float32>"
    names = dir(policy)
    assert {"act", "evaluate", "env", "kind", "agents", "modes", "export", "quantize", "config"} <= {*names}
    assert not {"respond", "reseed", "head", "most_copies", "portable", "network"} & {*names}
    for public in names:
        getattr(policy, public)
    for wrong in (lambda: policy.act(np.zeros(3), sample=True), lambda: policy.evaluate(1, sample=True)):
        with pytest.raises(UserError, match=r"\(\) has no 'sample'; perhaps you meant deterministic"):
            wrong()


def test_run_plays_as_its_team(folder):
    policy, (team, config) = loaded(folder, "runs/hunt"), load_team(folder / "runs" / "hunt", print)
    played = evaluate_team(acting_team(team, config), config, 7, 1)
    assert policy.evaluate(7) == policy.evaluate(7) == played["deterministic"]
    assert policy.evaluate(7, deterministic=False) == policy.evaluate(7, deterministic=False) == played["noisy"]
    assert policy.evaluate_random(7) == played["random"]
    assert policy.evaluate_controllers(7) == {name: played[name] for name in ("chasers", "anticipating_chasers")}


def test_zip_plays_as_its_library(folder):
    theirs, states = PPO.load(folder / "ppo.zip"), np.random.default_rng(0).standard_normal((50, 1, 4))
    policy = loaded(folder, "ppo.zip")
    expected = theirs.predict(states[:, 0].astype(np.float32), deterministic=True)[0]
    assert (policy.act(states)[:, 0].argmax(-1) == expected).all()


def test_export_plays_as_its_run(folder):
    run, file = loaded(folder, "runs/hunt"), loaded(folder, "hunt.onnx")
    assert file.evaluate(5).mean == pytest.approx(run.evaluate(5).mean, rel=1e-6)
    assert file.env == run.env == "predator-prey" and (run.kind, file.kind) == ("run", "onnx")


def test_sampled_actions_follow_the_distribution(folder):
    """Each choice as often as its probability says, within five standard errors; Gaussians by their two moments."""
    state = np.random.default_rng(0).standard_normal((1, 6, 26)).astype(np.float32)
    file, run = loaded(folder, "drawn.onnx"), loaded(folder, "runs/hunt")
    probability = run.outputs(state).softmax(-1).numpy()[0]
    check_shares(np.stack([file.act(state, deterministic=False)[0] for _ in range(2000)]), probability)
    assert np.array_equal(file.act(state), run.act(state))
    ppo, x = loaded(folder, "ppo.zip"), np.float32([[[0.1, -0.2, 0.03, 0.4]]])
    probability = ppo.outputs(x).softmax(-1).numpy()[0]
    check_shares(ppo.act(np.repeat(x, 2000, 0), deterministic=False), probability)
    a2c, x = loaded(folder, "a2c.zip"), np.float32([[[0.1, -0.2, 0.03]]])
    a2c.model.log_std.fill_(-3)
    drawn = a2c.act(np.repeat(x, 2000, 0), deterministic=False)
    deviation = float(torch.tensor(-3.0).exp())
    assert abs(drawn.mean() - a2c.act(x)) < 5 * deviation / 2000**0.5
    assert drawn.std() == pytest.approx(deviation, rel=0.1)


def check_shares(drawn, probability):
    error = np.sqrt(probability * (1 - probability) / len(drawn))
    assert (np.abs(drawn.mean(0) - probability) < 5 * error + 1e-9).all()


def test_unsupported_calls_are_refused(folder):
    for name in ("hunt.onnx", "dqn.zip"):
        policy = loaded(folder, name)
        for draw in (lambda policy: policy.act(policy.make_env().reset(), deterministic=False),
                     lambda policy: policy.evaluate(1, deterministic=False)):  # fmt: skip
            with pytest.raises(UserError, match="has no distribution to sample actions from"):
                draw(policy)
    with pytest.raises(UserError, match="is already an exported file"):
        loaded(folder, "hunt.onnx").export("other.onnx")
    with pytest.raises(UserError, match="is an exported file; quantize the run"):
        loaded(folder, "hunt.onnx").quantize()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bits": 99}, "^`bits` is 99, but must be from 2 to 16"),
        ({"what": ("weights", "biases")}, "`what` 'biases' is not known"),
        ({"bits": "84"}, "^`bits` is 84"),  # one width, not two
        ({"episodes": 0}, "`episodes` is 0"),
    ],
)
def test_wrong_arguments_of_quantize_are_refused(folder, options, said):
    with pytest.raises(UserError, match=said):
        loaded(folder, "runs/hunt").quantize(**options)


def test_wrong_numbers_of_episodes_are_refused(folder):
    for episodes in (0, 2.5):
        with pytest.raises(UserError, match=f"^`episodes` is {episodes}, but must be"):
            loaded(folder, "runs/hunt").evaluate(episodes)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("none", {}, "There is no run folder, Stable-Baselines3 zip or ONNX file"),
        ("ppo.zip", {}, "`env` is missing"),
        ("runs/hunt", {"normaliser": "n.npz"}, "`normaliser` is for Stable-Baselines3 zips"),
        ("runs/hunt", {"threads": 2}, "`threads` is for exported files"),
        ("hunt.onnx", {"threads": 0}, "threads`? is 0"),
        ("runs/hunt", {"env": "cooperative-navigation"}, "does not fit the run"),
        ("ppo.zip", {"env": "Pendulum-v1"}, "does not fit the model"),
        ("hunt.onnx", {"env": "cooperative-navigation"}, "is a policy for 6 agents"),
    ],
)
def test_wrong_paths_and_options_are_refused(folder, name, options, said):
    with pytest.raises(UserError, match=said):
        package.load(folder / name, **options).make_env()


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "model.zip")
    with pytest.raises(UserError, match="not a regular file"):
        check_loadable(str(tmp_path / "model.zip"))


def test_policy_in_another_compatible_world(folder):
    run = package.load(folder / "runs" / "hunt", episode_length=7, warn=print)
    assert (
        run.make_env().spec.episode_length
        == 7
        == package.load(folder / "hunt.onnx", episode_length=7).config.episode_length
    )
    assert run.config.agents == 6


def test_the_example_of_the_readme(folder, monkeypatch, capsys):
    """As it stands there."""
    text = (Path(__file__).parents[2] / "README.md").read_text()
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "shoal.load" in block]
    monkeypatch.chdir(folder)
    exec(compile(example, "README.md", "exec"), {})
    assert "Evaluation(episodes=100" in (out := capsys.readouterr().out) and "8 bits both" in out
    assert len(example.strip().splitlines()) <= 12
