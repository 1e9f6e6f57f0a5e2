"""Learning without a collector: what is owed, what is summed up, and what is not finite."""

import numpy as np
import pytest
import torch

from shoal import TrainConfig
from shoal.errors import Diverged
from shoal.replay import Ring, Uniform
from shoal.training.builder import Parts
from shoal.training.learner import Learner
from tests.replay.model import ToyWorld, make_spec


class Team:
    """Its losses are counted up; draws as a real one."""

    device, losses = torch.device("cpu"), ("q",)

    def __init__(self):
        self.drawn = []

    def update(self, ring, sampler, rng, phase):
        phase("mini-batch sampling")
        self.drawn.append(ring.sample(sampler, 4, rng).transitions.copy())
        return {"q": torch.tensor([1.0, 3.0]) * len(self.drawn)}


def learner(rows=5):
    spec = make_spec()
    world, ring = ToyWorld(spec, 2, seed=0), Ring(spec, 2, 40)
    ring.begin(world.observe())
    for _ in range(rows):
        ring.add(world.act(), world.step())
    config = TrainConfig(warmup=20, update_every=10, copies=2)
    return Learner(Parts(config, None, Team(), ring, Uniform()))


def test_due_updates_are_made_up_after_warm_up():
    one = learner()
    owed = []
    for samples in (0, 19, 20, 29, 55):
        made = 0
        while one.owes_update(samples):
            one.update(lambda phase: None)
            made += 1
        owed.append(made)
    assert owed == [0, 0, 2, 0, 3] and one.updates == 5
    assert not learner(rows=0).owes_update(100)  # nothing to draw from


def test_losses_are_means_since_the_last_reset():
    one = learner()
    assert one.mean_losses() == {}
    for _ in range(3):
        one.update(lambda phase: None)
    assert one.mean_losses() == {"q": 4.0}  # 2, 4, 6
    one.forget_losses()
    assert one.mean_losses() == {}
    one.losses, one.loss_count = {"q": torch.tensor([1.0, np.inf])}, 1
    with pytest.raises(Diverged, match="q loss is inf"):
        one.mean_losses()


def test_state_round_trips():
    one, other = learner(), learner()
    for _ in range(2):
        one.update(lambda phase: None)
    other.load_state(*one.state())
    other.team.drawn = list(one.team.drawn)
    for part in (one, other):
        part.update(lambda phase: None)
    assert np.array_equal(one.team.drawn[-1], other.team.drawn[-1])
    assert one.mean_losses() == other.mean_losses() and one.updates == other.updates == 3
