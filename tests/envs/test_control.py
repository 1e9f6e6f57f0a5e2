"""Tasks of dm_control's suite: the same numbers as dm_control itself gives, step by step."""

import os

os.environ.setdefault("MUJOCO_GL", "disabled")

import numpy as np
import pytest

from shoal.envs import make_env
from shoal.envs.control import ControlTask
from shoal.envs.parallel import episode_seed
from shoal.errors import UserError

suite = pytest.importorskip("dm_control.suite")


@pytest.mark.parametrize("name", ["humanoid/stand", "fish/upright"])
def test_step_by_step(name):
    """Humanoid's and fish's observations have parts that are single numbers."""
    env = make_env(f"dm:{name}", copies=2, seed=3, stagger=False)
    assert env.spec.episode_length == 1000 and env.spec.agents == 1 and not env.spec.discrete
    plain = suite.load(*name.split("/"))
    plain.task._random = np.random.RandomState(episode_seed(3, 1, 0))
    expected = plain.reset()
    observation = env.reset()
    rng = np.random.default_rng(0)
    for _ in range(30):
        parts = [np.atleast_1d(expected.observation[part]).ravel() for part in plain.observation_spec()]
        assert np.array_equal(observation[1, 0], np.concatenate(parts).astype(np.float32))
        actions = rng.uniform(-1, 1, (2, 1, env.spec.action_size)).astype(np.float32)
        step, expected = env.step(actions), plain.step(actions[1, 0].astype(np.float64))
        assert step.reward[1, 0] == np.float32(expected.reward)
        observation = step.observation


class Ending:
    """A dm_control environment whose third step is its last."""

    def __init__(self, discount):
        from dm_env import specs

        self.discount, self._step_limit = discount, np.inf
        self.action_spec = lambda: specs.BoundedArray((1,), float, -1, 1)
        self.observation_spec = lambda: {"number": specs.Array((), float)}

    def reset(self):
        import dm_env

        self.time = 0
        return dm_env.restart({"number": np.array(0.0)})

    def step(self, action):
        import dm_env

        self.time += 1
        kind = dm_env.StepType.LAST if self.time == 3 else dm_env.StepType.MID
        last = self.time == 3
        return dm_env.TimeStep(kind, 1.0, self.discount if last else 1.0, {"number": np.array(float(self.time))})

    def close(self):
        pass


@pytest.mark.parametrize(("discount", "expected"), [(0.0, (True, False)), (1.0, (False, True))])
def test_discount_zero_is_a_true_end(discount, expected):
    task = ControlTask("toy", Ending(discount), None)
    assert task.spec.max_episode_steps == 1000  # no limit of its own
    task.reset()
    flags = [task.step(np.zeros(1))[2:4] for _ in range(3)]
    assert flags == [(False, False), (False, False), expected]


def test_a_restored_state_continues_bit_identically():
    env, other = (make_env("dm:cartpole/balance", copies=2, seed=seed, episode_length=10) for seed in (1, 2))
    env.reset()
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (40, 2, 1, 1)).astype(np.float32)
    for action in actions[:17]:
        env.step(action)
    other.load_state(env.state())
    for action in actions[17:]:
        assert np.array_equal(env.step(action).observation, other.step(action).observation)


def test_unlimited_actuators_get_bounds():
    """MuJoCo bounds them by 1e10, with which the first random action would end the simulation."""
    env = make_env("dm:lqr/lqr_6_2", copies=1, seed=0)
    assert env.spec.action_low.tolist() == [[-10.0, -10.0]] and env.spec.action_high.tolist() == [[10.0, 10.0]]
    env.reset()
    for sign in (1, -1) * 5:
        assert np.isfinite(env.step(np.full((1, 1, 2), sign * 10.0, np.float32)).reward).all()
    assert make_env("dm:cartpole/balance").spec.action_high.tolist() == [[1.0]]  # its own


def test_episodes_end_at_the_shorter_time_limit():
    def length(**words):
        return make_env("dm:cartpole/balance", **words).spec.episode_length

    assert (length(episode_length=30), length(episode_length=5000)) == (30, 1000)
    assert length(options={"task_kwargs": {"time_limit": 0.055}}) == 6  # of 0.01 seconds, the last one begun
    with pytest.raises(UserError, match="has episodes of 0 steps with these options, but needs at least one"):
        length(options={"task_kwargs": {"time_limit": 0}})


def test_copies_have_the_same_dynamics():
    """The stiffness of LQR's joints is drawn when the task is made, not when an episode begins."""
    env = make_env("dm:lqr/lqr_2_1", copies=2)
    first, second = (world._env._env.physics.model.jnt_stiffness for world in env._worlds)
    assert first.any() and np.array_equal(first, second)


def test_unknown_tasks_are_refused():
    with pytest.raises(UserError, match="dm_control has no task 'cartpole/stand'; cartpole has balance, "):
        make_env("dm:cartpole/stand")
    with pytest.raises(UserError, match="the domains are acrobot, "):
        make_env("dm:cart/balance")
    with pytest.raises(UserError, match="`landmarks` is not a setting of dm:cartpole/balance"):
        make_env("dm:cartpole/balance", landmarks=3)
