"""Returns, their two sides and their intervals."""

import numpy as np
import pytest
from scipy import stats

from shoal import make_env
from shoal.commands.console import warnings_as_sentences
from shoal.envs.base import EnvSpec, Step
from shoal.training.evaluation import play, random_act
from shoal.training.result import flat, training_means
from shoal.training.returns import Episode, ReturnTracker, confidence95
from tests.toys import Toy


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10, 200])
def test_confidence_interval_is_students(n):
    values = np.random.default_rng(n).normal(size=n)
    low, high = stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values))
    assert confidence95(values) == pytest.approx((high - low) / 2, rel=0.003)


def test_interval_of_too_few_values_is_not_a_number():
    assert np.isnan(confidence95(np.array([1.0])))


SPEC = EnvSpec("sides", ("p0", "p1", "prey"), (1, 1, 1), (2, 2, 2), True, team=2)


def test_endless_episode_warns(monkeypatch, capsys):
    monkeypatch.setattr("shoal.training.returns.LONG", 3)
    tracker, nothing, flags = ReturnTracker(SPEC, np.ones(2, bool)), np.zeros((2, 3, 1), np.float32), np.ones((2, 3))

    def told(*ended):
        with warnings_as_sentences():
            for _ in range(2):
                tracker.add(Step(nothing, flags, flags, flags, flags, np.array(ended), nothing))
        return capsys.readouterr().err

    assert told(False, True) == ""
    sentence = "An episode of sides has taken 3 steps and there is no limit; set `episode_length`.\n"
    assert told(False, False) == sentence
    assert told(True, True) == "" and ReturnTracker(make_env("predator-prey").spec, np.ones(1, bool))._unlimited is None


def test_team_and_prey_returns_without_shortened_episodes():
    """Two predators and one prey in two copies; the second copy starts in the middle of its episode."""
    tracker = ReturnTracker(SPEC, np.array([True, False]))
    nothing = np.zeros((2, 3, 1), np.float32)
    flags = np.zeros((2, 3), bool)

    def step(rewards, ended):
        ended = np.array(ended)
        figures = 10 * np.array(rewards, np.float32)[:, :1]
        return Step(nothing, np.array(rewards, np.float32), flags, ended, ~flags, ended, nothing, figures)

    assert tracker.add(step([[1, 3, -5], [9, 9, 9]], [False, True])) == []  # shortened: not counted
    assert tracker.add(step([[1, 1, -1], [2, 4, -3]], [True, False])) == [(3.0, -6.0, (2.0, 4.0, -6.0), (10.0,))]
    assert tracker.add(step([[0, 0, 0], [1, 1, 1]], [False, True])) == [(4.0, -2.0, (3.0, 5.0, -2.0), (10.0,))]


def test_returns_by_agent_and_by_group():
    spec = EnvSpec("sides", ("adversary_0", "agent_0", "agent_1"), (1, 1, 1), (2, 2, 2), True, metrics=("goals",))
    episodes = [Episode(1.0, None, (3.0, 1.0, -1.0), (2.0,)), Episode(2.0, None, (5.0, 1.0, 0.0), (4.0,))]
    line = flat(training_means(spec, episodes), "training")
    assert line == {
        "return/agent/adversary_0": 4.0, "return/agent/agent_0": 1.0, "return/agent/agent_1": -0.5,
        "return/group/adversary": 4.0, "return/group/agent": 0.25, "goals": 3.0,
    }  # fmt: skip
    assert flat(training_means(spec, []), "training") == dict.fromkeys(line)


def test_play_returns_the_two_sides_of_a_hunt():
    env = make_env("predator-prey", agents=6, prey="learned", copies=8)
    result = play(env, random_act(env.spec, 0), 40)
    assert result.groups.keys() == {"predator", "prey"} and result.agents.keys() == set(env.spec.agent_names)
    assert result.groups["predator"].mean == pytest.approx(result.mean)
    assert result.groups["predator"].ci95 == pytest.approx(result.ci95)
    assert result.groups["prey"].mean == pytest.approx(result.prey_mean)
    assert result.groups["prey"].mean == pytest.approx(np.mean([result.agents[f"agent_{i}"].mean for i in range(2)]))


def test_figures_of_the_world_are_averaged_over_the_episodes_played():
    env = make_env("predator-prey", agents=6, prey_count=2, copies=8, seed=1)
    result = play(env, lambda observation: np.zeros((8, 6, 5), np.float32), 40)
    mean, ci95 = result.figures["prey_caught"]
    assert 0 < mean < 2 and 0 < ci95 < 1 and result.mean > 10 * mean  # a prey that is caught is touched at least once
    assert play(Toy(agents=2), random_act(Toy(agents=2).spec, 0), 3).figures == {}


def test_play_counts_the_same_number_of_episodes_in_every_copy():
    env = Toy(agents=2, copies=4)
    result = play(env, random_act(env.spec, 0), 10)
    assert result.episodes == 10
    assert result.mean == pytest.approx(1.0, abs=0.4)  # three steps, a third right in each


def test_random_team_is_uniform_over_real_choices():
    spec = EnvSpec("toy", ("a", "b"), (1, 1), (2, 4), True)
    actions = random_act(spec, 0)(np.zeros((20_000, 2, 1), np.float32))
    np.testing.assert_allclose(actions.mean(0), [[0.5, 0.5, 0, 0], [0.25] * 4], atol=0.015)


def test_return_is_the_sum_of_an_agents_rewards():
    env = make_env("cooperative-navigation", agents=3, copies=1, stagger=False, seed=3)
    again = make_env("cooperative-navigation", agents=3, copies=1, stagger=False, seed=3)
    still = np.zeros((1, 3, 5), np.float32)
    again.reset()
    total = sum(again.step(still).reward.mean() for _ in range(25))
    assert play(env, lambda observation: still, 1).mean == pytest.approx(total, rel=1e-5)


def test_random_team_is_uniform_over_its_box():
    low, high = np.array([[-1.0, 0.0]], np.float32), np.array([[3.0, 0.0]], np.float32)
    spec = EnvSpec("toy", ("a",), (1,), (2,), False, action_low=low, action_high=high)
    actions = random_act(spec, 0)(np.zeros((20_000, 1, 1), np.float32))[:, 0]
    assert stats.kstest(actions[:, 0], "uniform", (-1, 4)).pvalue > 1e-3
    assert not actions[:, 1].any()
