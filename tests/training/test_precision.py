"""Runs that train in low precision: updates through a MAC unit or in a scheme, with loss scaling."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from shoal import TrainConfig, train
from shoal.errors import UserError
from shoal.numerics import emulate
from shoal.runs.observer import Observer
from shoal.training.loop import Training
from shoal.training.saved_team import load_team
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
def test_update_matches_plain_code_in_emulation(algorithm):
    """What `emulate` around a dense update gives, in every weight; and float32 gives another."""
    dense = {"algorithm": algorithm, "first_layer": "dense", "update": "torch"}
    found, plain = updated(scheme=UNIT, algorithm=algorithm), updated(**dense)
    expected = Training(dataclasses.replace(TINY, **dense))
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
    assert found.learner.precision.run.emulation.by_role == emulation.by_role
    assert found.learner.precision.metrics()["mac/macs"] == emulation.macs > 10_000


class Stop(Exception):
    """A crash."""


class Stopper(Observer):
    """Crashes after the first checkpoint."""

    def advance(self, training):
        if training.saved:
            raise Stop


DEEP = {"warmup": 50, "update_every": 20, "batch": 8, "hidden": (4, 4), "n_step": 2}
PENDULUM = {"env": "gym:Pendulum-v1", "agents": None, "episode_length": 20, "hidden": (4, 4)}


@pytest.mark.parametrize(
    ("scheme", "settings"),
    [
        (UNIT, {"loss_scale": "dynamic"}),
        (STOCHASTIC, {"algorithm": "masac", "learn_entropy": True}),
        ("hfp8; master=bf16, rounding=stochastic; state=bf16", {"loss_scale": "adaptive"}),
        ("fp134; master=E6M9; update=compensated", {"loss_scale": "1024", "scheme_networks": "critics"}),
        ("bm8", {"algorithm": "dqn", **DEEP, "copies": 2, "loss_scale": "dynamic"}),
        ("s2fp8", {"algorithm": "d4pg", **DEEP, **PENDULUM}),
    ],
)
def test_resume_restores_bits_and_counts(tmp_path, scheme, settings):
    config = TrainConfig(**(vars(TINY) | {"scheme": scheme, "log_every": 1, "checkpoint_every": 3} | settings))
    train(dataclasses.replace(config, out=str(tmp_path / "whole")))
    with pytest.raises(Stop):
        train(dataclasses.replace(config, out=str(tmp_path / "parts")), observer=Stopper())
    train(TrainConfig(out=str(tmp_path / "parts")), resume=True)
    (whole, _), (parts, _) = (load_team(tmp_path / name, print) for name in ("whole", "parts"))
    assert whole.weights().keys() == parts.weights().keys()
    assert all(np.array_equal(value, parts.weights()[name]) for name, value in whole.weights().items())
    lines = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    counts = [line["mac/macs"] for line in lines]
    assert counts == sorted(counts) and counts[-1] == whole.precision.run.emulation.macs > 0
    scales = {name for name in lines[-1] if name.startswith(("scale/", "skipped/"))}
    assert {"scale/actors", "skipped/actors"} <= scales


def test_steps_skipped_by_a_loss_scale():
    """A scale that is too large for the unit's sums is halved until they no longer saturate."""
    training = updated(scheme="E5M2:5+Q4.13", loss_scale="dynamic, start=1e12")
    metrics = training.learner.precision.metrics()
    assert metrics["skipped/critics"] == metrics["skipped/actors"] == 2 and metrics["scale/critics"] == 2.5e11
    fresh = Training(dataclasses.replace(TINY, scheme="E5M2:5+Q4.13", loss_scale="dynamic, start=1e12"))
    own, theirs = (one.team._named_parameters() for one in (training, fresh))
    assert all(torch.equal(own[name], theirs[name]) for name in own if "target" not in name)


@pytest.mark.parametrize(("networks", "others"), [("critics", "actors"), ("actors", "critics")])
def test_scheme_for_some_networks_only(networks, others):
    run = updated(scheme=UNIT, scheme_networks=networks).learner.precision.run
    layers = {layer.split(".")[0] for layer, _ in run.counts.by_layer}
    assert layers & {networks, f"target_{networks}"} and not layers & {others, f"target_{others}"}


def test_actors_play_in_float32_beside_a_learner_in_a_scheme(tmp_path):
    settings = {"scheme": UNIT, "loss_scale": "dynamic", "actors": 1, "lockstep": True, "out": str(tmp_path / "run")}
    train(TrainConfig(**(vars(TINY) | settings | {"evaluate_episodes": 0})))
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["mac/macs"] > 0 and line["scale/critics"] == 2**16


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scheme": "E5M2"}, "'E5M2' is not a scheme"),
        ({"scheme": "hfp9"}, "'hfp9' is not a scheme; choose one of float32, bf16"),
        ({"scheme": "hfp8; colour=red"}, "'colour' is not known"),
        ({"scheme": "swalp"}, "average_after=never"),
        ({"scheme": UNIT, "loss_scale": "large"}, "'large' is not a loss scale"),
        ({"loss_scale": "dynamic"}, "`loss_scale` is for training in low precision"),
        ({"scheme": UNIT, "scheme_networks": "critics", "algorithm": "dqn"}, "dqn has only its Q networks"),
        ({"scheme": UNIT, "qat_bits": 8}, "cannot be used together"),
        ({"scheme": UNIT, "implementation": "reference"}, "`scheme=.*` needs `implementation=engine`"),
        ({"scheme": UNIT, "device": "cuda"}, "`scheme` is emulated on the CPU"),
    ],
)
def test_unsupported_settings_are_refused(settings, said):
    with pytest.raises(UserError, match=said):
        dataclasses.replace(TINY, **settings).checked()


def test_checkpoint_of_another_precision_is_refused(tmp_path):
    plain, narrow = updated(), updated(scheme=UNIT)
    with pytest.raises(UserError, match=r"The weights lack 'scheme\.mac\.calls'"):
        narrow.team.load_weights(plain.team.weights())
    plain.team.load_weights(narrow.team.weights())
