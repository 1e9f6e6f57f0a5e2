"""Tiny worlds whose best play is known, as vector worlds."""

import numpy as np

from shoal.envs.base import EnvSpec, Step


class Toy:
    """E copies of N agents; each sees a random context, reward depends on it and the actions; episodes of T steps."""

    def __init__(self, agents=2, copies=16, discrete=True, length=3, seed=0, terminates=True):
        self.copies, self.length, self.terminates = copies, length, terminates
        self.rng = np.random.default_rng(seed)
        box = None if discrete else np.ones((agents, 2), np.float32)
        low = None if box is None else -box
        self.spec = EnvSpec(
            "toy", tuple(f"agent_{i}" for i in range(agents)), (3,) * agents, (3 if discrete else 2,) * agents,
            discrete, action_low=low, action_high=box, episode_length=length, fixed_length=not terminates,
        )  # fmt: skip
        self.episode_step = np.zeros(copies, np.int64)

    def reset(self):
        self.context = self.new_context()
        return self.context

    def new_context(self):
        choice = self.rng.integers(3, size=(self.copies, self.spec.agents))
        return np.eye(3, dtype=np.float32)[choice]  # (E, N, 3)

    def reward(self, actions):
        """Choices: 1 for an agent whose choice matches its context. Boxes: minus the squared distance to (±0.5, 0)."""
        if self.spec.discrete:
            return (actions.argmax(-1) == self.context.argmax(-1)).astype(np.float32)
        wanted = np.stack([self.context[..., 0] - 0.5, 0 * self.context[..., 0]], -1)
        return -((actions - wanted) ** 2).sum(-1).astype(np.float32)

    def step(self, actions):
        reward = self.reward(actions)
        self.episode_step += 1
        ended = self.episode_step >= self.length
        self.episode_step[ended] = 0
        final = self.new_context()
        self.context = np.where(ended[:, None, None], self.new_context(), final)
        alive = np.ones(reward.shape, bool)
        terminated = alive & (ended & self.terminates)[:, None]
        truncated = ended & (not self.terminates)
        return Step(self.context, reward, terminated, truncated, alive, ended, final)

    def close(self):
        pass


class Constant(Toy):
    """Reward 1 a step and the same observation whatever anyone does."""

    def new_context(self):
        return np.ones((self.copies, self.spec.agents, 3), np.float32)

    def reward(self, actions):
        return np.ones(actions.shape[:2], np.float32)
