"""A world that counts: every observation says in which episode and at which step it was made."""

import gymnasium
import numpy as np


class Counting(gymnasium.Env):
    """Episodes of 1 to 9 steps with a random number of their own; the observation is that number, step and last action.

    What follows (episode, step, ·) is (episode, step + 1, action), whoever stored it and however often it was copied.
    """

    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.age = self.np_random.integers(1 << 24), 0
        self.length = self.np_random.integers(1, 10)
        return self.seen(0), {}

    def step(self, action):
        self.age += 1
        return self.seen(action), float(self.age), bool(self.age == self.length), False, {}

    def seen(self, action):
        return np.array([self.episode, self.age, action], np.float32)


gymnasium.register("Counting-v0", Counting, max_episode_steps=9)


def check(observation, action, reward, terminated, after):
    """Refuse transitions that cannot have happened; (B, ·) each, of one agent."""
    assert (after[:, 0] == observation[:, 0]).all(), "the next observation is of another episode"
    assert (after[:, 1] == observation[:, 1] + 1).all(), "the next observation is of another step"
    assert (after[:, 1] == reward).all() and (after[:, 2] == action.argmax(axis=1)).all(), "parts of two transitions"
    assert (observation[:, 1] < 9).all() and terminated.any()
