"""Running statistics and normalised mini-batches, beside VecNormalize of Stable-Baselines3 and plain numpy."""

import numpy as np
import pytest

from shoal.envs.base import EnvSpec, Step
from shoal.errors import UserError
from shoal.replay import Ring, Uniform
from shoal.replay.normalisation import Normalisation

COPIES, STEPS = 4, 40


def spec_of(*groups, sizes=(3,), **options):
    names = tuple(f"{group}_{i}" for i, group in enumerate(groups))
    sizes = sizes * len(groups) if len(sizes) == 1 else sizes
    return EnvSpec("toy", names, sizes, (2,) * len(groups), discrete=True, episode_length=10, **options)


def stream(spec, seed=0, leaves=False):
    """First observations, then steps with rewards of different sizes; the last agent may leave in the middle."""
    rng = np.random.default_rng(seed)
    real = np.arange(spec.observation_size) < np.array(spec.observation_sizes)[:, None]  # (N, O)
    shape = (COPIES, spec.agents)

    def observed():
        return (rng.normal([3, -200, 0.01], [1, 50, 1e-3], (*shape, 3)) * real).astype(np.float32)

    first, steps = observed(), []
    for t in range(STEPS):
        alive, terminated = np.ones(shape, np.bool_), np.zeros(shape, np.bool_)
        ended = np.full(COPIES, t % 10 == 9)
        seen = observed()
        if leaves:
            terminated[:, -1], alive[:, -1] = t % 10 == 4, t % 10 <= 4
            seen[:, -1] *= t % 10 < 4 or t % 10 == 9
        final = observed() * alive[..., None] if ended.any() else seen
        reward = (rng.normal(5, 20, shape) * alive).astype(np.float32)
        steps.append(Step(seen, reward, terminated, ended, alive, ended, final))
    return first, steps


def taken(spec, first, steps, discount=0.9):
    """Statistics of a stream."""
    normalisation = Normalisation(spec, True, True, discount)
    normalisation.begin(first)
    for step in steps:
        normalisation.add(step)
    return normalisation


def filled(spec, first, steps):
    ring = Ring(spec, COPIES, COPIES * STEPS)
    ring.begin(first)
    for step in steps:
        ring.add(np.ones((COPIES, spec.agents, 2), np.float32), step)
    return ring


def test_statistics_and_values_are_those_of_vec_normalize():
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    spaces = pytest.importorskip("gymnasium").spaces
    spec = spec_of("agent")
    first, steps = stream(spec)

    class Replayed(vec_env.VecEnv):
        """Gives back the stream, in float64: numpy's sums of float32 are rounded."""

        def reset(self):
            self.steps = iter(steps)
            return first[:, 0].astype(float)

        def step_wait(self):
            step = next(self.steps)
            return step.observation[:, 0].astype(float), step.reward[:, 0].astype(float), step.ended, [{}] * COPIES

        def get_attr(self, name, indices=None):
            return [None] * COPIES

        step_async = close = set_attr = env_method = env_is_wrapped = get_attr

    replayed = Replayed(COPIES, spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
    theirs = vec_env.VecNormalize(replayed, gamma=0.9)
    theirs.reset()
    for _ in steps:
        seen, reward, *_ = theirs.step(np.zeros(COPIES))
    ours = taken(spec, first, steps)
    observations, rewards = ours.moments["observations"], ours.moments["rewards"]
    np.testing.assert_allclose(observations.mean[0], theirs.obs_rms.mean, rtol=1e-9)
    np.testing.assert_allclose(observations.var[0], theirs.obs_rms.var, rtol=1e-9)
    np.testing.assert_allclose(rewards.var[0], theirs.ret_rms.var, rtol=1e-9)
    np.testing.assert_allclose(ours.returns[:, 0], theirs.returns, atol=1e-9)
    np.testing.assert_allclose(ours.observed(steps[-1].observation)[:, 0], seen, atol=2e-5)
    batch = filled(spec, first, steps).gather([[0, 1, 2, 3]], [[STEPS - 1] * 4])
    ours.apply(batch)
    np.testing.assert_allclose(batch.reward[0, :, 0], reward, rtol=1e-6)


@pytest.mark.parametrize("leaves", [False, True])
def test_agents_of_a_kind_share_statistics_and_padding_stays_zero(leaves):
    spec = spec_of("hunter", "hunter", "prey", sizes=(3, 3, 2), fixed_length=not leaves)
    first, steps = stream(spec, 1, leaves)
    normalisation = taken(spec, first, steps)
    norm = normalisation.normaliser
    present = [np.ones_like(first[..., 0], np.bool_), *(step.alive | step.ended[:, None] for step in steps)]
    seen = np.stack([first, *(step.observation for step in steps)])  # (T, E, N, O)
    for agents in ([0, 1], [2]):
        rows = seen[:, :, agents][np.stack(present)[:, :, agents]].astype(np.float64)
        np.testing.assert_allclose(norm.mean[agents], np.tile(rows.mean(0), (len(agents), 1)), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(norm.var[agents], np.tile(rows.var(0), (len(agents), 1)), rtol=1e-2, atol=1e-6)
    raw, made = (filled(spec, first, steps).sample(Uniform(), 64, np.random.default_rng(0)) for _ in range(2))
    normalisation.apply(made)
    for before, after in ((raw.joint, made.joint), (raw.next_joint, made.next_joint)):
        before, after = (rows[0, :, :9].reshape(64, 3, 3) for rows in (before, after))
        expected = norm.apply(before.transpose(1, 0, 2), np.float64).transpose(1, 0, 2)
        zeros = ~before.any(-1)
        assert zeros[:, 2].any() == leaves and not zeros[:, :2].any()
        expected[zeros] = 0
        np.testing.assert_allclose(after, expected, atol=1e-4)
        assert not after[:, 2, 2].any()
    np.testing.assert_array_equal(made.joint[..., 9:], raw.joint[..., 9:])


def test_values_are_clipped_at_ten_deviations():
    spec = spec_of("agent", fixed_length=True)
    first, steps = stream(spec)
    normalisation = taken(spec, first, steps)
    far = np.full((1, 1, 3), 1e6, np.float32) * [1, -1, np.nan]
    np.testing.assert_array_equal(normalisation.observed(far)[0, 0], [10, -10, np.nan])
    assert far[0, 0, 0] == 1e6
    large = steps[0]._replace(reward=np.full((COPIES, 1), -1e9, np.float32))
    batch = filled(spec, first, [large]).gather([[0]], [[0]])
    normalisation.apply(batch)
    assert batch.reward.item() == -10


def test_one_hot_observations_are_refused():
    with pytest.raises(UserError, match="whose observations are one-hot"):
        Normalisation(spec_of("agent", whole_numbers=True), True, False, 0.9)
    assert Normalisation(spec_of("agent", whole_numbers=True), False, True, 0.9).normaliser is None
