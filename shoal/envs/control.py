"""A task of dm_control's suite as a Gymnasium environment.

Observations are one vector: the task's own, in the order in which it lists them, each flattened. A last step with
discount 0 is a true end, any other last step a time limit.
"""

import math
import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from numpy.typing import NDArray

from shoal.errors import UserError

STEPS = 1000  # of an episode of a task that has no limit of its own
UNLIMITED = 1e9  # bounds beyond this mean that an actuator has no limits: MuJoCo says 1e10
LIMIT = 10.0  # of an actuator that has none of its own, in the LQR tasks; their optimal controller stays below 5
WIDTH, HEIGHT = 320, 240
DRAWN = ("quadruped/escape",)
"""Tasks that need a renderer even if nobody looks: their terrain is a height field, which is sent to it."""


def make_task(name: str, options: dict[str, Any]) -> gymnasium.Env:
    """The task called `domain/task`; to be drawn it needs `render_mode` "rgb_array" and `prepare_rendering`."""
    options = dict(options)
    render_mode = options.pop("render_mode", None)
    os.environ.setdefault("MUJOCO_GL", "egl" if name in DRAWN else "disabled")
    from dm_control import suite

    domain, _, task = name.partition("/")
    if (domain, task) not in suite.ALL_TASKS:
        tasks = [known for of, known in suite.ALL_TASKS if of == domain]
        domains = sorted({of for of, _ in suite.ALL_TASKS})
        known = f"{domain} has {', '.join(tasks)}" if tasks else f"the domains are {', '.join(domains)}"
        raise UserError(f"dm_control has no task '{name}'; {known}.")
    # a seed here as well: some tasks draw a part of their model when they are made, and all copies must be alike
    task_options = {"random": 0, **options.pop("task_kwargs", {})}
    return ControlTask(name, suite.load(domain, task, task_kwargs=task_options, **options), render_mode)


class ControlTask(gymnasium.Env):
    """A dm_control environment spoken to as Gymnasium's."""

    def __init__(self, name: str, env: Any, render_mode: str | None) -> None:
        self._env, self.render_mode = env, render_mode
        limit = env._step_limit
        self.spec = EnvSpec(name, max_episode_steps=math.ceil(limit) if math.isfinite(limit) else STEPS)
        actions = env.action_spec()
        size = sum(int(np.prod(part.shape)) for part in env.observation_spec().values())
        self.observation_space = Box(-np.inf, np.inf, (size,), np.float64)
        low, high = (limited(bound, actions.shape) for bound in (actions.minimum, actions.maximum))
        self.action_space = Box(low, high, dtype=np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float64], dict[str, Any]]:
        if seed is not None:
            self._env.task._random = np.random.RandomState(seed)
        return flat(self._env.reset().observation), {}

    def step(self, action: Any) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        step = self._env.step(action)
        over = step.last() and step.discount == 0
        return flat(step.observation), float(step.reward), bool(over), bool(step.last() and not over), {}

    def render(self) -> Any:
        """The first camera's picture."""
        return self._env.physics.render(HEIGHT, WIDTH, camera_id=0)

    def close(self) -> None:
        self._env.close()


def limited(bound: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """One bound per actuator, within ±`LIMIT` where the task has none."""
    bounds = np.broadcast_to(bound, shape).astype(np.float64)
    return np.where(np.abs(bounds) > UNLIMITED, np.sign(bounds) * LIMIT, bounds)


def flat(observation: dict[str, Any]) -> NDArray[np.float64]:
    """All parts one after the other, in the task's own order."""
    return np.concatenate([np.ravel(part) for part in observation.values()])
