"""Players: what is deserialized is timed, codes are not deserialized."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from shoal.actorq import player as module
from shoal.actorq.broadcast import numbers_of
from shoal.actorq.player import EnginePlayer, Play, make_player
from shoal.algorithms import make_team
from shoal.algorithms.config import LearnConfig
from shoal.envs.base import EnvSpec
from shoal.inference.policy import Exploration
from shoal.quantization.export import from_team
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


@pytest.mark.parametrize(
    ("engine", "precision", "bits"),
    [("torch", "float32", 32), ("numba", "float32", 4), ("onnx", "float32", 16), ("native", "int8", 8)],
)
def test_agents_that_share_an_actor_get_it_once(engine, precision, bits):
    """The same actions as with copies, for a third of the bytes."""
    spec = EnvSpec("toy", ("cat_0", "cat_1", "cat_2"), (5,) * 3, (3,) * 3, True)
    team = make_team(spec, LearnConfig(hidden=(7,), share="actors"), 0, torch.device("cpu"))
    shared = from_team(team)
    play, x = Play(engine, precision, bits, 4), np.random.default_rng(0).normal(size=(4, 3, 5)).astype(np.float32)
    actions, sizes = [], []
    for subject in (shared, shared.unshared()):
        payload = play.payload(subject, numbers_of(subject), x if bits <= 8 else None)
        player = make_player(subject, play, spec, 0)
        player.load(payload)
        actions.append(player.act(x, 0.0))
        sizes.append(payload.nbytes)
    np.testing.assert_allclose(*actions, atol=1e-6 if precision == "float32" else 0.1)
    assert sizes[0] < 0.7 * sizes[1]
    numbers = np.concatenate([array.ravel() for array in team.rollout_arrays()])
    assert np.array_equal(numbers, numbers_of(shared))
