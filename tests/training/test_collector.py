"""Collecting without a learner: who acts and where rows go are the caller's, and the counts are true."""

import subprocess
import sys

import numpy as np
import pytest

from shoal.envs import make_env
from shoal.errors import Diverged
from shoal.replay import Ring
from shoal.replay.normalisation import Normalisation
from shoal.training.collector import Collector


class Constant:
    """Plays the same for ever; the world gets twice of it."""

    def __init__(self, spec, value=0.25):
        self.spec, self.value = spec, value

    def act(self, observation):
        return np.full((*observation.shape[:2], self.spec.action_size), self.value, np.float32)

    def to_world(self, actions):
        return 2 * actions


class Chunk:
    """Keeps what it is given, as an actor would that sends it to a learner."""

    def __init__(self):
        self.first, self.rows = None, []

    def begin(self, observation):
        self.first = observation.copy()

    def add(self, actions, step):
        self.rows.append((actions.copy(), type(step)(*map(np.copy, step))))


def collecting(rows, seed=0):
    env = make_env("cooperative-navigation", 2, copies=3, seed=seed, episode_length=5, stagger=True)
    return Collector(env, Constant(env.spec), rows, Normalisation(env.spec, False, False, 1.0))


def test_collector_counts_episodes_samples_and_phases():
    collector, phases = collecting(Chunk()), []
    ended = [len(collector.step(phases.append)) for _ in range(10)]
    assert phases == ["action selection", "environment", "replay insertion", "other"] * 10
    assert collector.samples == 30 and collector.episodes == sum(ended)
    # three staggered copies: the one at its beginning ends twice, the others once with a whole episode
    assert sum(ended) == 4


def test_chunks_fill_the_ring_as_direct_collection_does():
    chunk = Chunk()
    ring = Ring(collecting(Chunk()).env.spec, 3, 60)
    sent, own = collecting(chunk), collecting(ring)
    for _ in range(12):
        sent.step(lambda phase: None)
        own.step(lambda phase: None)
    far = Ring(own.env.spec, 3, 60)
    far.begin(chunk.first)
    for part in (slice(0, 7), slice(7, 12)):
        actions, steps = zip(*chunk.rows[part], strict=True)
        for copies in ([0, 2], [1]):
            there = type(steps[0])(*(np.array(field)[:, copies] for field in zip(*steps, strict=True)))
            far.add_chunk(copies, np.array(actions)[:, copies], there)
    assert np.all(far.added == 12) and (far.segment(0, 12)["rows"] == ring.segment(0, 12)["rows"]).all()
    played = far.gather([[1]], [[3]]).joint[0, 0, -2 * 5 :]
    assert (played == 0.25).all()  # as played, not as the world took it


def test_state_round_trips():
    one = collecting(Chunk())
    for _ in range(7):
        one.step(lambda phase: None)
    arrays, counters = one.state()
    arrays = {name: array.copy() for name, array in arrays.items()}
    other = collecting(Chunk(), seed=5)
    other.env.load_state({name: np.copy(array) for name, array in one.env.state().items()})
    other.load_state(arrays, counters)
    for _ in range(20):
        assert one.step(lambda phase: None) == other.step(lambda phase: None)
    assert (one.samples, one.episodes) == (other.samples, other.episodes) == (81, one.episodes)
    assert np.array_equal(one.observation, other.observation)


def test_non_finite_actions_are_refused():
    chunk = Chunk()
    collector = collecting(chunk)
    collector.actor.value = np.nan
    with pytest.raises(Diverged, match="actions are not numbers"):
        collector.step(lambda phase: None)
    assert not chunk.rows and collector.samples == 0


def test_collector_needs_no_torch():
    code = "import sys, shoal.training.collector; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
