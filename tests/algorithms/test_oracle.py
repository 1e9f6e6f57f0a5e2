"""The stacked update equals a plain loop over agents: weights after five updates.

In float32 to 1e-5, as a user gets them; in float64 to 1e-9, where rounding can hide no mistake.
"""

import itertools
import random

import numpy as np
import pytest
import torch

from shoal.algorithms import LearnConfig, make_team
from shoal.algorithms.minibatch import as_tensors
from shoal.envs.base import EnvSpec
from shoal.replay import Batch
from tests.algorithms.plain import Plain, actor_nets, critic_nets, numpy_noise, precision_of_networks

CPU = torch.device("cpu")
ROWS, UPDATES = 32, 5
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-9}


def make_spec(n, discrete, fixed=True, soft=True, unequal=False):
    obs = tuple(4 + (i % 2 if unequal else 0) for i in range(n))
    act = tuple(3 + (i % 3 if unequal else 0) for i in range(n))
    a = max(act)
    real = np.arange(a) < np.array(act)[:, None]
    box = None if discrete else real.astype(np.float32)
    return EnvSpec(
        "toy", tuple(f"agent_{i}" for i in range(n)), obs, act, discrete, soft_actions=soft and discrete,
        action_low=None if box is None else -box, action_high=box, episode_length=25, fixed_length=fixed,
    )  # fmt: skip


def make_batch(rng, spec, minibatches, precision=np.float32):
    n, o, a = spec.agents, spec.observation_size, spec.action_size
    real_obs = (np.arange(o) < np.array(spec.observation_sizes)[:, None]).reshape(-1)
    real = np.concatenate([real_obs, spec.action_mask.reshape(-1)])
    shape = (minibatches, ROWS)
    joint = (rng.normal(size=(*shape, n * (o + a))) * real).astype(precision)
    next_joint = (rng.normal(size=(*shape, n * (o + a))) * real).astype(precision)
    next_joint[..., n * o :] = 0
    reward = rng.normal(size=(*shape, n)).astype(precision)
    alive = np.ones((*shape, n), bool) if spec.fixed_length else rng.random((*shape, n)) < 0.8
    ended = alive & (rng.random((*shape, n)) < (0.0 if spec.fixed_length else 0.2))
    if not spec.fixed_length:  # who is not there shows and plays zeros
        joint[..., : n * o] *= np.repeat(alive, o, -1)
        joint[..., n * o :] *= np.repeat(alive, a, -1)
    indices = np.zeros(shape, np.int64)
    return Batch(joint, next_joint, reward, ended, alive, indices, indices)


def agree(spec, config, precision=np.float64, seed=0):
    """Run both five times on the same batches and noise, and compare every weight."""
    with precision_of_networks(precision):
        team = make_team(spec, config, seed, CPU)
    plain = Plain(team)
    rng = np.random.default_rng(seed)
    m = 1 if config.minibatch == "shared" else spec.agents
    for _ in range(UPDATES):
        batch = make_batch(rng, spec, m, precision)
        drawn = []

        def noise(kind, shape, drawn=drawn):
            drawn.append(numpy_noise(rng, kind, shape, precision))
            return drawn[-1]

        team.noise = noise
        copy = Batch(*(array.copy() for array in batch))
        losses = team.learn(as_tensors(copy, spec, config.discount, CPU), lambda phase: None)
        assert all(loss.dtype == team.critics.first.dtype for loss in losses.values())
        plain.update(batch, *sort_noise(drawn, spec, config, m))
    compare(team, plain, TOLERANCE[precision])


def sort_noise(drawn, spec, config, minibatches):
    """What the team drew, by its use: next actions, online entropy, redrawn actions, own actions."""
    boxes, masac = not spec.discrete, config.algorithm == "masac"
    draws = masac or not boxes  # deterministic policies draw nothing
    uses = [
        draws,
        masac and config.variant == "tf2" and boxes,  # the entropy of choices is exact
        draws and config.others == "current",
        draws,
    ]
    assert len(drawn) == sum(uses)
    every, own = (torch.zeros(spec.agents, m * ROWS, spec.action_size) for m in (minibatches, 1))
    queue = iter(drawn)
    return [next(queue) if use else zeros for use, zeros in zip(uses, [every, own, every, own], strict=True)]


def compare(team, plain, tolerance):
    """Every weight of every network, online and target, and the temperatures."""
    stacked = [actor_nets(team.actors), critic_nets(team.critics), critic_nets(team.target_critics)]
    looped = [plain.actors, plain.critics, plain.target_critics]
    if "target_actors" in team.networks:
        stacked.append(actor_nets(team.target_actors))
        looped.append(plain.target_actors)
    for ours, theirs in zip(stacked, looped, strict=True):
        for a, b in zip(flat(ours), flat(theirs), strict=True):
            torch.testing.assert_close(a, b, atol=tolerance, rtol=0)
    if "temperature" in team.networks:
        ours = team.log_temperature.detach()[:, 0]
        torch.testing.assert_close(ours, torch.tensor(plain.log_alpha, dtype=ours.dtype), atol=tolerance, rtol=0)


def flat(nets):
    """All parameters of nested lists of nets; of one that agents share once."""
    nets = itertools.chain.from_iterable(net if isinstance(net, list) else [net] for net in nets)
    return [parameter.detach() for net in dict.fromkeys(nets) for parameter in net.p]


@pytest.mark.parametrize("precision", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 3, 7])
@pytest.mark.parametrize("minibatch", ["shared", "independent"])
@pytest.mark.parametrize("first_layer", ["reuse", "dense"])
@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_update_equals_plain_loop(algorithm, minibatch, first_layer, n, precision):
    config = LearnConfig(algorithm=algorithm, minibatch=minibatch, first_layer=first_layer, hidden=(16, 12))
    agree(make_spec(n, discrete=True), config, precision)


@pytest.mark.parametrize("precision", [np.float32, np.float64])
@pytest.mark.parametrize("minibatch", ["shared", "independent"])
@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_box_actions(algorithm, minibatch, precision):
    config = LearnConfig(algorithm=algorithm, minibatch=minibatch, hidden=(16, 16))
    agree(make_spec(3, discrete=False), config, precision)


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
@pytest.mark.parametrize(("share", "critic"), [("actors", "joint"), ("critics", "pooled"), ("all", "joint")])
def test_only_agents_of_one_kind_share(algorithm, share, critic):
    """Of eight agents of six kinds the first and the seventh are alike, and the second and the eighth."""
    spec = make_spec(8, discrete=True, unequal=True)
    assert spec.kinds == (0, 1, 2, 3, 4, 5, 0, 1)
    agree(
        spec,
        LearnConfig(algorithm=algorithm, share=share, critic=critic, hidden=(16, 12), clip=0.05, clip_by="network"),
    )


NUMBERS = [
    {"clip": 0.0},
    {"hidden": (16,)},
    {"hidden": (16, 8, 12)},
    {"hidden": (20, 1)},
    {"hidden": (16, 8, 12), "critic": "pooled", "share": "all"},
    {"tau": 1.0, "discount": 0.5},
    {"tau": 0.0, "discount": 1.0},
    {"logit_penalty": 0.3},
    {"algorithm": "masac", "learn_entropy": True, "target_entropy": 1.0},
    {"algorithm": "masac", "entropy": 0.0},
    {"algorithm": "masac", "entropy": 2.0, "hidden": (16,)},
]
"""Settings that change the numbers of an update."""


@pytest.mark.parametrize("options", NUMBERS, ids=str)
def test_number_options_match_plain_loop(options):
    agree(make_spec(3, discrete=True), LearnConfig(**{"hidden": (16, 16), **options}))


COMMON = {
    "minibatch": ["shared", "independent"],
    "first_layer": ["reuse", "dense"],
    "others": ["ring", "current"],
    "clip_by": ["variable", "network"],
    "gumbel": ["auto", "soft", "straight-through"],
    "share": ["none", "actors", "critics", "all"],
    "critic": ["joint", "pooled"],
    "world": ["soft choices", "choices", "boxes"],
    "unequal": [False, True],  # agents of different sizes, hence padding
    "fixed": [True, False],  # False: agents reach true ends, and some are not there
    "agents": [1, 2, 4],
}
CHOICES = {
    "maddpg": {"algorithm": ["maddpg"], **COMMON},
    "masac": {"algorithm": ["masac"], "variant": ["online", "tf2"], "learn_entropy": [False, True], **COMMON},
}


def triples(combination):
    """Every three settings of a combination."""
    return set(itertools.combinations(combination.items(), 3))


def covering(choices):
    """Combinations, the same every time, such that any three settings meet in one: of thirty, keep the best each time.

    All combinations would be thousands; a mistake that needs four particular settings at once is rare.
    """
    settings = [[(name, value) for value in values] for name, values in choices.items()]
    unmet = {triple for three in itertools.combinations(settings, 3) for triple in itertools.product(*three)}
    draw, kept = random.Random(0), []
    while unmet:
        drawn = [{name: draw.choice(values) for name, values in choices.items()} for _ in range(30)]
        kept.append(max(drawn, key=lambda combination: len(triples(combination) & unmet)))
        unmet -= triples(kept[-1])
    return kept


@pytest.mark.parametrize(
    "combination",
    [combination for choices in CHOICES.values() for combination in covering(choices)],
    ids=lambda combination: "-".join(map(str, combination.values())),
)
def test_combinations_of_options_match_plain_loop(combination):
    options = dict(combination)
    world, unequal, fixed, n = (options.pop(name) for name in ("world", "unequal", "fixed", "agents"))
    spec = make_spec(n, world != "boxes", fixed, soft=world == "soft choices", unequal=unequal)
    agree(spec, LearnConfig(hidden=(16, 12), **options))


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_padding_does_not_change_weights(algorithm, discrete):
    """Three agents of equal sizes beside the same three padded to twice the sizes: same weights, same actions."""
    config = LearnConfig(algorithm=algorithm, hidden=(16, 16))
    spec = make_spec(3, discrete)
    wide = padded(spec)
    n, o, a = spec.agents, spec.observation_size, spec.action_size
    team, big = (make_team(s, config, 5, CPU) for s in (spec, wide))
    rng = np.random.default_rng(1)
    for _ in range(UPDATES):
        batch = make_batch(rng, spec, 1)
        drawn = []

        def noise(kind, shape, drawn=drawn):
            drawn.append(numpy_noise(rng, kind, shape))
            return drawn[-1]

        team.noise = noise
        team.learn(as_tensors(Batch(*(x.copy() for x in batch)), spec, 0.95, CPU), lambda p: None)
        queue = iter(drawn)

        def wide_noise(kind, shape, queue=queue):
            grown = torch.full(shape, 7.0)  # what padding draws must not matter
            grown[..., :a] = next(queue)
            return grown

        big.noise = wide_noise
        joint, next_joint = (widen(x, n, o, a, wide) for x in (batch.joint, batch.next_joint))
        grown = batch._replace(joint=joint, next_joint=next_joint)
        big.learn(as_tensors(grown, wide, 0.95, CPU), lambda p: None)
    observation = rng.normal(size=(9, n, o)).astype(np.float32)
    grown_observation = np.zeros((9, wide.agents, wide.observation_size), np.float32)
    grown_observation[:, :n, :o] = observation
    ours, theirs = team.act(observation, explore=False), big.act(grown_observation, explore=False)
    np.testing.assert_allclose(theirs[:, :n, :a], ours, atol=1e-5)
    assert not theirs[:, :n, a:].any()
    own_first = big.critics.first.detach()[: n * wide.observation_size].view(n, wide.observation_size, -1, 16)
    torch.testing.assert_close(
        own_first[:, :o, :].reshape(n * o, -1, 16)[:, : team.critics.first.shape[1]],
        team.critics.first.detach()[: n * o],
        atol=1e-5, rtol=0,
    )  # fmt: skip


def padded(spec):
    """The same agents with a wider, padded layout (forced by `padded_to`)."""

    class Wide(EnvSpec):
        @property
        def observation_size(self):
            return 2 * max(self.observation_sizes)

        @property
        def action_size(self):
            return 2 * max(self.action_sizes)

        @property
        def action_mask(self):
            return np.arange(self.action_size)[None, :] < np.array(self.action_sizes)[:, None]

        @property
        def padded(self):
            return True

    grow = lambda x: None if x is None else np.pad(x, ((0, 0), (0, x.shape[1])))  # noqa: E731
    return Wide(
        spec.name, spec.agent_names, spec.observation_sizes, spec.action_sizes, spec.discrete, spec.soft_actions,
        grow(spec.action_low), grow(spec.action_high), 0, 25, True,
    )  # fmt: skip


def widen(joint, n, o, a, wide):
    """Joint rows in the padded layout."""
    rows = joint.shape[:2]
    obs = np.zeros((*rows, n, wide.observation_size), np.float32)
    act = np.zeros((*rows, n, wide.action_size), np.float32)
    obs[..., :o] = joint[..., : n * o].reshape(*rows, n, o)
    act[..., :a] = joint[..., n * o :].reshape(*rows, n, a)
    return np.concatenate([obs.reshape(*rows, -1), act.reshape(*rows, -1)], -1)


def test_gradients_reach_only_the_agents_own_networks():
    """Agent 0's reward changes agent 0's weights only: no agent learns from another's reward."""
    spec, config = make_spec(3, True), LearnConfig(hidden=(16, 16))
    results = []
    for bonus in (0.0, 5.0):
        team = make_team(spec, config, 0, CPU)
        rng = np.random.default_rng(2)
        team.noise = lambda kind, shape, rng=rng: numpy_noise(rng, kind, shape)
        batch = make_batch(rng, spec, 1)
        batch.reward[..., 0] += bonus
        team.learn(as_tensors(batch, spec, 0.95, CPU), lambda p: None)
        results.append([flat([net]) for net in actor_nets(team.actors)])
    changed = [any(not torch.equal(a, b) for a, b in zip(x, y, strict=True)) for x, y in zip(*results, strict=True)]
    assert changed == [True, False, False]
