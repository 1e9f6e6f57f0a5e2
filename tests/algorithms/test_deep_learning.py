"""D4PG and DQN solve worlds whose best play is known, and their exploration is what it is said to be."""

import numpy as np
import pytest
import torch

from shoal.algorithms import LearnConfig, make_team
from shoal.errors import UserError
from shoal.quantization.qat import Qat
from shoal.replay import Uniform
from tests.algorithms.test_learning import learn, mean_reward
from tests.algorithms.test_oracle import make_spec
from tests.algorithms.test_team import filled_ring
from tests.toys import Constant, Toy

CPU = torch.device("cpu")
BOUNDS = {"v_min": -4.0, "v_max": 4.0, "target_period": 10, "learning_rate": 0.01}


@pytest.mark.parametrize("options", [{}, {"minibatch": "independent", "layer_norm": True}], ids=str)
def test_d4pg_learns_choices(options):
    """Best: every agent matches its context, reward 1 each; random play gets 1/3."""
    team, _ = learn(Toy(agents=2), 300, algorithm="d4pg", atoms=21, n_step=2, **BOUNDS, **options)
    assert mean_reward(team, Toy(agents=2, seed=9)) > 0.95


def test_d4pg_learns_boxes():
    """Best: 0, at (+-0.5, 0) by context; random play gets about -0.9."""
    toy = Toy(agents=2, discrete=False)
    team, _ = learn(toy, 400, algorithm="d4pg", atoms=31, n_step=1, exploration_noise=0.3, **BOUNDS)
    assert mean_reward(team, Toy(agents=2, discrete=False, seed=9)) > -0.05


@pytest.mark.parametrize("options", [{}, {"double": False, "minibatch": "independent", "n_step": 1}], ids=str)
def test_dqn_learns(options):
    team, _ = learn(Toy(agents=2), 250, **{"algorithm": "dqn", "target_period": 10, "epsilon": 0.5} | options)
    assert mean_reward(team, Toy(agents=2, seed=9)) > 0.95


@pytest.mark.parametrize(("terminates", "worth"), [(False, 10.0), (True, 1.45)])
@pytest.mark.parametrize("algorithm", ["d4pg", "dqn"])
def test_truncation_bootstraps_and_termination_does_not(algorithm, terminates, worth):
    """Reward 1 a step, discount 0.9, returns of 3 steps in episodes of 2: worth 10 where a time limit cuts them; at a
    true end the second step's return is 1 and the first one's 1.9, with the same observation: 1.45."""
    env = Constant(agents=2, length=2, terminates=terminates)
    options = {"v_min": 0.0, "v_max": 20.0, "atoms": 21} if algorithm == "d4pg" else {}
    options |= {"learning_rate": 0.01, "tau": 0.1, "clip": 0.0, "n_step": 3}
    team, _ = learn(env, 300, algorithm=algorithm, **options)
    joint = torch.ones(1, 2 * 3 + 2 * 3)
    joint[:, 6:] = torch.tensor([1.0, 0, 0, 1, 0, 0])
    with torch.no_grad():
        if algorithm == "d4pg":
            values = (team.critics(joint)[:, 0].softmax(-1) * team.atoms).sum(-1)
        else:
            values = team.actors(torch.ones(2, 1, 3))[..., 0]
    assert values.numpy() == pytest.approx(worth, rel=0.25)


def team_of(**options):
    return make_team(Toy().spec, LearnConfig(algorithm="dqn", hidden=(8,), **options), 0, CPU)


def test_epsilon_is_the_fraction_of_random_choices():
    team = team_of(epsilon=0.3)
    observation = np.tile(np.eye(3, dtype=np.float32)[None, :2], (20_000, 1, 1))
    greedy, played = team.act(observation, explore=False), team.act(observation)
    assert set(np.unique(played)) == {0.0, 1.0} and (played.sum(-1) == 1).all()
    assert (played * greedy).sum(-1).mean() == pytest.approx(0.7 + 0.3 / 3, abs=0.01)
    assert played.mean(0).min() > 0.09  # each choice gets its tenth


def test_epsilon_decays_with_the_samples():
    team = team_of(epsilon=0.1, epsilon_decay=1000)
    found = []
    for samples in (0, 500, 1000, 5000):
        team.progress(samples)
        found.append(team.exploration)
    assert found == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert team_of().exploration == 0.05


def test_padded_choices_are_never_played():
    spec = make_spec(3, discrete=True, unequal=True)
    team = make_team(spec, LearnConfig(algorithm="dqn", hidden=(8,), epsilon=1.0), 0, CPU)
    with torch.no_grad():
        team.actors.biases[-1].fill_(-5.0)  # below the 0 of padding
    seen = np.random.default_rng(0).random((2000, 3, spec.observation_size), np.float32)
    for explore in (True, False):
        played = team.act(seen, explore)
        assert not played[:, ~spec.action_mask].any() and (played.sum(-1) == 1).all()


def test_targets_are_copied_once_in_a_period():
    env = Toy()
    team = make_team(env.spec, LearnConfig(algorithm="dqn", hidden=(8,), batch=16, target_period=3), 0, CPU)
    ring, rng = filled_ring(env), np.random.default_rng(0)
    equal = []
    for _ in range(6):
        team.update(ring, Uniform(), rng, lambda phase: None)
        equal.append(torch.equal(team.target_actors.weights[0], team.actors.weights[0]))
    assert equal == [False, False, True, False, False, True]


def test_boxes_are_refused():
    with pytest.raises(
        UserError, match="`algorithm=dqn` supports one choice per agent, but the actions of toy are boxes"
    ):
        make_team(Toy(discrete=False).spec, LearnConfig(algorithm="dqn"), 0, CPU)


def test_distributional_critics_can_be_quantized():
    env = Toy()
    team = make_team(env.spec, LearnConfig(algorithm="d4pg", hidden=(8, 8), batch=16, layer_norm=True), 0, CPU)
    qat = Qat(team.networks, 8, delay=0.0, targets=team.targets)
    ring, rng = filled_ring(env), np.random.default_rng(0)
    losses = [team.update(ring, Uniform(), rng, lambda phase: None) for _ in range(3)][-1]
    assert all(np.isfinite(loss).all() for loss in losses.values())
    assert set(qat.layers) == {
        "critics.first",
        *(f"critics.rest.{k}" for k in (0, 1)),
        *(f"actors.{k}" for k in range(3)),
    }
    assert all(layer.seen > 0 for layer in qat.layers.values())
