"""The reference, in the order critics, actors, targets, gives the engine's losses, weights and moments.

In float64 to 1e-9, where rounding can hide no mistake. In float32, as a user gets them, to 1e-5, but for the odd weight
whose gradient is so small (1e-9) that Adam makes a step out of its rounding.
"""

import dataclasses

import numpy as np
import pytest
import torch

from shoal.algorithms import LearnConfig, make_team
from shoal.algorithms.minibatch import as_tensors
from shoal.envs import make_env
from shoal.errors import UserError
from shoal.networks.stacked import to_arrays
from shoal.replay import Batch
from shoal.replay.samplers import Uniform
from shoal_papers.reference.replay import ListSampler, Transitions
from shoal_papers.reference.team import ReferenceTeam
from tests.algorithms.plain import precision_of_networks
from tests.papers.reference.histories import filled, make_spec

CPU = torch.device("cpu")
ROWS, UPDATES = 24, 4


class Recorder:
    """Draws the engine's noise and hands it out again piece by piece, in the order in which the reference asks."""

    def __init__(self, spec, precision):
        self.spec, self.precision = spec, precision
        self.rng, self.drawn = np.random.default_rng(1), []

    def engine(self, kind, shape):
        self.drawn.append(torch.from_numpy(self.rng.gumbel(size=shape).astype(self.precision)))
        return self.drawn[-1]

    def begin_reference(self):
        """For every agent's target all agents' next actions (N, N*B, A); then every agent's own action (N, B, A)."""
        next_noise, own_noise = self.drawn
        n, sizes = self.spec.agents, self.spec.action_sizes
        queue = [next_noise[j, i * ROWS : (i + 1) * ROWS, : sizes[j]] for i in range(n) for j in range(n)]
        self.queue = queue + [own_noise[i, :, : sizes[i]] for i in range(n)]
        self.drawn = []

    def reference(self, kind, shape):
        noise = self.queue.pop(0)
        assert kind == "gumbel" and tuple(noise.shape) == shape
        return noise


def in_precision(arrays, precision):
    """A named tuple of arrays with its floats in this precision."""
    return type(arrays)(*(a.astype(precision) if a.dtype.kind == "f" else a.copy() for a in arrays))


class PreciseSampler(ListSampler):
    """Gathers in float64."""

    def gather(self, buffer, indices):
        rows: Transitions = in_precision(super().gather(buffer, indices), np.float64)
        return rows


def assert_same(ours, theirs, tolerance=0.0):
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name].dtype == theirs[name].dtype
        np.testing.assert_allclose(ours[name], theirs[name], atol=tolerance, rtol=0, err_msg=name)


def assert_nearly_all_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    apart = np.concatenate([np.abs(ours[name] - theirs[name]).ravel() for name in ours])
    assert apart.max() < 1e-3 and (apart > 1e-5).mean() < 1e-3


def agree(spec, precision, **settings):
    """Update both on the same indices and noise."""
    config = LearnConfig(**{"hidden": (16, 12), "batch": ROWS, "minibatch": "independent", **settings})
    ring, replays = filled(spec)
    engine = make_team(spec, config, 0, CPU)
    plain = ReferenceTeam(spec, config, 0, CPU, order="phases")
    recorder = Recorder(spec, precision)
    engine.noise, plain.noise = recorder.engine, recorder.reference
    assert_same(plain.weights(), engine.weights())
    sampler = PreciseSampler() if precision is np.float64 else ListSampler()
    draws, same_draws = np.random.default_rng(2), np.random.default_rng(2)
    for _ in range(UPDATES):
        phases, same_phases = ["mini-batch sampling"], []
        batch: Batch = in_precision(ring.sample(Uniform(), ROWS, draws, spec.agents), precision)
        losses = to_arrays(engine.learn(as_tensors(batch, spec, config.discount, CPU), phases.append))
        recorder.begin_reference()
        same_losses = plain.update(replays, sampler, same_draws, same_phases.append)
        assert tuple(same_losses) == plain.losses
        assert_same(same_losses, losses, 1e-9 if precision is np.float64 else 1e-4)
        assert not recorder.queue
        assert set(same_phases) == set(phases)
    if precision is np.float64:
        assert_same(plain.weights(), engine.weights(), 1e-9)
        assert_same(plain.optimizer_state(), engine.optimizer_state(), 1e-9)
    else:
        assert_nearly_all_same(plain.weights(), engine.weights())


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def precision(request):
    with precision_of_networks(request.param):
        yield request.param


@pytest.mark.parametrize("agents", [1, 3])
@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_update_equals_the_engine(precision, algorithm, agents):
    agree(make_spec(agents), precision, algorithm=algorithm)


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_unequal_agents(precision, algorithm):
    agree(make_spec(4, unequal=True), precision, algorithm=algorithm)


@pytest.mark.parametrize(
    "settings",
    [
        {"clip": 0.0},
        {"clip_by": "network", "clip": 0.05},
        {"hidden": (16,)},
        {"hidden": (8, 12, 10)},
        {"tau": 0.5, "discount": 0.5, "logit_penalty": 0.3},
        {"algorithm": "masac", "entropy": 0.5},
        {"algorithm": "masac", "variant": "tf2"},
    ],
    ids=str,
)
def test_update_equals_the_engine_for_all_settings(precision, settings):
    agree(make_spec(3), precision, **settings)


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_agents_update_in_sequence(algorithm):
    """The measured code's order: the first agent does the same in both, the others do not."""
    spec = make_spec(3)
    _, replays = filled(spec)
    config = LearnConfig(algorithm=algorithm, hidden=(8, 8), batch=ROWS, tau=0.5)
    weights = {}
    for order in ("agents", "phases"):
        team = ReferenceTeam(spec, config, 0, CPU, order)
        team.noise = lambda kind, shape: torch.zeros(shape)
        for _ in range(2):  # targets first differ from the online networks after one update
            team.update(replays, ListSampler(), np.random.default_rng(0), lambda phase: None)
        weights[order] = team.weights()["critics.first"]
    assert not np.allclose(weights["agents"], weights["phases"])
    once = {}
    for order in ("agents", "phases"):
        team = ReferenceTeam(spec, config, 0, CPU, order)
        team.noise = lambda kind, shape: torch.zeros(shape)
        team.update(replays, ListSampler(), np.random.default_rng(0), lambda phase: None)
        once[order] = team.weights()["critics.first"][:, 0]
    assert np.array_equal(once["agents"], once["phases"])


def test_policy_calls_grow_quadratically():
    """Every agent calls every agent's target actor, and gathers N + 1 times."""
    spec = make_spec(3)
    _, replays = filled(spec)
    team = ReferenceTeam(spec, LearnConfig(hidden=(8,), batch=ROWS), 0, CPU)
    calls = {"actor": 0, "gather": 0}

    def count(*_):
        calls["actor"] += 1

    for agent in team.agents:
        agent.target_actor.register_forward_hook(count)

    class Counting(ListSampler):
        def gather(self, buffer, indices):
            calls["gather"] += 1
            return super().gather(buffer, indices)

    phases = []
    team.update(replays, Counting(), np.random.default_rng(0), phases.append)
    assert calls == {"actor": 9, "gather": 12}
    turn = ["mini-batch sampling", "target Q: next action", "target Q: target Q next", "target Q: target Q",
            "Q loss", "P loss", "target update"]  # fmt: skip
    assert phases == 3 * turn


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_state_converts_to_the_engine_and_back(algorithm):
    """Weights, moments and counts, of agents with unequal views."""
    spec = make_spec(4, unequal=True)
    _, replays = filled(spec)
    config = LearnConfig(algorithm=algorithm, hidden=(8, 8), batch=ROWS)
    trained = ReferenceTeam(spec, config, 0, CPU)
    for _ in range(3):
        trained.update(replays, ListSampler(), np.random.default_rng(0), lambda phase: None)
    engine, fresh = make_team(spec, config, 1, CPU), ReferenceTeam(spec, config, 1, CPU)
    engine.load_weights(trained.weights())
    engine.load_optimizer_state(trained.optimizer_state())
    fresh.load_weights(engine.weights())
    fresh.load_optimizer_state(engine.optimizer_state())
    fresh.load_random_state(trained.random_state())
    assert fresh.optimizer_state()["actors.0.step"] == 3
    for team in (fresh, trained):
        team.update(replays, ListSampler(), np.random.default_rng(5), lambda phase: None)
    assert_same(fresh.weights(), trained.weights())
    assert_same(fresh.optimizer_state(), trained.optimizer_state())


def test_actions_equal_those_of_the_engine():
    env = make_env("predator-prey", 3, copies=7, prey="learned")
    observation = env.reset()
    for settings in ({}, {"algorithm": "masac"}, {"algorithm": "masac", "variant": "tf2"}):
        config = LearnConfig(hidden=(8, 8), **settings)
        engine, plain = make_team(env.spec, config, 3, CPU), ReferenceTeam(env.spec, config, 3, CPU)
        np.testing.assert_array_equal(plain.act(observation, explore=False), engine.act(observation, explore=False))
        noisy = plain.act(observation)
        assert noisy.shape == (7, 4, 5)
        np.testing.assert_allclose(noisy.sum(-1), 1, atol=1e-6)


def test_boxes_and_foreign_weights_are_refused():
    spec = make_spec(2)
    box = dataclasses.replace(spec, discrete=False, action_low=-np.ones((2, 3)), action_high=np.ones((2, 3)))
    with pytest.raises(UserError, match="choices only"):
        ReferenceTeam(box, LearnConfig(), 0, CPU)
    team = ReferenceTeam(spec, LearnConfig(hidden=(8,)), 0, CPU)
    other = make_team(make_spec(3), LearnConfig(hidden=(8,)), 0, CPU)
    with pytest.raises(UserError, match=r"lack 'actors.weights.0'"):
        team.load_weights(other.weights())
