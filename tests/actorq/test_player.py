"""Players: what is deserialized is timed, codes are not deserialized."""

import dataclasses
import itertools

import pytest

from shoal.actorq import player as module
from shoal.actorq.broadcast import numbers_of
from shoal.actorq.player import EnginePlayer, Play
from shoal.inference.policy import Exploration
from tests.actorq.test_transport import policy


@pytest.mark.parametrize(
    ("engine", "precision", "bits", "ticks"), [("numba", "float32", 8, 1), ("native", "int8", 8, 0)]
)
def test_the_time_of_deserializing(engine, precision, bits, ticks, monkeypatch):
    subject = dataclasses.replace(policy(), exploration=Exploration())
    play = Play(engine, precision, bits, 1)
    player = EnginePlayer(subject, play, 0)
    clock = itertools.count()
    monkeypatch.setattr(module.time, "perf_counter", lambda: float(next(clock)))
    assert player.load(play.payload(subject, numbers_of(subject))) == ticks
