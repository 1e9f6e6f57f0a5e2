"""What a team draws, plays and aims for."""

import dataclasses

import numpy as np
import pytest
import torch

from shoal.algorithms import LearnConfig, make_team
from shoal.algorithms.base import team_bytes
from shoal.envs import make_env
from shoal.errors import UserError
from shoal.replay import Neighbor, Ring, Uniform
from shoal.training.builder import build_parts
from shoal.training.config import TrainConfig
from shoal.training.loop import Training
from tests.toys import Toy

CPU = torch.device("cpu")


def team_of(env, **options):
    return make_team(env.spec, LearnConfig(hidden=(8,), batch=16, **options), 0, CPU)


def filled_ring(env):
    """Twenty steps of random play."""
    ring = Ring(env.spec, env.copies, 1000)
    ring.begin(env.reset())
    for _ in range(20):
        actions = np.eye(3, dtype=np.float32)[env.rng.integers(3, size=(env.copies, env.spec.agents))]
        ring.add(actions, env.step(actions))
    return ring


def always(actors, choice):
    """Make the policies take this choice whatever they see."""
    with torch.no_grad():
        for parameter in actors.parameters():
            parameter.zero_()
        actors.biases[-1][..., choice] = 99


def test_weights_of_another_team_are_refused():
    team, other = team_of(Toy(agents=2)), team_of(Toy(agents=3))
    with pytest.raises(UserError, match="the number of agents or the sizes of the world differ"):
        team.load_weights(other.weights())
    deeper = make_team(Toy(agents=2).spec, LearnConfig(hidden=(8, 8)), 0, CPU)
    with pytest.raises(UserError, match="they are of another algorithm or number of layers"):
        deeper.load_weights(team.weights())


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize(("variant", "choice"), [("online", 2), ("tf2", 0)])
def test_tf2_variant_acts_with_target_policies(variant, choice, explore):
    team = team_of(Toy(), algorithm="masac", variant=variant)
    always(team.actors, 2)
    if variant == "tf2":
        always(team.target_actors, 0)
    played = team.act(np.ones((5, 2, 3), np.float32), explore)
    assert (played.argmax(-1) == choice).all()


@pytest.mark.parametrize(("minibatch", "shape"), [("shared", (16, 12)), ("independent", (3, 16, 18))])
def test_minibatches_are_drawn_as_configured(minibatch, shape):
    """One for all, or one an agent, each drawn for itself."""
    env = Toy(agents=3 if minibatch == "independent" else 2)
    team = team_of(env, minibatch=minibatch)
    batch = team.sample_minibatch(filled_ring(env), Uniform(), np.random.default_rng(0))
    assert tuple(batch.joint.shape) == shape
    if minibatch == "independent":
        assert all(not torch.equal(batch.joint[i], batch.joint[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize(("name", "kind"), [("uniform", Uniform), ("neighbor", Neighbor)])
def test_run_uses_its_configured_sampler(name, kind):
    assert isinstance(Training(TrainConfig(sampler=name, neighbors=2, episodes=50)).learner.sampler, kind)


@pytest.mark.parametrize(("discrete", "target"), [(True, 0.5 * np.log(3)), (False, -2.0)])
def test_default_target_entropy(discrete, target):
    team = team_of(Toy(discrete=discrete), algorithm="masac", learn_entropy=True)
    assert team.target_entropy.flatten().tolist() == pytest.approx([target] * 2)


def test_rollouts_and_updates_have_separate_streams():
    team, other = team_of(Toy()), team_of(Toy())
    team.noise("gumbel", (5,))
    assert torch.equal(team.rollout_noise("gumbel", (5,)), other.rollout_noise("gumbel", (5,)))
    assert not torch.equal(team_of(Toy()).noise("gumbel", (5,)), team_of(Toy()).rollout_noise("gumbel", (5,)))


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_acting_and_learning_use_separate_streams(algorithm):
    """So that a run's play does not depend on how often it learns, nor the other way round."""
    env = Toy()
    team, ring = team_of(env, algorithm=algorithm, others="current"), filled_ring(env)

    def moved(deed):
        """Names of the streams that the deed drew from."""
        before = {name: state.copy() for name, state in team.random_state().items()}
        deed()
        return {name for name, state in team.random_state().items() if not np.array_equal(state, before[name])}

    observation = np.ones((5, 2, 3), np.float32)
    assert moved(lambda: team.act(observation)) == {"exploration"}
    assert moved(lambda: team.act(observation, explore=False)) == set()
    assert moved(lambda: team.update(ring, Uniform(), np.random.default_rng(0), lambda phase: None)) == {"update"}


def test_temperature_of_an_absent_agent_is_unchanged():
    """Who is in no row of the mini-batch learns nothing, its temperature included."""
    env = Toy()
    team = team_of(env, algorithm="masac", learn_entropy=True)
    batch = team.sample_minibatch(filled_ring(env), Uniform(), np.random.default_rng(0))
    weight = torch.full((2, 16), 1 / 16)
    weight[0] = 0.0
    alive = (weight > 0).float()[..., None]
    batch = dataclasses.replace(batch, weight=weight, alive=alive, next_alive=alive)
    before = team.log_temperature.detach().clone()
    team.learn(batch, lambda phase: None)
    assert team.log_temperature[0] == before[0] and team.log_temperature[1] != before[1]


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_memory_of_a_team_is_checked(algorithm, monkeypatch):
    spec, config = make_env("predator-prey", 4).spec, LearnConfig(algorithm=algorithm, hidden=(128, 64))
    team = make_team(spec, config, 0, torch.device("cpu"))
    held = sum(4 * array.size for state in (team.weights(), team.optimizer_state()) for array in state.values())
    assert held < team_bytes(spec, config) < 1.6 * held
    monkeypatch.setattr("shoal.system.memory.free_memory", lambda: 10**9)
    monkeypatch.setattr("shoal.networks.layout.xavier", lambda *_: pytest.fail("a layer was built"))
    with pytest.raises(UserError, match=r"4 agents with hidden layers of 50,000 × 50,000 units needs \d+ GB"):
        make_team(spec, dataclasses.replace(config, hidden=(50_000, 50_000)), 0, torch.device("cpu"))


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "maddpg", "n_step": 3},
        {"algorithm": "masac", "minibatch": "independent"},
        {"algorithm": "d4pg", "update": "torch"},
        {"algorithm": "dqn", "update": "torch"},
    ],
    ids=str,
)
def test_normalising_team_learns_and_plays_as_another_on_normalised_values(options):
    settings = {"hidden": (16,), "batch": 32, "agents": 2, "update": "native", "learning_rate": 0.01, **options}
    plain = build_parts(TrainConfig(**settings))
    parts = build_parts(TrainConfig(**settings, normalize_observations=True, normalize_rewards=True))
    first, rng = parts.env.reset(), np.random.default_rng(0)
    played, norm = [], parts.team.normalisation
    norm.begin(first)
    for _ in range(40):
        actions = rng.random((25, 2, 5), np.float32)
        played.append((actions, parts.env.step(actions)))
        norm.add(played[-1][1])
    deviation = np.sqrt(norm.moments["rewards"].var.item())
    for ring, seen, scale in ((parts.ring, np.asarray, 1), (plain.ring, norm.observed, deviation)):
        ring.begin(seen(first))
        for actions, step in played:
            observed = {name: seen(getattr(step, name)) for name in ("observation", "final_observation")}
            ring.add(actions, step._replace(reward=step.reward / scale, **observed))
    for each in (parts, plain):
        for _ in range(3):
            each.team.update(each.ring, each.sampler, np.random.default_rng(1), lambda phase: None)
    weights = parts.team.weights()
    for name, array in plain.team.weights().items():
        np.testing.assert_allclose(weights[name], array, atol=1e-4, err_msg=name)
    assert {name.split(".")[0] for name in weights.keys() - plain.team.weights().keys()} == {"statistics"}
    seen = played[-1][1].observation
    plain.team.load_weights(weights)
    np.testing.assert_allclose(
        parts.team.act(seen, explore=False), plain.team.act(norm.observed(seen), explore=False), atol=1e-5
    )


def test_learning_rate_schedules():
    """At the start, after a quarter of the run, at its end, and where copies ended a few episodes more."""
    for name, expected in (("constant", [1, 1, 1, 1]), ("linear", [1, 0.75, 0, 0])):
        config = LearnConfig(learning_rate_schedule=name)
        assert [config.learning_rate_factor(done) for done in (0, 0.25, 1, 1.1)] == expected
    cosine = LearnConfig(learning_rate_schedule="cosine")
    for done in (0, 0.25, 0.5, 1):
        assert cosine.learning_rate_factor(done) == pytest.approx((1 + np.cos(np.pi * done)) / 2)
