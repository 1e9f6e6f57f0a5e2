"""Hand-written controllers: what they play is legal and near the best that is known."""

import itertools

import numpy as np
import pytest

from shoal import TrainConfig
from shoal.envs import make_env
from shoal.envs.controllers import MOST_AGENTS, assignment, controllers
from shoal.training.evaluation import evaluate_controllers, play


def test_assignment_is_as_cheap_as_the_best_of_all_permutations():
    rng = np.random.default_rng(0)
    places, landmarks = rng.uniform(-1, 1, (2, 200, 5, 2))
    cost = np.square(places[:, :, None] - landmarks[:, None]).sum(-1)
    goal = assignment(cost)
    every = np.array(list(itertools.permutations(range(5))))
    best = cost[:, np.arange(5), every].sum(-1).min(1)
    paid = np.take_along_axis(cost, goal[..., None], 2).sum((1, 2))
    assert (np.sort(goal) == np.arange(5)).all() and (paid > best - 1e-9).all()
    assert paid.mean() < 1.02 * best.mean() and np.mean(paid < best + 1e-9) > 0.8


@pytest.mark.parametrize(("agents", "landmarks"), [(1, 1), (4, 2), (2, 4)])
def test_as_many_pairs_as_there_can_be(agents, landmarks):
    goal = assignment(np.random.default_rng(1).random((50, agents, landmarks)))
    for row in goal:
        taken = row[row >= 0]
        assert len(taken) == len(set(taken)) == min(agents, landmarks)


def test_agents_reach_their_landmarks_and_stop():
    for rules, least in {"openai": -113, "mpe2": -7.5}.items():
        played = evaluate_controllers(TrainConfig(rules=rules), 200, 1)["greedy_assignment"]
        assert played.mean > least and played.figures["landmarks_covered"].mean > 2.8
        world = make_env("cooperative-navigation", 1, copies=50, rules=rules, stagger=False)
        (controller,) = controllers(world).values()
        for _ in range(24):
            actions = controller(world)
            assert actions.dtype == np.float32 and actions.min() > -1e-6
            np.testing.assert_allclose(actions.sum(-1), 1, atol=1e-6)  # no harder than a policy
            world.step(actions)
        assert np.abs(world.velocity[:, 0]).max() < 0.02
        assert np.abs(world.position[:, 0] - world.position[:, 1]).max() < 0.02


def test_anticipating_chasers_catch_more():
    for rules in ("openai", "mpe2"):
        config = TrainConfig(env="predator-prey", agents=6, rules=rules)
        chasers, anticipating = evaluate_controllers(config, 200, 1).values()
        assert 15 < chasers.mean < 35 < anticipating.mean < 60


def test_worlds_without_controllers():
    for settings in ({"env": "gym:CartPole-v1"}, {"env": "predator-prey", "prey": "learned"}, {"agents": 49}):
        assert evaluate_controllers(TrainConfig(**settings), 1, 1) == {}
    assert MOST_AGENTS == 48


def test_the_same_initial_states_as_a_team():
    config = TrainConfig(agents=2)
    world = make_env("cooperative-navigation", 2, copies=30, seed=7, stagger=False)
    (controller,) = controllers(world).values()
    assert evaluate_controllers(config, 30, 7)["greedy_assignment"] == play(world, lambda _: controller(world), 30)
