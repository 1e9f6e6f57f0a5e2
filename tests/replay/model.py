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
            metrics=np.zeros((self.copies, 0), np.float32),
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
        for e in range(self.world.copies):
            self.remember(e, self.observation[e], actions, step, e)
        self.observation = step.observation

    def remember(self, copy, observation, actions, step, row):
        """Append a transition to the list of a copy: a row of a step."""
        outcome = (step.reward[row], step.terminated[row], step.alive[row], step.final_observation[row])
        self.lists[copy].append(Transition(observation, actions[row], *outcome))

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


class UnevenModel(Model):
    """The same where every copy is a world of its own and goes at its own pace."""

    def __init__(self, ring: Ring, worlds: list[ToyWorld]):
        self.ring, self.worlds, self.world = ring, worlds, worlds[0]
        self.lists = [[] for _ in worlds]
        self.observations = [None for _ in worlds]

    def chunk(self, copies, time):
        """So many steps of these copies, which begin if they have not."""
        if new := [e for e in copies if self.observations[e] is None]:
            for e in new:
                self.observations[e] = self.worlds[e].observe()
            self.ring.begin(np.concatenate([self.observations[e] for e in new]), new)
        if not time:
            return
        moments = [[(self.worlds[e].act(), self.worlds[e].step()) for e in copies] for _ in range(time)]
        actions = np.array([[action[0] for action, _ in moment] for moment in moments])
        steps = Step(
            *(np.array([[getattr(step, name)[0] for _, step in moment] for moment in moments]) for name in Step._fields)
        )
        self.ring.add_chunk(copies, actions, steps)
        for moment in moments:
            for e, (action, step) in zip(copies, moment, strict=True):
                self.remember(e, self.observations[e][0], action, step, 0)
                self.observations[e] = step.observation

    def restart(self, copies):
        """These copies start a new episode in the middle of their old one, as with an actor that is replaced."""
        for e in copies:
            self.observations[e] = self.worlds[e].observe()
            if self.worlds[e].spec.fixed_length:
                self.worlds[e].age[:] = 0
        self.ring.restart(np.concatenate([self.observations[e] for e in copies]), copies)


def equal(one, other):
    """The same type and the same bits."""
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert one.tobytes() == other.tobytes()


def all_live(ring: Ring):
    """Copies and numbers of every live transition, one mini-batch a copy if all hold as many, else one for all."""
    live = ring.added - ring.oldest
    copies = np.repeat(np.arange(ring.copies), live)
    numbers = np.concatenate([np.arange(*window) for window in zip(ring.oldest, ring.added, strict=True)])
    shape = (ring.copies, -1) if np.ptp(live) == 0 else (1, -1)
    return copies.reshape(shape), numbers.reshape(shape)
