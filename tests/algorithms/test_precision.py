"""The plug of precisions: what the optimizer and the update ask of one."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from shoal.algorithms.adam import StackedAdam
from shoal.algorithms.precision import Precision


class Scaled(Precision):
    """Loss scaling: gradients that are not finite are skipped."""

    def __init__(self, scale):
        self.scale, self.skipped = scale, 0

    def scaled(self, loss):
        return loss * self.scale

    def accept(self, gradients):
        finite = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        self.skipped += not finite
        torch._foreach_div_(gradients, self.scale)
        return finite


class Rounded(Precision):
    """Weights in bfloat16."""

    def step(self, parameters, moments, step):
        step()
        for parameter in parameters:
            parameter.copy_(parameter.bfloat16())


def trained(precision, steps=20):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(2, 3, 4))
    x = torch.randn(2, 5, 3)
    adam = StackedAdam([(weight, 0)], 0.01, 0.5, "variable")
    adam.precision = precision
    for _ in range(steps):
        adam.step(torch.bmm(x, weight).square().mean())
    return weight.detach(), adam


def test_power_of_two_loss_scale_is_bit_identical():
    assert torch.equal(trained(Scaled(2.0**10))[0], trained(Precision())[0])
    assert not torch.equal(trained(Scaled(3.0))[0], trained(Precision())[0])


def test_rejected_step_is_skipped():
    precision = Scaled(float("inf"))
    weight, adam = trained(precision)
    assert precision.skipped == 20 and adam.state()["0.step"] == 0
    assert torch.equal(weight, trained(Precision(), 0)[0])


def test_updates_are_rounded():
    weight, _ = trained(Rounded())
    assert torch.equal(weight, weight.bfloat16().float())
    assert not torch.equal(weight, trained(Precision())[0])


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_team_learns_in_its_precision(algorithm):
    from shoal.training.loop import Training
    from tests.quantization.teams import SMALL

    entered = []

    class Watching(Scaled):
        @contextmanager
        def learning(self):
            entered.append("in")
            yield
            entered.append("out")

        def state(self):
            return {"watching.count": torch.tensor([len(entered)])}

        def load_state(self, state):
            entered.extend(["loaded"] * int(state["watching.count"]))

    def run(precision):
        training = Training(SMALL.__class__(**{**vars(SMALL), "algorithm": algorithm, "update": "torch"}))
        training.team.use(precision)
        while training.updates < 3:
            training.update() if training.owes_update() else training.step()
        return training.team

    plain, team = run(Precision()), run(Watching(4.0))
    assert entered == ["in", "out"] * 3
    weights = team.weights()
    assert weights.pop("watching.count") == [6]
    assert all(np.array_equal(weights[name], value) for name, value in plain.weights().items())
    team.load_weights(weights | {"watching.count": np.array([2])})
    assert entered[6:] == ["loaded"] * 2
