"""Each algorithm solves worlds whose best play is known, with choices and with boxes."""

import numpy as np
import pytest
import torch

from shoal.algorithms import LearnConfig, make_team
from shoal.replay import Ring, make_sampler
from tests.toys import Constant, Toy


def learn(env, steps, **options):
    """Train on a toy: an update for every step of all copies once the ring holds a mini-batch."""
    config = LearnConfig(**{"hidden": (32, 32), "batch": 128, "discount": 0.9, "learning_rate": 0.003, **options})
    team = make_team(env.spec, config, 0, torch.device("cpu"))
    ring, rng = Ring(env.spec, env.copies, 20_000), np.random.default_rng(0)
    sampler = make_sampler(config.sampler, config.neighbors, config.include_center)
    observation = env.reset()
    ring.begin(observation)
    for _ in range(steps):
        actions = team.act(observation)
        step = env.step(team.to_world(actions))
        ring.add(actions, step)
        observation = step.observation
        if len(ring) >= 256:
            team.update(ring, sampler, rng, lambda phase: None)
    return team, ring


def mean_reward(team, env):
    """Deterministic play."""
    observation, rewards = env.reset(), []
    for _ in range(50):
        step = env.step(team.to_world(team.act(observation, explore=False)))
        rewards.append(step.reward.mean())
        observation = step.observation
    return np.mean(rewards)


@pytest.mark.parametrize("sampler", ["uniform", "neighbor"])
@pytest.mark.parametrize("minibatch", ["shared", "independent"])
@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_teams_learn_choices(algorithm, minibatch, sampler):
    """Best: every agent matches its context, reward 1 each; random play gets 1/3."""
    team, _ = learn(Toy(agents=2), 500, algorithm=algorithm, minibatch=minibatch, sampler=sampler)
    assert mean_reward(team, Toy(agents=2, seed=9)) > 0.95


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_teams_learn_boxes(algorithm):
    """Best: 0, at (+-0.5, 0) by context; random play gets about -0.9."""
    team, _ = learn(Toy(agents=2, discrete=False), 500, algorithm=algorithm, exploration_noise=0.3)
    assert mean_reward(team, Toy(agents=2, discrete=False, seed=9)) > -0.05


@pytest.mark.parametrize("options", [{"variant": "tf2"}, {"learn_entropy": True, "target_entropy": 0.2}], ids=str)
def test_masac_options(options):
    team, _ = learn(Toy(agents=2), 500, algorithm="masac", **options)
    assert mean_reward(team, Toy(agents=2, seed=9)) > 0.95


@pytest.mark.parametrize("options", [{"others": "current"}, {"gumbel": "soft"}, {"clip_by": "network"}], ids=str)
def test_maddpg_options(options):
    team, _ = learn(Toy(agents=2), 500, **options)
    assert mean_reward(team, Toy(agents=2, seed=9)) > 0.95


@pytest.mark.parametrize(("terminates", "worth"), [(False, 10.0), (True, 1 / (1 - 0.9 / 2))])
@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_truncation_bootstraps_and_termination_does_not(algorithm, terminates, worth):
    """Reward 1 a step, discount 0.9, episodes of 2 steps: worth 1 + 0.9 Q where a time limit cuts them,
    and 1 + 0.9 Q / 2 where every second step is a true end."""
    env = Constant(agents=2, length=2, terminates=terminates)
    team, _ = learn(env, 700, algorithm=algorithm, tau=0.1, clip=0.0, batch=256, entropy=0.0)
    joint = torch.ones(1, 2 * 3 + 2 * 3)
    joint[:, 6:] = torch.tensor([1.0, 0, 0, 1, 0, 0])
    # a mini-batch holds a varying share of ends, so Q wanders a little; a wrong rule would be off by five times
    assert team.critics(joint).detach().numpy() == pytest.approx(worth, rel=0.25)
