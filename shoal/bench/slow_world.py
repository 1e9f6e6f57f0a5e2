"""A slow environment for `shoal bench workers`; imports no torch, because every worker process imports it."""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray


class SlowWorld(gymnasium.Env):
    """One agent; a step takes this many seconds of the processor, or of waiting for something else."""

    def __init__(self, seconds: float = 0.002, waits: bool = False) -> None:
        self.observation_space, self.action_space = Box(-10, 10, (8,)), Discrete(2)
        self.seconds, self.waits, self._steps = seconds, waits, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Play an action for an episode of 100 steps."""
        self._steps += 1
        if self.waits:
            time.sleep(self.seconds)
        else:
            end = time.thread_time() + self.seconds  # of this thread on a processor, however busy the machine is
            while time.thread_time() < end:
                pass
        return self._seen(), float(action), False, self._steps == 100, {}

    def _seen(self) -> NDArray[np.float32]:
        return self.np_random.uniform(-1, 1, 8).astype(np.float32)
