"""What a team draws, plays and aims for."""

import numpy as np
import pytest
import torch

from shoal.algorithms import LearnConfig, make_team
from shoal.replay import Neighbor, Ring, Uniform
from shoal.training.config import TrainConfig
from shoal.training.loop import Training
from tests.toys import Toy

CPU = torch.device("cpu")


def team_of(env, **options):
    return make_team(env.spec, LearnConfig(hidden=(8,), batch=16, **options), 0, CPU)


@pytest.mark.parametrize(("variant", "follows_target"), [("online", False), ("tf2", True)])
def test_who_plays(variant, follows_target):
    team = team_of(Toy(), algorithm="masac", variant=variant)
    assert (team.rollout_actors is not team.actors) == follows_target
    observation = np.eye(3, dtype=np.float32)[None, :2]  # (1, 2, 3)
    before = team.act(observation, explore=False)
    with torch.no_grad():
        for parameter in team.actors.parameters():
            parameter.neg_()
        team.actors.biases[-1].copy_(torch.tensor([0.0, 0.0, 9.0]).expand(2, 1, 3))
    changed = not np.array_equal(team.act(observation, explore=False), before) or before[..., 2].all()
    assert changed != follows_target


@pytest.mark.parametrize(("minibatch", "shape"), [("shared", (16, 12)), ("independent", (2, 16, 12))])
def test_minibatches_are_drawn_as_configured(minibatch, shape):
    env = Toy(agents=2, copies=16)
    team, ring = team_of(env, minibatch=minibatch), Ring(env.spec, 16, 1000)
    ring.begin(env.reset())
    for _ in range(20):
        actions = np.eye(3, dtype=np.float32)[env.rng.integers(3, size=(16, 2))]
        ring.add(actions, env.step(actions))
    batch = team.sample_minibatch(ring, Uniform(), np.random.default_rng(0))
    assert tuple(batch.joint.shape) == shape
    if minibatch == "independent":
        assert not torch.equal(batch.joint[0], batch.joint[1])


@pytest.mark.parametrize(("name", "kind"), [("uniform", Uniform), ("neighbor", Neighbor)])
def test_a_run_uses_the_sampler_it_was_given(name, kind):
    assert isinstance(Training(TrainConfig(sampler=name, neighbors=2, episodes=50)).sampler, kind)


@pytest.mark.parametrize(("discrete", "target"), [(True, 0.5 * np.log(3)), (False, -2.0)])
def test_default_target_entropy(discrete, target):
    team = team_of(Toy(discrete=discrete), algorithm="masac", learn_entropy=True)
    assert team.target_entropy.flatten().tolist() == pytest.approx([target] * 2)


def test_rollouts_and_updates_have_streams_of_their_own():
    team, other = team_of(Toy()), team_of(Toy())
    team.noise("gumbel", (5,))
    assert torch.equal(team.rollout_noise("gumbel", (5,)), other.rollout_noise("gumbel", (5,)))
    assert not torch.equal(team_of(Toy()).noise("gumbel", (5,)), team_of(Toy()).rollout_noise("gumbel", (5,)))
