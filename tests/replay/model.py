"""A plain memory to hold the ring against: a Python list of self-contained transitions for every copy."""

from typing import NamedTuple

import numpy as np

from shoal.envs.base import EnvSpec, Step
from shoal.replay import Batch, Ring


class Transition(NamedTuple):
    observation: np.ndarray  # (N, O)
    action: np.ndarray  # (N, A)
    reward: np.ndarray  # (N,)
    terminated: np.ndarray  # (N,)
    alive: np.ndarray  # (N,)
    next_observation: np.ndarray  # (N, O)


def make_spec(agents=2, observation=3, action=2, length=None, fixed=False):
    return EnvSpec(
        name="toy",
        agent_names=tuple(f"agent_{n}" for n in range(agents)),
        observation_sizes=(observation,) * agents,
        action_sizes=(action,) * agents,
        discrete=True,
        episode_length=length,
        fixed_length=fixed,
    )


class ToyWorld:
    """Copies that show random numbers and end when told: after `length` steps, staggered, or with a probability."""

    def __init__(self, spec, copies, seed, end_probability=0.0, scale=1.0):
        self.spec, self.copies = spec, copies
        self.rng = np.random.default_rng(seed)
        self.end_probability, self.scale = end_probability, scale
        self.age = self.rng.integers(spec.episode_length, size=copies) if spec.fixed_length else np.zeros(copies, int)

    def observe(self):
        shape = (self.copies, self.spec.agents, self.spec.observation_size)
        return (self.rng.normal(size=shape) * self.scale).astype(np.float32)

    def act(self):
        return self.rng.normal(size=(self.copies, self.spec.agents, self.spec.action_size)).astype(np.float32)

    def step(self):
        self.age += 1
        if self.spec.fixed_length:
            ended = self.age == self.spec.episode_length
        else:
            ended = self.rng.random(self.copies) < self.end_probability
        self.age[ended] = 0
        each = (self.copies, self.spec.agents)
        final = self.observe()
        return Step(
            observation=np.where(ended[:, None, None], self.observe(), final),
            reward=self.rng.normal(size=each).astype(np.float32),
            terminated=self.rng.random(each) < 0.3,
            truncated=ended,
            alive=self.rng.random(each) < 0.7,
            ended=ended,
            final_observation=final,
        )


class Model:
    """Lists of transitions beside a ring, fed with the same steps."""

    def __init__(self, ring: Ring, world: ToyWorld):
        self.ring, self.world = ring, world
        self.lists: list[list[Transition]] = [[] for _ in range(world.copies)]
        self.observation = world.observe()
        ring.begin(self.observation)

    def step(self):
        actions, step = self.world.act(), self.world.step()
        self.ring.add(actions, step)
        for e, transitions in enumerate(self.lists):
            transitions.append(
                Transition(
                    self.observation[e],
                    actions[e],
                    step.reward[e],
                    step.terminated[e],
                    step.alive[e],
                    step.final_observation[e],
                )
            )
        self.observation = step.observation

    def check(self, batch: Batch, rounded=lambda values: values):
        """Everything in the batch is what the lists have at the places it says it is from, to the bit."""
        size = self.world.spec.agents * self.world.spec.observation_size
        for place in np.ndindex(batch.copies.shape):
            wanted = self.lists[batch.copies[place]][batch.transitions[place]]
            equal(batch.joint[place][:size], rounded(wanted.observation.ravel()))
            equal(batch.joint[place][size:], wanted.action.ravel())
            equal(batch.next_joint[place][:size], rounded(wanted.next_observation.ravel()))
            equal(batch.next_joint[place][size:], np.zeros(wanted.action.size, np.float32))
            equal(batch.reward[place], wanted.reward)
            equal(batch.terminated[place], wanted.terminated)
            equal(batch.alive[place], wanted.alive)


def equal(one, other):
    """The same type and the same bits; or nothing at all."""
    if one is None:
        assert other is None
        return
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert one.tobytes() == other.tobytes()


def all_live(ring: Ring):
    """Copies and numbers of every live transition, one mini-batch a copy."""
    live = np.arange(ring.oldest, ring.added)
    return np.repeat(np.arange(ring.copies)[:, None], live.size, axis=1), np.tile(live, (ring.copies, 1))
