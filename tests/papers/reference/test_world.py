"""mpe2's world behind our interface does what our own world does, prey included, and can be saved and continued."""

import sys

import numpy as np
import pytest

from shoal import TrainConfig
from shoal.envs import make_env
from shoal.envs.particle import ParticleWorld
from shoal.errors import UserError
from shoal_papers.reference.world import facmac_prey, make_world, random_prey

WORLDS = [
    {"env": "cooperative-navigation", "agents": 3},
    {"env": "cooperative-navigation", "agents": 1},
    {"env": "predator-prey", "agents": 3},
    {"env": "predator-prey", "agents": 6, "prey_count": 3, "obstacles": 1},
    {"env": "predator-prey", "agents": 3, "prey": "learned"},
]


def same_start(theirs, ours):
    """Put our world where mpe2's is."""
    state = theirs.state()
    ours.position[0], ours.velocity[0] = state["position"], state["velocity"]
    return ours.observe()


@pytest.mark.parametrize("settings", WORLDS, ids=str)
@pytest.mark.parametrize("soft", [True, False])
def test_mpe2_world_matches_our_own(settings, soft):
    theirs = make_world(TrainConfig(**settings))
    ours = make_env(settings["env"], copies=1, **{k: v for k, v in settings.items() if k != "env"})
    assert isinstance(ours, ParticleWorld)
    assert theirs.spec.agent_names == ours.spec.agent_names
    np.testing.assert_array_equal(theirs.reset(), same_start(theirs, ours))
    rng = np.random.default_rng(0)
    for t in range(60):  # over two ends of episodes
        assert theirs.episode_step[0] == ours.episode_step[0] == t % 25
        shape = (1, ours.spec.agents, 5)
        actions = rng.dirichlet(np.full(5, 0.3), shape[:2]) if soft else np.eye(5)[rng.integers(5, size=shape[:2])]
        a, b = theirs.step(actions.astype(np.float32)), ours.step(actions.astype(np.float32))
        np.testing.assert_allclose(a.final_observation, b.final_observation, atol=1e-5)
        np.testing.assert_allclose(a.reward, b.reward, atol=1e-4)
        for name in ("terminated", "truncated", "alive", "ended"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        np.testing.assert_array_equal(a.metrics, b.metrics)
        if a.ended[0]:
            np.testing.assert_array_equal(a.observation, same_start(theirs, ours))
        else:
            np.testing.assert_allclose(a.observation, b.observation, atol=1e-5)
    theirs.close()


class Body:
    """What a prey rule looks at."""

    accel, size = 4.0, 0.05

    def __init__(self, x, y):
        self.state = type("State", (), {"p_pos": np.array([x, y])})


def test_facmac_prey_runs_from_its_nearest_predator_and_not_into_another():
    rng = np.random.default_rng(0)
    pushes = np.array([facmac_prey(Body(0, 0), np.array([[0.5, 0.0], [-0.9, 0.0]]), rng) for _ in range(50)])
    assert (np.linalg.norm(pushes, axis=1) <= 1).all() and (pushes[:, 0] < 0).all()
    assert (np.linalg.norm(pushes - [-0.9, 0.0], axis=1) >= 0.125).all()
    crowd = np.stack(np.meshgrid(*[np.linspace(-1.2, 1.2, 20)] * 2), -1).reshape(-1, 2)
    np.testing.assert_array_equal(facmac_prey(Body(0, 0), crowd, rng), 0)


def test_random_prey_pushes_evenly():
    rng = np.random.default_rng(0)
    pushes = np.array([random_prey(Body(0, 0), np.zeros((1, 2)), rng) for _ in range(2000)])
    assert np.abs(pushes).max() <= 4 and np.abs(pushes.mean(0)).max() < 0.2 and (pushes.std(0) > 2.2).all()


@pytest.mark.parametrize("prey", ["scripted", "random", "facmac"])
def test_saved_state_resumes_exactly(prey):
    config = TrainConfig(env="predator-prey", agents=3, prey=prey)
    rng = np.random.default_rng(0)
    actions = rng.dirichlet(np.ones(5), (80, 1, 3)).astype(np.float32)
    world = make_world(config)
    for t in range(37):
        world.step(actions[t])
    state = world.state()
    again = make_world(TrainConfig(env="predator-prey", agents=3, prey=prey, seed=5))
    again.load_state(state)
    for t in range(37, 80):
        for ours, theirs in zip(again.step(actions[t]), world.step(actions[t]), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_seeds_determine_the_starts():
    starts = [make_world(TrainConfig(seed=seed)).reset() for seed in (1, 1, 2)]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rules": "openai"}, "`rules` is 'openai'"),
        ({"env": "gym:CartPole-v1"}, "cooperative-navigation and predator-prey only"),
        ({"landmarks": 5}, "`landmarks` is 5"),
        ({"env": "predator-pray"}, "perhaps you meant predator-prey"),
    ],
)
def test_unsupported_worlds_are_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        make_world(TrainConfig(**settings))


def test_missing_package_names_the_extra(monkeypatch):
    for module in ("mpe2", "mpe2.simple_spread_v3"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"mpe2.* is not installed; run pip install .* '\.\[pettingzoo\]'"):
        make_world(TrainConfig())


def test_state_of_another_world_is_refused():
    state = make_world(TrainConfig(agents=2)).state()
    with pytest.raises(UserError, match="does not fit"):
        make_world(TrainConfig(agents=3)).load_state(state)
