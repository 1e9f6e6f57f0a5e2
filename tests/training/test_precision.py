"""Runs whose updates go through a MAC unit."""

import dataclasses
import json

import pytest
import torch

from shoal import TrainConfig, train
from shoal.errors import UserError
from shoal.numerics import emulate
from shoal.training.evaluation import load_team
from shoal.training.loop import Silent, Training
from tests.quantization.teams import SMALL

UNIT = "E5M2:5+E6M5"
TINY = dataclasses.replace(SMALL, episodes=6, warmup=50, update_every=20, batch=8, hidden=(4, 4), copies=2, agents=2)
STOCHASTIC = "E5M2:5+E6M5, rounding=stochastic"


def updated(**settings):
    training = Training(dataclasses.replace(TINY, **settings))
    while training.updates < 2:
        training.update() if training.owes_update() else training.step()
    return training


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_an_update_is_the_plain_one_in_the_emulation(algorithm):
    """What `emulate` around a dense update gives, in every weight; and float32 gives another."""
    found, plain = updated(mac=UNIT, algorithm=algorithm), updated(algorithm=algorithm, first_layer="dense")
    expected = Training(dataclasses.replace(TINY, algorithm=algorithm, first_layer="dense"))
    emulation = emulate(UNIT)
    while expected.updates < 2:
        if expected.owes_update():
            with emulation:
                expected.update()
        else:
            expected.step()
    own, theirs, other = (training.team._named_parameters() for training in (found, expected, plain))
    assert all(torch.equal(own[name], theirs[name]) for name in own)
    assert not all(torch.equal(own[name], other[name]) for name in own)
    assert found.learner.precision.emulation.state() == emulation.state()
    assert found.learner.precision.figures()["mac/macs"] == emulation.macs > 10_000


class Stop(Exception):
    """A crash."""


class Stopper(Silent):
    """Crashes after the first checkpoint."""

    def advance(self, training):
        if training.saved:
            raise Stop


@pytest.mark.parametrize("unit", [UNIT, STOCHASTIC])
def test_it_resumes_with_the_same_bits_and_counts(tmp_path, unit):
    config = dataclasses.replace(TINY, mac=unit, log_every=1, checkpoint_every=3)
    train(dataclasses.replace(config, out=str(tmp_path / "whole")))
    with pytest.raises(Stop):
        train(dataclasses.replace(config, out=str(tmp_path / "parts")), observer=Stopper())
    train(TrainConfig(out=str(tmp_path / "parts")), resume=True)
    (whole, _), (parts, _) = (load_team(tmp_path / name, print) for name in ("whole", "parts"))
    assert whole.weights().keys() == parts.weights().keys()
    assert all(torch.equal(value, parts.weights()[name]) for name, value in whole.weights().items())
    lines = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    counts = [line["mac/macs"] for line in lines]
    assert counts == sorted(counts) and counts[-1] == whole.precision.emulation.macs > 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mac": "E5M2"}, "E5M2"),
        ({"mac": UNIT, "qat_bits": 8}, "cannot be used together"),
        ({"mac": UNIT, "implementation": "reference"}, "--mac needs --implementation engine"),
        ({"mac": UNIT, "device": "cuda"}, "--mac is emulated on the CPU"),
    ],
)
def test_what_cannot_be(settings, said):
    with pytest.raises(UserError, match=said):
        dataclasses.replace(TINY, **settings).checked()


def test_weights_of_another_precision(tmp_path):
    plain, narrow = updated(), updated(mac=UNIT)
    with pytest.raises(UserError, match=r"The weights lack 'mac\.calls'"):
        narrow.team.load_weights(plain.team.weights())
    plain.team.load_weights(narrow.team.weights())
