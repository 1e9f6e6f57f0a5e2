"""Train and evaluate in your own environment: a Gymnasium class, defined in this script.

    python examples/own_environment.py --episodes 300

Put the class into a module and every command can use it as well: `shoal train --env gym:MODULE:Parking`.
"""

import gymnasium
import numpy as np
import tyro
from gymnasium.spaces import Box

from shoal import TrainConfig, load, train


class Parking(gymnasium.Env):
    """A car on a line has to stop at the origin; it sees its position and speed, and sets its acceleration."""

    def __init__(self):
        self.observation_space = Box(-2, 2, (2,), np.float32)
        self.action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.speed = self.np_random.uniform(-1, 1, 2)
        return self.observed(), {}

    def step(self, action):
        self.speed = np.clip(self.speed + 0.2 * action[0], -1, 1)
        self.position = np.clip(self.position + 0.2 * self.speed, -2, 2)
        reward = -float(self.position**2 + 0.1 * self.speed**2)
        return self.observed(), reward, False, False, {}  # the time limit comes from episode_length

    def observed(self):
        return np.array([self.position, self.speed], np.float32)


def main(episodes: int = 300, evaluated: int = 100, out: str | None = None) -> tuple[float, float]:
    """Mean returns of the trained and of a random driver.

    Args:
        episodes: training episodes.
        evaluated: episodes of each evaluation.
        out: run folder; None: a new one under runs/.

    """
    config = TrainConfig(
        env=Parking,
        episode_length=50,
        episodes=episodes,
        copies=10,
        batch=128,
        warmup=1_000,
        update_every=10,
        learning_rate=1e-3,
        evaluate_episodes=0,
        out=out,
    )
    result = train(config)  # with one agent MADDPG is DDPG
    policy = load(result.run, env=Parking)  # a class in a script cannot be imported by name: pass it again
    returns = policy.evaluate(evaluated).mean, policy.evaluate_random(evaluated).mean
    print("return: trained {:.2f}, random {:.2f}; learning curve in {}".format(*returns, result.run))
    return returns


if __name__ == "__main__":
    tyro.cli(main)
