"""Exploring engines against `Team.act` on the same noise."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch

from shoal.algorithms.config import LearnConfig
from shoal.algorithms.dqn import DQN
from shoal.algorithms.maddpg import MADDPG
from shoal.algorithms.masac import MASAC
from shoal.envs.base import EnvSpec
from shoal.errors import UserError
from shoal.inference import Explorer, make_engine
from shoal.inference.engine import KINDS
from shoal.inference.explore import explored
from shoal.inference.grid import safe_bits
from shoal.networks.actors import Noise
from shoal.quantization.export import from_team
from shoal.quantization.qat import Qat
from shoal.quantization.torch_engine import TorchEngine
from tests.inference.policies import random_policy
from tests.inference.simulated import int8_outputs

CONFIG = LearnConfig(hidden=(24, 16), exploration_noise=0.3)
LOW, HIGH = np.float32([[-1, -2, -3], [0, -1, 0]]), np.float32([[1, 5, 4], [2, 3, 0]])  # padded with 0
SPECS = {
    "soft choices": EnvSpec("soft", ("a", "b", "c"), (7, 7, 7), (5, 5, 5), True, soft_actions=True),
    "padded choices": EnvSpec("padded", ("a", "b"), (6, 4), (5, 3), True, soft_actions=True),
    "one-hot choices": EnvSpec("hard", ("a", "b"), (6, 4), (5, 3), True),
    "whole numbers": EnvSpec("whole", ("a",), (9,), (3,), True, whole_numbers=True),
    "boxes": EnvSpec("boxes", ("a", "b"), (6, 4), (3, 2), False, action_low=LOW, action_high=HIGH),
}
BESIDE = {
    "masked choices": EnvSpec("masked", ("a", "b"), (11, 7), (5, 3), True, masked=True),
    "several choices": EnvSpec("several", ("a", "b"), (6, 9), (5, 4), True, choices=((2, 3), (4,)), masked=True),
    "choices and boxes": EnvSpec(
        "mixed", ("a", "b"), (6, 4), (3, 2), False, choices=((), (2,)), action_low=-HIGH, action_high=HIGH
    ),
}
"""What has the same heads in every engine."""
TEAMS = [(algorithm, name) for algorithm in (MADDPG, MASAC) for name in SPECS]
ENGINES = {f"{name} {precision}": partial(make_engine, name=name, precision=precision) for name, precision in KINDS}
ENGINES["torch float32"] = TorchEngine


def team_of(algorithm, name, seed=0):
    """A team whose outputs are far from zero."""
    team = algorithm((SPECS | BESIDE)[name], CONFIG, seed, torch.device("cpu"))
    with torch.no_grad():
        for weight in team.actors.weights:
            weight.mul_(2)
        for bias in team.actors.biases:
            bias.normal_(generator=torch.Generator().manual_seed(seed))
    return team


def played(team, copies=40):
    """Observations, the noise that the team gets (E, N, A), and what it does and tells the world."""
    rng, spec = np.random.default_rng(1), team.spec
    x = rng.standard_normal((copies, spec.agents, spec.observation_size)).astype(np.float32)
    x *= np.arange(spec.observation_size) < np.array(spec.observation_sizes)[:, None]
    if spec.whole_numbers:
        x = np.eye(spec.observation_size, dtype=np.float32)[rng.integers(spec.observation_size, size=x.shape[:2])]
    if spec.masked:
        masks = x[..., : spec.action_size]
        masks[spec.legal(x) < spec.chosen] = 0
        for i, block in spec.each_choice:
            masks[:, i, block.start] = 1
    source, drawn = Noise(2, torch.device("cpu")), {}
    team.rollout_noise = lambda kind, shape: drawn.setdefault(kind, source(kind, shape))
    actions = team.act(x)
    noise = drawn.popitem()[1].transpose(0, 1).numpy()
    for kind, other in drawn.items():  # Gumbel noise for choices, normal for boxes
        noise = np.where(spec.chosen == (kind == "gumbel"), other.transpose(0, 1).numpy(), noise)
    return x, noise, actions, team.to_world(actions)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("algorithm", "name"), TEAMS)
def test_the_same_noise_gives_the_actions_of_training(algorithm, name, engine):
    team = team_of(algorithm, name)
    x, noise, expected, told = played(team)
    explorer = Explorer(from_team(team), ENGINES[engine])
    actions = explorer.explore(x, noise)
    assert actions.dtype == np.float32 and actions.shape == expected.shape
    precision = engine.split()[1]
    if name == "one-hot choices" or name == "whole numbers":
        assert set(np.unique(actions)) == {0, 1} and (actions.sum(-1) == 1).all()
        assert (actions == expected).mean() >= {"float32": 1, "float16": 0.98, "int8": 0.9}[precision]
    else:
        wrong = np.abs(actions - expected)
        assert wrong.max() < {"float32": 5e-6, "float16": 0.02, "int8": 0.6}[precision]
        assert wrong.mean() < {"float32": 5e-7, "float16": 1e-3, "int8": 0.02}[precision]
    assert (actions[..., ~(explorer.policy.mask == 0)] == 0).all()
    assert np.array_equal(explorer.to_world(expected), told)
    one = Explorer(from_team(team), ENGINES[engine]).explore(x[:1], noise[:1])
    assert np.allclose(one, actions[:1], atol=1e-5)


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("algorithm", [MADDPG, MASAC])
def test_masks_several_choices_and_boxes_beside_choices(algorithm, name):
    team = team_of(algorithm, name)
    x, noise, expected, told = played(team)
    explorer = Explorer(from_team(team), ENGINES["numba float32"])
    actions = explorer.explore(x, noise)
    assert np.abs(actions - expected).max() < 5e-6 and np.array_equal(explorer.to_world(expected), told)
    for i, block in team.spec.each_choice:
        assert (actions[:, i, block].sum(-1) == 1).all()
        assert not actions[:, i, block][~team.spec.legal(x)[:, i, block]].any()
    assert explorer.explore(x).shape == actions.shape


@pytest.mark.parametrize("name", ["padded choices", "whole numbers", "masked choices"])
def test_q_values_are_explored_as_in_training(name):
    """Greedy where the first number is at least epsilon, else any choice that the agent has, by the second."""
    config = LearnConfig(algorithm="dqn", hidden=(24, 16), epsilon=0.5)
    team = DQN((SPECS | BESIDE)[name], config, 0, torch.device("cpu"))
    with torch.no_grad():
        team.actors.biases[-1].fill_(-9.0)  # below the 0 of a choice that is padding
    x, noise, expected, _ = played(team, copies=200)
    explorer = Explorer(from_team(team), ENGINES["numba float32"])
    assert np.array_equal(explorer.explore(x, noise), expected)
    greedy = (team.act(x, explore=False) == expected).all(-1)
    assert greedy[noise[..., 0] >= 0.5].all() and 0.1 < greedy[noise[..., 0] < 0.5].mean() < 0.6
    assert not expected[~team.spec.legal(x)].any()
    assert explorer.draw(3).shape == (3, team.spec.agents, 2)


@pytest.mark.parametrize(("algorithm", "name"), TEAMS)
def test_int8_matches_numpy(algorithm, name):
    policy = from_team(team_of(algorithm, name))
    x, noise, _, _ = played(team_of(algorithm, name))
    found = Explorer(policy, ENGINES["onnx int8"]).explore(x, noise)
    expected = explored(policy, int8_outputs(policy.network(), x, safe_bits()), noise, policy.exploration.deviation)
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("algorithm", [MADDPG, MASAC])
def test_explorer_of_a_qat_team(algorithm):
    team = team_of(algorithm, "boxes")
    x, *_ = played(team)
    qat = Qat({"actors": team.actors}, 4, 0.0)
    team.actors(torch.from_numpy(x).transpose(0, 1))  # observes the ranges
    qat.freeze()
    x, noise, expected, _ = played(team)
    wrong = np.abs(Explorer(from_team(team), ENGINES["onnx float32"]).explore(x, noise) - expected)
    assert np.median(wrong) < 1e-6 and (wrong > 1e-4).mean() < 0.02  # another sum may lead to another code
    with pytest.raises(UserError, match="does not support frozen input grids"):
        Explorer(from_team(team), TorchEngine)


@pytest.mark.parametrize("engine", ENGINES)
def test_other_weights_in_a_running_explorer(engine):
    old, new = from_team(team_of(MASAC, "boxes")), team_of(MASAC, "boxes", seed=3)
    x, noise, _, _ = played(new)
    explorer = Explorer(old, ENGINES[engine])
    explorer.explore(x, noise)
    explorer.load(from_team(new))
    assert np.array_equal(explorer.explore(x, noise), Explorer(from_team(new), ENGINES[engine]).explore(x, noise))
    with pytest.raises(UserError, match="different actions"):
        explorer.load(from_team(team_of(MADDPG, "boxes")))
    with pytest.raises(UserError, match="only a policy taken from a training run"):
        explorer.load(old.played())


def test_missing_noise_is_drawn_from_the_seed():
    for name in ("soft choices", "boxes"):
        policy = from_team(team_of(MASAC, name))
        x = np.zeros((500, policy.agents, policy.observation_size), np.float32)
        first, again, other = (Explorer(policy, seed=seed).explore(x) for seed in (0, 0, 1))
        assert np.array_equal(first, again) and not np.array_equal(first, other)
        noise = Explorer(policy).draw(20_000)
        mean, deviation = (0.5772, np.pi / 6**0.5) if name == "soft choices" else (0, 1)
        assert abs(noise.mean() - mean) < 0.02 and abs(noise.std() - deviation) < 0.02 and noise.dtype == np.float32


def test_unsupported_policies_and_wrong_noise_are_refused():
    with pytest.raises(UserError, match="cannot explore"):
        Explorer(random_policy(head="box"))
    policy = from_team(team_of(MADDPG, "boxes"))
    assert dataclasses.replace(policy.exploration, deviation=0.3) == policy.exploration
    with pytest.raises(UserError, match="The noise has the shape"):
        Explorer(policy).explore(np.zeros((4, 2, 6), np.float32), np.zeros((4, 2, 2), np.float32))
    with pytest.raises(UserError, match="The observation has the shape"):
        Explorer(policy).explore(np.zeros((4, 2, 5), np.float32))
