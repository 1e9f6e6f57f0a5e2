"""Policies: noise, masks, squashing and the world's units."""

import numpy as np
import pytest
import torch
from scipy import stats

from shoal.algorithms import LearnConfig, make_team
from shoal.envs.base import EnvSpec
from shoal.networks.actors import Actors, Noise
from shoal.networks.layout import Random

CPU = torch.device("cpu")


def spec(discrete, sizes=(3, 2), low=-2.0, high=6.0):
    real = (np.arange(max(sizes)) < np.array(sizes)[:, None]).astype(np.float32)
    box = {} if discrete else {"action_low": low * real, "action_high": high * real}
    return EnvSpec("toy", ("a", "b"), (4, 4), sizes, discrete, **box)


def actors(kind, **options):
    return Actors(spec(kind == "categorical"), (8,), kind, Random(0), **options)


def test_gumbel_noise_is_gumbel():
    drawn = Noise(0, CPU)("gumbel", (50_000,)).numpy()
    assert np.isfinite(drawn).all()
    assert stats.kstest(drawn, "gumbel_r").pvalue > 1e-3
    assert stats.kstest(-drawn, "gumbel_r").pvalue < 1e-6


def test_normal_noise_is_normal():
    assert stats.kstest(Noise(0, CPU)("normal", (50_000,)).numpy(), "norm").pvalue > 1e-3


def test_most_likely_sample_follows_the_policy():
    """The argmax of a Gumbel-softmax sample is a choice drawn with the policy's probabilities."""
    policy = actors("categorical")
    logits = torch.tensor([1.0, 0.0, -1.0]).expand(2, 40_000, 3)
    choice = policy.sample(logits, Noise(1, CPU)).argmax(-1)
    share = torch.stack([torch.bincount(row, minlength=3) for row in choice]) / 40_000
    expected = [torch.tensor([1.0, 0.0, -1.0]).softmax(0), torch.tensor([1.0, 0.0, -np.inf]).softmax(0)]  # b has two
    torch.testing.assert_close(share, torch.stack(expected), atol=0.01, rtol=0)


@pytest.mark.parametrize("hard", [False, True])
def test_padding_is_never_chosen(hard):
    policy = actors("categorical", hard=hard)
    head = torch.randn(2, 100, 3) + torch.tensor([0.0, 0.0, 50.0])
    for actions in (policy.sample(head, Noise(0, CPU)), policy.greedy(head)):
        assert (actions[1, :, 2] == 0).all()
        torch.testing.assert_close(actions.sum(-1), torch.ones(2, 100))
    if hard:
        sampled = policy.sample(head, Noise(0, CPU))
        assert ((sampled == 0) | (sampled == 1)).all()


def test_greedy_is_the_most_likely_choice_as_one_hot():
    head = torch.tensor([[[0.1, 0.3, 0.2]], [[2.0, 1.0, 9.0]]])
    assert actors("categorical").greedy(head).tolist() == [[[0, 1, 0]], [[1, 0, 0]]]


def test_greedy_box_is_the_squashed_mean():
    head = torch.randn(2, 5, 6)
    expected = head[..., :3].tanh() * torch.tensor([[[1, 1, 1]], [[1, 1, 0]]])
    torch.testing.assert_close(actors("gaussian").greedy(head), expected)


def test_exploration_noise_of_deterministic_policies():
    policy, head = actors("deterministic"), torch.zeros(2, 50_000, 3)
    calm = policy.explore(head, Noise(0, CPU), 0.0)
    assert (calm == 0).all()
    noisy = policy.explore(head, Noise(0, CPU), 0.1)
    assert noisy[0].std().item() == pytest.approx(0.1, rel=0.02)
    assert (noisy[1, :, 2] == 0).all()
    wild = policy.explore(torch.full((2, 1000, 3), 3.0), Noise(0, CPU), 0.5)
    assert wild.max() == 1.0 and wild.min() >= -1.0


def test_gaussian_entropy_is_minus_the_log_probability():
    """Against torch.distributions, in double precision."""
    policy, head = actors("gaussian"), torch.randn(2, 200, 6)
    unit = torch.randn(2, 200, 3)
    actions, entropy = policy.sample_with_entropy(head, lambda kind, shape: unit)
    mean, spread = head.double().chunk(2, -1)
    deviation = (-5 + 3.5 * (spread.tanh() + 1)).exp()
    normal = torch.distributions.Normal(mean, deviation)
    squashed = torch.distributions.TransformedDistribution(normal, torch.distributions.TanhTransform(cache_size=1))
    sample = torch.tanh(mean + deviation * unit)
    real = torch.tensor([[[1.0, 1, 1]], [[1.0, 1, 0]]])
    keep = sample.abs().amax(-1) < 0.9999
    torch.testing.assert_close(actions, (sample * real).float(), atol=1e-5, rtol=0)
    expected = -(squashed.log_prob(sample) * real).sum(-1)
    torch.testing.assert_close(entropy[keep], expected[keep].float(), atol=2e-3, rtol=1e-3)


def test_actions_reach_the_world_in_its_own_units():
    team = make_team(spec(False), LearnConfig(hidden=(8,)), 0, CPU)
    actions = np.array([[[-1.0, 0.0, 1.0], [1.0, -1.0, 0.0]]], np.float32)
    assert team.to_world(actions).tolist() == [[[-2.0, 2.0, 6.0], [6.0, -2.0, 0.0]]]
    choices = make_team(spec(True), LearnConfig(hidden=(8,)), 0, CPU)
    assert choices.to_world(actions) is actions


@pytest.mark.parametrize("deviation", [0.0, 0.3])
def test_rollouts_use_the_configured_noise(deviation):
    team = make_team(spec(False), LearnConfig(hidden=(8,), exploration_noise=deviation), 0, CPU)
    observation = np.random.default_rng(0).normal(size=(2000, 2, 4)).astype(np.float32) * 0.1
    change = team.act(observation, explore=True) - team.act(observation, explore=False)
    assert change[:, 0].std() == pytest.approx(deviation, abs=0.02)
