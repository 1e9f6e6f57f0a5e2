"""Actors killed again and again: the run completes."""

import dataclasses
import os
import random
import signal
import time

import pytest

from shoal import train
from tests.actorq.test_system import ACTORS, Meddler

EVERY = 10.0
"""Seconds between two kills."""
LENGTH = 120.0
"""Seconds with kills."""


class Killer(Meddler):
    """Kills a random actor every so many seconds, and lets the run end after the last."""

    def __init__(self):
        super().__init__(None)
        self.rng, self.start, self.killed = random.Random(0), time.monotonic(), 0

    def advance(self, training):
        self.training = training
        passed = time.monotonic() - self.start
        if passed < LENGTH and passed >= EVERY * (self.killed + 1):
            post = training.collector.system.posts[self.rng.randint(1, 3)]
            os.kill(post.child.process.pid, signal.SIGKILL)
            self.killed += 1
        if passed > LENGTH:
            object.__setattr__(training.config, "episodes", training.episodes)


@pytest.mark.slow
def test_actors_killed_every_ten_seconds_for_two_minutes(tmp_path):
    killer = Killer()
    config = dataclasses.replace(ACTORS, actors=3, episodes=10**8, capacity=10_000, out=str(tmp_path / "run"))
    result = train(config, observer=killer)
    assert killer.killed >= 10 and result.finished
    assert killer.training.collector.system.replaced == killer.killed
    assert killer.training.collector.metrics()["actors/refused"] == 0
