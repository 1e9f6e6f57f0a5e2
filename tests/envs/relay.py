"""An environment whose agents come and go by plan."""

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from shoal.envs.parallel import ParallelCopies

OBSERVATION_SIZES = {"scout": 3, "carrier": 1, "guard": 5}
ACTION_SPACES = {"scout": spaces.Discrete(2), "carrier": spaces.Discrete(4, start=1), "guard": spaces.Discrete(3)}
BOXES = {"scout": spaces.Box(-1, 1, (2,)), "carrier": spaces.Box(0, 5, (4,)), "guard": spaces.Box(-2, 0, (3,))}


class Relay(ParallelEnv):
    """Agents come and go by plan; what they see depends on the seed, on the time and on everything played."""

    def __init__(self, plan, limit=9, action_spaces=ACTION_SPACES):
        """`plan` gives each agent (arrives after step, leaves at step, how); how: terminated, truncated or both."""
        self.plan, self.limit, self.action_spaces = plan, limit, action_spaces
        self.possible_agents = list(OBSERVATION_SIZES)
        self.received = []

    def observation_space(self, agent):
        return spaces.Box(-np.inf, np.inf, (OBSERVATION_SIZES[agent],), np.float64)

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        self.random = np.random.default_rng(seed)
        self.time, self.trace = 0, 0.0
        self.agents = [agent for agent in self.possible_agents if self.plan[agent][0] == 0]
        return {agent: self._see(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        assert all(self.action_spaces[agent].contains(action) for agent, action in actions.items())
        self.received.append(actions)
        self.time += 1
        self.trace = np.sin(self.trace + sum(float(np.sum(action)) for action in actions.values()))
        terminated, truncated = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        for agent in self.agents:
            _, leaves, how = self.plan[agent]
            terminated[agent] = leaves == self.time and how in ("terminated", "both")
            truncated[agent] = self.time >= self.limit or (leaves == self.time and how in ("truncated", "both"))
        rewards = {agent: self.random.normal() + self.trace for agent in self.agents}
        gone = [agent for agent in self.agents if terminated[agent] or truncated[agent]]
        come = [agent for agent in self.possible_agents if self.plan[agent][0] == self.time]
        observations = {agent: self._see(agent) for agent in [*self.agents, *come]}
        self.agents = [agent for agent in [*self.agents, *come] if agent not in gone]
        return observations, rewards, terminated, truncated, {agent: {} for agent in observations}

    def _see(self, agent):
        return self.random.normal(size=OBSERVATION_SIZES[agent]) + self.time + self.trace

    def close(self):
        self.received = None


def make(plan, copies=1, limit=9, action_spaces=ACTION_SPACES, seed=3, episode_length=None, stagger=False):
    worlds = [Relay(plan, limit, action_spaces) for _ in range(copies)]
    return ParallelCopies("relay", worlds, seed, episode_length, stagger), worlds


STAY = dict.fromkeys(OBSERVATION_SIZES, (0, 99, "both"))
