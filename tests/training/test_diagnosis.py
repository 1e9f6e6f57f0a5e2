"""Diagnoses against torch's own networks and known values; a training has the same bits with and without them."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from shoal import TrainConfig, train
from shoal.algorithms import LearnConfig, make_team
from shoal.algorithms.native import NativeTeam
from shoal.quantization.export import from_team
from shoal.replay import Ring
from shoal.runs.checkpoint import Checkpoints
from shoal.training import diagnosis
from shoal.training.diagnosis import EVERY, ROWS, diagnose, is_due
from tests.algorithms.test_oracle import make_spec
from tests.replay.model import ToyWorld
from tests.replay.model import make_spec as toy_spec

SMALL = TrainConfig(
    episodes=12, copies=2, warmup=40, update_every=10, batch=16, hidden=(8, 8), log_every=4, evaluate_episodes=0,
    threads=1, tensorboard=False, checkpoint_every=0, episode_length=10,
)  # fmt: skip
TEAMS = [
    ({"algorithm": "maddpg"}, True),
    ({"algorithm": "maddpg", "share": "all", "critic_hidden": (6,)}, False),
    ({"algorithm": "masac", "share": "critics", "learn_entropy": True}, True),
    ({"algorithm": "masac"}, False),
    ({"algorithm": "d4pg", "layer_norm": True, "share": "all"}, True),
    ({"algorithm": "masac", "critic": "pooled", "share": "all"}, True),
    ({"algorithm": "maddpg", "critic": "pooled", "critic_hidden": (6, 5)}, True),
    ({"algorithm": "dqn"}, True),
]


@pytest.mark.parametrize(("settings", "discrete"), TEAMS)
def test_networks_are_those_of_torch(settings, discrete):
    spec = make_spec(3, discrete, True, unequal="share" not in settings)
    team = make_team(spec, LearnConfig(hidden=(8, 8), **settings), 0, torch.device("cpu"))
    rng = np.random.default_rng(0)
    for module in team.networks.values():  # biases begin as zeros
        for parameter in module.parameters():
            parameter.data += 0.1 * torch.from_numpy(rng.standard_normal(tuple(parameter.shape)).astype(np.float32))
    seen = rng.standard_normal((ROWS, 3, spec.observation_size)).astype(np.float32)
    played = rng.random((ROWS, 3, spec.action_size)).astype(np.float32)
    policy = from_team(team)
    with torch.no_grad():
        head = team.actors(torch.from_numpy(seen).transpose(0, 1))
        joint = torch.from_numpy(np.concatenate([seen.reshape(ROWS, -1), played.reshape(ROWS, -1)], 1))
        if team.kind == "values":
            wanted = (head * torch.from_numpy(played).transpose(0, 1)).sum(-1)
        elif settings["algorithm"] == "d4pg":
            wanted = team.value(team.critics(joint)[:, 0])
        else:
            wanted = team.critics(joint).amin(1)
        outputs = policy.network().outputs(seen, np.float32)
        found = diagnosis._values(team, team.weights(), seen, played, outputs)
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-5)
        if team.kind in ("categorical", "gaussian"):
            noise = rng.standard_normal((ROWS, 3, spec.action_size)).astype(np.float32)
            exact = team.actors.sample_with_entropy(head, lambda *_: torch.from_numpy(noise).transpose(0, 1))[1]
            np.testing.assert_allclose(diagnosis._entropy(policy, outputs, noise), exact.numpy(), rtol=1e-4, atol=1e-4)


def filled(spec, steps=60, **change):
    """A ring of these steps, with some of their fields changed."""
    world, ring = ToyWorld(spec, 2, seed=0), Ring(spec, 2, 400)
    ring.begin(world.observe())
    for _ in range(steps):
        ring.add(world.act(), world.step()._replace(**change))
    return ring


def test_true_values_have_no_error(monkeypatch):
    """A reward of 1 in every step is worth 1 / (1 - discount), beyond time limits, too."""
    spec = toy_spec(length=12, fixed=True)
    ring = filled(spec, reward=np.ones((2, 2), np.float32), terminated=np.zeros((2, 2), np.bool_))
    worth = 1 / (1 - 0.9)
    monkeypatch.setattr(diagnosis, "_values", lambda team, weights, seen, *_: np.full((2, len(seen)), worth))
    for n_step in (1, 3):
        team = NativeTeam(spec, LearnConfig(hidden=(8,), batch=16, discount=0.9, n_step=n_step), 0)
        line = diagnose(team, ring, 0, 1)
        assert line["q/value"] == pytest.approx(worth) and 1 < line["q/actual"] < (1 - 0.9**12) / (1 - 0.9)
        assert line["q/predicted"] == pytest.approx(line["q/actual"], rel=1e-5)
        assert line["q/error"] < 1e-5 and line["q/td_error"] < 1e-5
    monkeypatch.setattr(diagnosis, "_values", lambda team, weights, seen, *_: np.zeros((2, len(seen))))
    line = diagnose(team, ring, 0, 1)
    assert line["q/error"] == pytest.approx(line["q/actual_rms"]) and line["q/td_error"] > 1


def test_agents_that_leave_do_not_count():
    spec = toy_spec()
    team = NativeTeam(spec, LearnConfig(hidden=(8,), batch=16), 0)
    alive = np.array([[True, False]] * 2)
    line = diagnose(team, filled(spec, alive=alive), 0, 1)
    assert line["policy/same_action/agent/agent_0"] > 0 and line["policy/same_action/agent/agent_1"] == 0
    assert line["q/actual_rms/agent/agent_0"] > 0 and line["q/actual_rms/agent/agent_1"] == 0


def test_gradient_norms_are_those_that_adam_saw():
    """Constant gradients: each network's norm is known, and so is whether it is at the limit."""
    spec = make_spec(3, True, True)
    for by, share in (("variable", "none"), ("variable", "all"), ("network", "none")):
        team = make_team(spec, LearnConfig(hidden=(8,), clip=0.5, clip_by=by, share=share), 0, torch.device("cpu"))
        for adam in team.optimizers.values():
            for _ in range(3):  # far too large: they are clipped
                adam.step(sum(1e3 * parameter.sum() for parameter in adam.parameters))
        line = dict(diagnosis._gradients(team))
        arrays = 4 if by == "variable" else 1
        members = 3 if share == "all" else 1
        assert line["gradient/actors"] == pytest.approx(members * 0.5 * math.sqrt(arrays), rel=1e-3)
        assert line["gradient/actors_clipped"] == pytest.approx(1, rel=1e-3)
        assert line["gradient/critics_clipped"] == pytest.approx(1, rel=1e-3)


def test_policies_that_always_act_the_same():
    spec = make_spec(3, True, True)
    team = make_team(spec, LearnConfig(hidden=(8,)), 0, torch.device("cpu"))
    policy, weight = from_team(team), np.full((3, 4), 0.25)
    outputs = np.zeros((4, 3, spec.action_size), np.float32)
    outputs[:3, 0, 1] = outputs[:2, 1, 1] = 1.0
    np.testing.assert_allclose(diagnosis._same_action(policy, outputs, weight), [0.75, 0.5, 1.0])


@pytest.mark.parametrize("algorithm", ["maddpg", "dqn"])
def test_choices_that_masks_forbid_are_not_among_the_policies(algorithm, monkeypatch):
    """All but one are forbidden: policies have no entropy, and never choose another."""
    spec = dataclasses.replace(toy_spec(observation=6, length=12, fixed=True), masked=True)
    legal = np.zeros((2, 2, 6), np.float32)
    legal[..., 1] = 1
    team, chosen = make_team(spec, LearnConfig(algorithm=algorithm, hidden=(8,)), 0, torch.device("cpu")), []
    values = diagnosis._values
    monkeypatch.setattr(diagnosis, "_values", lambda *given: chosen.append(given[3]) or values(*given))
    line = diagnose(team, filled(spec, observation=legal, final_observation=legal), 0, 1)
    assert line.get("policy/entropy", 0) < 0.05 and line["policy/same_action"] > 0.95  # but for the first observations
    assert chosen[0][ROWS:, :, 1].mean() > 0.95


def test_diagnoses_are_regular_however_the_log_is_cut():
    due = [update for update in range(1, 1002) if is_due(update, 1)]
    assert due == [1, EVERY + 1, 2 * EVERY + 1, 3 * EVERY + 1, 4 * EVERY + 1]
    assert not is_due(0, 0) and not is_due(EVERY, EVERY - 1) and is_due(EVERY, EVERY)


def log(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": "masac", "share": "all"},
        {"algorithm": "dqn"},
        {"algorithm": "d4pg", "minibatch": "independent"},
        {"qat_bits": 4, "quant_delay": 0.2, "n_step": 3, "storage": "float16"},  # in torch
        pytest.param({"scheme": "E5M2:5+E6M5", "agents": 1, "hidden": (4,), "batch": 4}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_training_has_the_same_bits_without_diagnoses(tmp_path, monkeypatch, settings):
    config = dataclasses.replace(SMALL, **settings)
    train(dataclasses.replace(config, out=str(tmp_path / "with")), pictures=False)
    monkeypatch.setattr(diagnosis, "is_due", lambda updates, new: False)
    train(dataclasses.replace(config, out=str(tmp_path / "without")), pictures=False)
    one, other = (Checkpoints(tmp_path / name / "checkpoints").load(print).parts for name in ("with", "without"))
    for part, arrays in one.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, other[part][name], err_msg=f"{part}.{name}")
    line = next(line for line in log(tmp_path / "with") if "q/value" in line)
    assert {"q/predicted", "q/actual", "q/error", "q/td_error", "policy/same_action", "gradient/actors"} <= line.keys()
    assert ("policy/entropy" in line) == (settings.get("algorithm") in (None, "maddpg", "masac", "d4pg"))
    assert all(math.isfinite(value) for value in line.values() if value is not None)
    assert not any("q/value" in line for line in log(tmp_path / "without"))
