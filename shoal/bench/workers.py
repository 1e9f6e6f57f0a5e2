"""`shoal bench workers`: a slow environment in worker processes beside the same in one process.

A step of one copy takes 2 ms, of computation or of waiting (a simulator in another process, a network). Both sides
play the same 16 copies with the same random actions, and take turns.
"""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from shoal.bench import Record
from shoal.bench.timing import interleaved
from shoal.envs import make_env
from shoal.results import Column

NAME = "gym:shoal.bench.workers:SlowWorld"
COPIES, SECONDS = 16, 0.002
COLUMNS = {
    "steps_per_second": Column("in workers", "steps/s"),
    "one_process_steps_per_second": Column("in one process", "steps/s"),
}
PARTS = (("computes", 2), ("waits", 2), ("waits", 8))


def run(part: tuple[str, int], seconds: float = 3.0) -> list[Record]:
    """A kind of step and a number of workers."""
    kind, workers = part
    options = {"seconds": SECONDS, "waits": kind == "waits"}
    sides = [make_env(NAME, copies=COPIES, options=options, workers=count) for count in (workers, 1)]
    for env in sides:
        env.reset()
    shared, alone = interleaved([lambda env=env: env.step(env.sample_actions()) for env in sides], seconds)  # type: ignore[misc]
    for env in sides:
        env.close()
    return [
        {
            "step": f"{kind} for {1000 * SECONDS:g} ms",
            "workers": workers,
            "steps_per_second": COPIES / shared,
            "one_process_steps_per_second": COPIES / alone,
            "ratio": alone / shared,
        }
    ]


class SlowWorld(gymnasium.Env):
    """One agent; a step takes this many seconds of the processor, or of waiting for something else.

    Every worker process imports this module, which imports no torch.
    """

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
