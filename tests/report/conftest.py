"""A tiny world to film: bodies move by what they are told, and nothing is random."""

import numpy as np
import pytest

from shoal.envs.base import Entity, EnvSpec, Step

NAVIGATION = (Entity("agent", 0.15), Entity("landmark", 0.05))
CHASE = (Entity("predator", 0.075), Entity("prey", 0.05), Entity("obstacle", 0.2))


class TinyWorld:
    """One copy; each learned agent moves by the first two entries of its action; the rest stands still."""

    copies = 1

    def __init__(self, entities, start, agents, length=5):
        self.entities = tuple(entities)
        self.start = np.array(start, float)  # (K, 2)
        self.length = length
        self.remembers = True  # where its bodies were when an episode ended
        names = tuple(f"agent {i}" for i in range(agents))
        size = 2 + 2 * len(self.entities)
        self.spec = EnvSpec("tiny", names, (size,) * agents, (2,) * agents, discrete=False, episode_length=length)
        self.position = self.start[None].copy()
        self.time = 0

    def observe(self):
        movers = sum(entity.kind in ("agent", "predator", "prey") for entity in self.entities)
        rows = []
        for agent in range(self.spec.agents):
            own = self.position[0, agent]
            others = [i for i in range(movers) if i != agent]
            fixed = list(range(movers, len(self.entities)))
            rows.append(np.concatenate([np.zeros(2), own, (self.position[0, fixed + others] - own).ravel()]))
        return np.array(rows, np.float32)[None]

    def reset(self):
        self.position[0] = self.start
        self.time = 0
        return self.observe()

    def step(self, actions):
        self.position[0, : self.spec.agents] += actions[0, :, :2]
        self.time += 1
        final, ended = self.observe(), self.time == self.length
        reward = np.full((1, self.spec.agents), self.time, np.float32)
        if ended and self.remembers:
            self.final_position = self.position[0].copy()
        observation = self.reset() if ended else final
        none = np.zeros((1, self.spec.agents), bool)
        return Step(observation, reward, none, np.array([ended]), ~none, np.array([ended]), final)


class SelfDrawingWorld:
    """A world without positions that shows a grey picture, lighter with every step."""

    copies = 1

    def __init__(self, height=40, width=60, length=4):
        self.spec = EnvSpec("gym:tiny", ("agent",), (1,), (1,), discrete=False)
        self.shape, self.length, self.time = (height, width, 3), length, 0

    def reset(self):
        self.time = 0
        return np.zeros((1, 1, 1), np.float32)

    def step(self, actions):
        self.time += 1
        ended = np.array([self.time == self.length])
        if ended[0]:
            self.time = 0
        zero, no = np.zeros((1, 1, 1), np.float32), np.zeros((1, 1), bool)
        return Step(zero, np.full((1, 1), -1.0, np.float32), no, ended, ~no, ended, zero)

    def render(self):
        return np.full(self.shape, 40 * self.time, np.uint8)


@pytest.fixture(autouse=True)
def real_pictures(rendered):
    """What is tested here is drawn."""


@pytest.fixture
def navigation():
    """One agent on the left, one landmark five steps of 0.2 to its right."""
    return TinyWorld(NAVIGATION, [(-0.5, 0.0), (0.5, 0.0)], agents=1)


@pytest.fixture
def chase():
    """One predator that starts a step away from a resting prey."""
    return TinyWorld(CHASE, [(-0.3, 0.0), (0.0, 0.0), (0.6, 0.6)], agents=1)


@pytest.fixture
def right():
    """Everyone moves 0.2 to the right."""
    return lambda observation: np.broadcast_to((0.2, 0.0), (*observation.shape[:2], 2))


@pytest.fixture
def self_drawing():
    """Four steps of a grey picture."""
    return SelfDrawingWorld()
