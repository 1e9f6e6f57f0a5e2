"""The stacked updates of D4PG and DQN equal a plain loop over agents, to 1e-9 in float64 after five updates."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from shoal.algorithms import LearnConfig, make_team
from shoal.algorithms.minibatch import as_tensors
from shoal.envs.base import random_actions
from shoal.replay import Returns
from tests.algorithms.plain import actor_nets, numpy_noise, precision_of_networks
from tests.algorithms.plain_deep import PlainD4PG, PlainDQN, atom_critic_nets
from tests.algorithms.test_oracle import ROWS, SPACES, UPDATES, flat, make_batch, make_spec

CPU = torch.device("cpu")


def several_steps(rng, batch, spec):
    """The same batch as if its returns were of one to five steps; some who are there now have left at their end."""
    next_alive = batch.alive & ~batch.terminated
    if not spec.fixed_length:
        next_alive &= rng.random(batch.alive.shape) < 0.8
    return Returns(*batch, rng.integers(1, 6, batch.copies.shape), next_alive)


def one_hot_actions(rng, batch, spec):
    """The same batch with legal choices played, as a DQN plays them."""
    n, o, a = spec.agents, spec.observation_size, spec.action_size
    seen = batch.joint[..., : n * o].reshape(-1, n, o)
    batch.joint[..., n * o :] = random_actions(spec, len(seen), rng, seen).reshape(*batch.copies.shape, n * a)
    return batch


def agree(spec, plain_kind, change=lambda rng, batch, spec: batch, n_step=5, **options):
    """Run both on the same batches and noise, and compare every weight."""
    with precision_of_networks(np.float64):
        team = make_team(spec, LearnConfig(hidden=(16, 12), n_step=n_step, gumbel="soft", **options), 0, CPU)
        plain = plain_kind(team)
    team.config.check()
    rng = np.random.default_rng(0)
    for _ in range(UPDATES):
        m = 1 if team.config.minibatch == "shared" else spec.agents
        batch = change(rng, make_batch(rng, spec, m, np.float64), spec)
        if n_step > 1:
            batch = several_steps(rng, batch, spec)
        drawn = []

        def noise(kind, shape, drawn=drawn):
            drawn.append(numpy_noise(rng, kind, shape, np.float64))
            return drawn[-1]

        team.noise = noise
        team.learn(as_tensors(deepcopy(batch), spec, team.config.discount, CPU), lambda phase: None)
        if plain_kind is PlainD4PG:
            zeros = torch.zeros(spec.agents, m * ROWS, spec.action_size)
            plain.update(batch, *(drawn or (zeros, zeros)))
        else:
            plain.update(batch)
    stacked, looped = [actor_nets(team.actors), actor_nets(team.target_actors)], [plain.actors, plain.target_actors]
    if plain_kind is PlainD4PG:
        stacked += [atom_critic_nets(team.critics), atom_critic_nets(team.target_critics)]
        looped += [plain.critics, plain.target_critics]
    for ours, theirs in zip(stacked, looped, strict=True):
        for a, b in zip(flat(ours), flat(theirs), strict=True):
            torch.testing.assert_close(a, b, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("agents", "discrete", "unequal", "fixed", "options"),
    [
        (1, False, False, False, {}),
        (1, False, False, True, {"n_step": 1, "layer_norm": True, "critic_hidden": (10, 14, 6)}),
        (3, False, True, False, {"target_period": 2, "atoms": 7}),
        (3, True, True, False, {"layer_norm": True, "minibatch": "independent"}),
        (3, True, False, True, {"first_layer": "dense", "tau": 0.1, "minibatch": "independent"}),
        (2, False, True, False, {"first_layer": "dense", "layer_norm": True, "v_min": -1.0, "v_max": 4.0}),
        (2, True, True, True, {"n_step": 1, "clip": 0.5, "clip_by": "variable", "critic_hidden": (8,)}),
        (3, True, False, True, {"share": "all", "layer_norm": True}),
        (3, False, False, False, {"share": "critics", "minibatch": "independent", "clip": 0.1}),
        (8, True, True, True, {"share": "all", "clip": 0.1}),
    ],
    ids=str,
)
def test_d4pg_equals_plain_loop(agents, discrete, unequal, fixed, options):
    spec = make_spec(agents, discrete, fixed, unequal=unequal)
    common = {"atoms": 11, "v_min": -2.0, "v_max": 2.0, "learning_rate": 0.01, "target_period": 3}
    agree(spec, PlainD4PG, algorithm="d4pg", **common | options)


@pytest.mark.parametrize(
    ("agents", "unequal", "fixed", "options"),
    [
        (1, False, False, {}),
        (3, True, False, {"double": False}),
        (3, True, True, {"minibatch": "independent", "n_step": 1}),
        (2, True, False, {"minibatch": "independent", "tau": 0.05}),
        (8, True, False, {"share": "actors", "clip": 0.1}),
    ],
    ids=str,
)
def test_dqn_equals_plain_loop(agents, unequal, fixed, options):
    spec = make_spec(agents, True, fixed, unequal=unequal)
    agree(spec, PlainDQN, one_hot_actions, algorithm="dqn", **{"learning_rate": 0.01, "target_period": 2} | options)


@pytest.mark.parametrize("name", SPACES)
def test_d4pg_with_masks_several_choices_and_boxes_beside_choices(name):
    agree(SPACES[name], PlainD4PG, algorithm="d4pg", atoms=7, v_min=-2.0, v_max=2.0, learning_rate=0.01)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("name", [name for name in SPACES if name.startswith("masks")])
def test_dqn_with_masks(name, double):
    agree(SPACES[name], PlainDQN, one_hot_actions, algorithm="dqn", double=double, learning_rate=0.01)


def test_reuse_and_dense_agree_with_atoms_and_layer_norm():
    """In the actors' loss the first layer is computed once and corrected; dense builds every input."""
    spec = make_spec(3, True, unequal=True)
    with precision_of_networks(np.float64):
        team = make_team(spec, LearnConfig(algorithm="d4pg", hidden=(16, 12), layer_norm=True), 0, CPU)
    joint = torch.randn(20, 3 * (5 + 5), dtype=torch.float64)
    results = []
    for dense in (False, True):
        own = torch.rand(3, 20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
        logits = team.critics.of_own_action(joint, own, dense)
        assert logits.shape == (3, 1, 20, 51)
        results.append((logits.detach(), torch.autograd.grad(logits.square().sum(), own)[0]))
    for reuse, dense in zip(*results, strict=True):
        torch.testing.assert_close(reuse, dense, atol=1e-10, rtol=1e-10)
