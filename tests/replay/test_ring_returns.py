"""Returns of several steps, against brute force over everything that was ever added."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.envs.base import EnvSpec, Step
from shoal.replay import Batch, Returns, Ring, Uniform

O, A = 2, 1


def make_spec(agents, fixed):
    names = tuple(f"agent_{n}" for n in range(agents))
    return EnvSpec("toy", names, (O,) * agents, (A,) * agents, True, episode_length=4, fixed_length=fixed)


class Play:
    """Random episodes with agents that reach true ends, leave without one, and join late; all of it is kept."""

    def __init__(self, rng, copies, agents, fixed):
        self.rng, self.copies, self.agents, self.fixed = rng, copies, agents, fixed
        self.seen = 0  # observations are numbered, so that none is like another
        self.clock = np.arange(copies) % 3  # staggered
        self.present = np.ones((copies, agents), bool)
        self.history = [[] for _ in range(copies)]  # per copy: dictionaries of one step each
        self.observation = self.look()

    def look(self):
        self.seen += 1
        return np.full((self.copies, self.agents, O), self.seen, np.float32) + np.arange(self.agents)[:, None] / 8

    def step(self):
        shape = self.copies, self.agents
        alive = self.present.copy()
        reward = np.float32(self.rng.integers(-8, 9, shape)) * alive
        self.clock += 1
        terminated = np.zeros(shape, bool)
        if self.fixed:
            ended = self.clock == 4
        else:
            terminated = alive & (self.rng.random(shape) < 0.15)
            leaves = alive & (self.rng.random(shape) < 0.1)
            joins = ~alive & (self.rng.random(shape) < 0.2)
            self.present = (alive & ~terminated & ~leaves) | joins
            ended = ~self.present.any(1) | (self.rng.random(self.copies) < 0.1)
        final, actions = self.look(), self.rng.random((*shape, A)).astype(np.float32)
        first = np.where(ended[:, None, None], self.look(), final)
        for e in range(self.copies):
            self.history[e].append(
                {
                    "seen": self.observation[e], "played": actions[e], "reward": reward[e], "after": final[e],
                    "alive": alive[e], "terminated": terminated[e], "ended": bool(ended[e]),
                }
            )  # fmt: skip
        self.clock[ended] = 0
        self.present[ended] = True
        self.observation = first
        return actions, Step(first, reward, terminated, ended, alive, ended, final)


def brute_force(history, t, n_step, discount):
    """Length, next observation, and per agent reward, true end and presence: read off the list of all steps."""
    window = [history[t]]
    while len(window) < n_step and t + len(window) < len(history) and not window[-1]["ended"]:
        last, following = window[-1], history[t + len(window)]
        if any(last["alive"] & ~last["terminated"] & ~following["alive"]):
            break
        window.append(following)
    agents = []
    for n in range(len(history[t]["alive"])):
        own = []
        for step in window:
            own.append(step)
            if step["terminated"][n]:
                break
        reward = sum(discount**k * float(step["reward"][n]) for k, step in enumerate(own))
        last = window[-1]
        agents.append((reward, own[-1]["terminated"][n], last["alive"][n] and not last["terminated"][n]))
    return len(window), window[-1]["after"], agents


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), copies=st.integers(1, 3), agents=st.integers(1, 3), fixed=st.booleans(),
    length=st.integers(1, 40), capacity=st.integers(1, 20), n_step=st.integers(2, 9),
    storage=st.sampled_from(["float32", "float16"]),
)  # fmt: skip
def test_n_step_returns_equal_brute_force(seed, copies, agents, fixed, length, capacity, n_step, storage):
    """Every live transition, whatever has been overwritten, wherever episodes and the ring's rows end."""
    play = Play(np.random.default_rng(seed), copies, agents, fixed)
    ring = Ring(make_spec(agents, fixed), copies, capacity * copies, storage)
    ring.begin(play.observation)
    for _ in range(length):
        ring.add(*play.step())
    live = np.arange(max(0, length - capacity), length)
    chosen, numbers = (axis.reshape(1, -1) for axis in np.meshgrid(np.arange(copies), live))
    batch = ring.gather(chosen, numbers, n_step, 0.5)
    for i, (e, t) in enumerate(zip(chosen[0], numbers[0], strict=True)):
        first, (steps, after, expected) = play.history[e][t], brute_force(play.history[e], t, n_step, 0.5)
        assert batch.steps[0, i] == steps
        assert batch.next_joint[0, i].tolist() == [*after.ravel(), *[0] * agents * A]
        assert batch.joint[0, i].tolist() == [*first["seen"].ravel(), *first["played"].ravel()]
        assert batch.alive[0, i].tolist() == first["alive"].tolist()
        found = zip(batch.reward[0, i], batch.terminated[0, i], batch.next_alive[0, i], strict=True)
        assert [(float(r), bool(end), bool(there)) for r, end, there in found] == expected


def test_one_step_returns_are_the_rewards():
    play = Play(np.random.default_rng(0), 2, 2, False)
    ring = Ring(make_spec(2, False), 2, 60)
    ring.begin(play.observation)
    for _ in range(40):
        ring.add(*play.step())
    one, explicit = (ring.sample(Uniform(), 8, np.random.default_rng(1), **words) for words in ({}, {"n_step": 1}))
    assert isinstance(one, Batch) and isinstance(explicit, Batch)
    assert all(np.array_equal(a, b) for a, b in zip(one, explicit, strict=True))


@pytest.mark.parametrize("minibatches", [1, 3])
def test_arrays_follow_the_number_of_steps(minibatches):
    """One ring serves both kinds, one after the other."""
    play = Play(np.random.default_rng(0), 2, 3, False)
    ring = Ring(make_spec(3, False), 2, 60)
    ring.begin(play.observation)
    for _ in range(20):
        ring.add(*play.step())
    for n_step, kind in ((3, Returns), (1, Batch), (4, Returns)):
        batch = ring.sample(Uniform(), 8, np.random.default_rng(1), minibatches, n_step, 0.9)
        assert isinstance(batch, kind) and batch.reward.shape == (minibatches, 8, 3)
