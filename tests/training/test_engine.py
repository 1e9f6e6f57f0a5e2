"""The builders of a run's parts: what each implementation puts together, and what it refuses."""

import dataclasses

import numpy as np
import pytest
import torch

from shoal import TrainConfig
from shoal.errors import UserError
from shoal.reference.replay import ListSampler, Replays
from shoal.replay import Neighbor, Ring
from shoal.training.collector import Collector
from shoal.training.learner import Learner
from shoal.training.loop import implementation

SMALL = TrainConfig(agents=2, episodes=20, warmup=1, update_every=25, batch=8, hidden=(8,), sampler="neighbor")
KINDS = {"engine": (25, Ring, Neighbor), "reference": (1, Replays, ListSampler)}


@pytest.mark.parametrize("name", KINDS)
def test_every_implementation_builds_the_same_kinds_of_parts(name):
    config = dataclasses.replace(SMALL, implementation=name)
    builder = implementation(config)
    builder.compile_loops(config)
    parts = builder.build_parts(config, torch.device("cpu"))
    copies, ring, sampler = KINDS[name]
    assert parts.env.copies == parts.config.copies == copies
    assert isinstance(parts.ring, ring) and isinstance(parts.sampler, sampler)
    collector, learner = Collector(parts.env, parts.team, parts.ring), Learner(parts)
    while learner.updates < 2:
        if learner.owes_update(collector.samples):
            learner.update(lambda phase: None)
        else:
            collector.step(lambda phase: None)
    assert len(parts.ring) == collector.samples == 50
    assert np.isfinite(list(learner.mean_losses().values())).all()


def test_a_ring_that_is_too_small_for_its_sampler_is_refused():
    with pytest.raises(UserError, match="--sampler neighbor needs 2 transitions per copy, but --capacity 49 holds 1"):
        implementation(SMALL).build_parts(dataclasses.replace(SMALL, capacity=49), torch.device("cpu"))
