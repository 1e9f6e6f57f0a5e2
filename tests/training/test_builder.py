"""The builders of a run's parts: what each implementation puts together, and what it refuses."""

import dataclasses
import json
import shlex

import numpy as np
import pytest

from shoal import TrainConfig
from shoal.errors import UserError
from shoal.native import runner as native_runner
from shoal.replay import Neighbor, Ring
from shoal.training import builder as builder_module
from shoal.training.collector import Collector
from shoal.training.learner import Learner
from shoal.training.loop import implementation
from shoal_papers.reference.replay import ListSampler, Replays

SMALL = TrainConfig(agents=2, episodes=20, warmup=1, update_every=25, batch=8, hidden=(8,), sampler="neighbor")
KINDS = {"engine": (25, Ring, Neighbor), "reference": (1, Replays, ListSampler)}


def test_native_code_learns_without_torch(tmp_path, shoal, without_torch):
    """Training, evaluations, checkpoints, pictures, and an extended run: the same bits as beside torch."""
    words = shlex.split(
        "--episodes 40 --copies 5 --warmup 200 --batch 32 --hidden 8 8 --evaluate-episodes 4 "
        "--evaluate-every 10 --evaluate-during 3 --snapshots 2 --keep-replay --threads 1"
    )
    ran = without_torch("train", *words, "--out", "run", "--json")
    assert ran.returncode == 0, ran.stderr
    ran = without_torch("train", "--resume", "run", "--episodes", 60, "--json")
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "run" / "curve.png").exists()
    code, out, _ = shoal("train", *words, "--episodes", 60, "--out", tmp_path / "whole", "--json")
    found, wanted = json.loads(ran.stdout), json.loads(out)
    assert code == 0 and found["updates"] == wanted["updates"] > 10
    assert found["return_deterministic"] == wanted["return_deterministic"]
    assert "there is no torch here" in without_torch("train", *words, "--update", "torch").stderr


def test_a_native_learner_with_actors_imports_no_torch_and_records_its_update(tmp_path, without_torch):
    words = "--episodes 20 --copies 2 --warmup 100 --batch 32 --hidden 8 8 --evaluate-episodes 0 --actors 1 --quiet"
    ran = without_torch("train", *words.split(), "--actor-engine", "numba", "--out", "run")
    assert ran.returncode == 0, ran.stderr
    assert json.loads((tmp_path / "run" / "config.json").read_text())["update"] == "native"


def test_stored_auto_means_native_where_possible():
    settings = dataclasses.asdict(SMALL)
    assert TrainConfig.stored(settings | {"update": "auto"}).update == "native"
    assert TrainConfig.stored(settings | {"update": "auto", "qat_bits": 8}).update == "torch"
    assert TrainConfig.stored({"algorithm": "maddpg"}).update == "torch"  # before there was native code


@pytest.mark.parametrize("name", KINDS)
def test_every_implementation_builds_the_same_kinds_of_parts(name):
    config = dataclasses.replace(SMALL, implementation=name)
    builder = implementation(config)
    builder.compile_loops(config)
    parts = builder.build_parts(config)
    copies, ring, sampler = KINDS[name]
    assert parts.env.copies == parts.config.copies == copies
    assert isinstance(parts.ring, ring) and isinstance(parts.sampler, sampler)
    collector, learner = Collector(parts.env, parts.team, parts.ring, parts.team.normalisation), Learner(parts)
    while learner.updates < 2:
        if learner.owes_update(collector.samples):
            learner.update(lambda phase: None)
        else:
            collector.step(lambda phase: None)
    assert len(parts.ring) == collector.samples == 50
    assert np.isfinite(list(learner.mean_losses().values())).all()


def test_a_ring_that_is_too_small_for_its_sampler_is_refused():
    with pytest.raises(UserError, match="`sampler=neighbor` needs 2 transitions per copy, but `capacity=49` holds 1"):
        implementation(SMALL).build_parts(dataclasses.replace(SMALL, capacity=49))


def test_failed_compilation_falls_back_to_torch(monkeypatch):
    monkeypatch.setattr(builder_module, "why_unusable", lambda: "numba cannot compile it here (no reason)")
    found, note = builder_module.chosen_update(SMALL)
    assert found.update == "torch" and note == "Learning in torch: numba cannot compile it here (no reason)."
    with pytest.raises(UserError, match="`update` is native, but numba cannot compile it here"):
        builder_module.chosen_update(dataclasses.replace(SMALL, update="native"))


def test_start_line_names_the_update_and_the_reason():
    assert builder_module.chosen_update(SMALL)[0].update == "native"
    reasons = {
        "Learning in torch, as `update` says.": {"update": "torch"},
        "Learning in torch: quantization-aware training is in torch.": {"qat_bits": 8, "update": "torch"},
        "Learning in native code on 1 thread.": {"threads": 1},
    }
    for wanted, settings in reasons.items():
        assert builder_module.chosen_update(dataclasses.replace(SMALL, **settings))[1] == wanted


def test_reasons_against_native_code(monkeypatch):
    monkeypatch.setattr(native_runner, "host_plan", lambda: None)
    assert "no vector instructions" in native_runner.why_unusable.__wrapped__()
    monkeypatch.undo()

    def failing(program):
        raise RuntimeError("LLVM says no\nat length")

    monkeypatch.setattr(native_runner, "Runner", failing)
    assert native_runner.why_unusable.__wrapped__() == "numba cannot compile it here (LLVM says no)"


@pytest.mark.parametrize("env", ["cooperative-navigation", "predator-prey", "gym:CartPole-v1"])
def test_compiling_has_no_effect_on_anything(env):
    builder_module.compile_loops(TrainConfig(env=env, sampler="neighbor", storage="float16"))
