"""Environments that misbehave after some steps: they hang, leak, or print. Imported by the processes of a soak."""

import os
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Faulty(gymnasium.Env):
    """Episodes of ten steps; `fault` is called with every step from number `at` on."""

    def __init__(self, at=200, render_mode=None):
        self.observation_space, self.action_space = spaces.Box(-1, 1, (3,)), spaces.Discrete(3)
        self.render_mode, self.at, self.steps = render_mode, at, 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.time, self.steps = self.time + 1, self.steps + 1
        if self.steps >= self.at:
            self.fault()
        seen = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return seen, float(seen[int(action)]), False, self.time == 10, {}

    def fault(self):
        """Nothing is wrong."""


class Hanging(Faulty):
    def fault(self):
        time.sleep(3600)


KEPT = []


class Leaking(Faulty):
    def fault(self):
        KEPT.append(np.ones(2**20))


class Printing(Faulty):
    def fault(self):
        print("\x1b[31mlook at me" * 50)
        os.write(1, b"and at me\n" * 50)  # as native code does
