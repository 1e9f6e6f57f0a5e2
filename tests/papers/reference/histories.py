"""The same history in the engine's ring and in the reference's lists."""

import numpy as np

from shoal.envs.base import EnvSpec, Step
from shoal.replay import Ring
from shoal_papers.reference.replay import Replays


def make_spec(agents, unequal=False):
    observations = tuple(4 + (i % 2 if unequal else 0) for i in range(agents))
    choices = tuple(3 + (i % 3 if unequal else 0) for i in range(agents))
    names = tuple(f"agent_{i}" for i in range(agents))
    return EnvSpec("toy", names, observations, choices, True, soft_actions=True, episode_length=5, fixed_length=True)


def filled(spec, steps=60, capacity=40):
    """The engine's ring of one copy and the reference's lists after the same random steps; both have wrapped."""
    rng = np.random.default_rng(0)
    ring, replays = Ring(spec, 1, capacity), Replays(spec, capacity)
    real = np.arange(spec.observation_size) < np.array(spec.observation_sizes)[:, None]

    def see():
        return (rng.normal(size=(1, *real.shape)) * real).astype(np.float32)

    first = see()
    ring.begin(first)
    replays.begin(first)
    alive, nobody = np.ones((1, spec.agents), bool), np.zeros((1, spec.agents), bool)
    for t in range(1, steps + 1):
        actions = (rng.random((1, spec.agents, spec.action_size)) * spec.action_mask).astype(np.float32)
        ended = np.array([t % spec.episode_length == 0])
        last = see()
        reward = rng.normal(size=(1, spec.agents)).astype(np.float32)
        step = Step(see() if ended[0] else last, reward, nobody, ended, alive, ended, last)
        ring.add(actions, step)
        replays.add(actions, step)
    return ring, replays
