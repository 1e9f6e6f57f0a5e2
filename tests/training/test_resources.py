"""What a run takes of the machine: device, threads and memory."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest
import torch

from shoal.algorithms.base import network_weights
from shoal.algorithms.native import NativeTeam
from shoal.algorithms.team import ONE_THREAD, threads_for
from shoal.envs import make_env
from shoal.errors import UserError
from shoal.runs import threads as torch_threads
from shoal.training.config import TrainConfig
from shoal.training.resources import (
    SAVED,
    check_update_memory,
    default_threads,
    make_device,
    native_rows,
    update_bytes,
    use_threads,
)

SPEC = make_env("cooperative-navigation", agents=4).spec


@pytest.mark.parametrize(
    "more",
    [
        {"hidden": (640, 640)},
        {"hidden": (64, 64, 64)},
        {"batch": 10_240},
        {"minibatch": "independent"},
        {"algorithm": "masac"},
        {"copies": 50_000},
    ],
    ids=str,
)
def test_memory_estimate_grows_with_settings(more):
    assert update_bytes(TrainConfig(**more), SPEC) > 1.1 * update_bytes(TrainConfig(), SPEC)


def test_memory_of_layers_is_quadratic_in_width():
    """Each of 4 agents has two 1000 × 1000 layers, in the actor and in the critic, with targets, gradients, moments."""
    assert update_bytes(TrainConfig(hidden=(1000, 1000)), SPEC) > 4 * 4 * 2 * 1000**2 * 5


@pytest.mark.parametrize(("agents", "share"), [(1, "none"), (3, "all"), (24, "none"), (24, "actors"), (24, "critics")])
@pytest.mark.parametrize(("algorithm", "critic"), [("maddpg", "joint"), ("masac", "joint"), ("maddpg", "pooled")])
def test_native_memory_is_counted(algorithm, critic, agents, share):
    """The estimate is what native code allocates, and the state as arrays and bytes while it is saved; no torch."""
    spec = make_env("cooperative-navigation", agents=agents).spec
    config = TrainConfig(algorithm=algorithm, critic=critic, agents=agents, share=share, hidden=(256, 256), threads=2)
    runner = NativeTeam(spec, config, 0, threads=2).runner
    taken = runner.network_bytes + runner.working_bytes
    saved = 4 * SAVED * sum(network_weights(spec, config))
    rows = 4 * 2 * 1024 * agents * (spec.observation_size + spec.action_size)  # of the mini-batch, which the ring keeps
    assert 0.8 * taken < update_bytes(config, spec) - saved - rows < 1.25 * taken


PEAK = """
import dataclasses, json, resource, sys
from shoal import TrainConfig, make_env, train
from shoal.training.resources import update_bytes

def peak(config):
    train(config, pictures=False)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

config = TrainConfig(
    episodes=30, warmup=100, batch=64, update_every=400, threads=1, evaluate_episodes=0, tensorboard=False,
    capacity=1000, checkpoint_every=10, out="large", **json.loads(sys.argv[1]),
)
small = peak(dataclasses.replace(config, hidden=(8, 8), critic_hidden=None, out="small"))
spec = make_env("cooperative-navigation", agents=3).spec
print(json.dumps([peak(config) - small, update_bytes(config, spec)]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": "masac", "learn_entropy": True},
        {"update": "torch"},
        {"qat_bits": 8},
        {"scheme": "bm8", "copies": 4, "hidden": (900, 900)},
        {"scheme": "hfp8", "copies": 4, "hidden": (900, 900)},
        {"implementation": "reference"},
    ],
    ids=str,
)
def test_peak_memory_is_estimated(tmp_path, settings):
    """No run takes more than it asked for, nor asks for twice as much as it takes."""
    words = [sys.executable, "-c", PEAK, json.dumps({"hidden": (1500, 1500), **settings})]
    paths = {"PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **paths})
    assert ran.returncode == 0, ran.stderr
    taken, estimated = json.loads(ran.stdout.splitlines()[-1])
    assert taken < 1.1 * estimated < 2.2 * taken  # a tenth of what is free is left over


def test_native_activations_are_counted_per_chunk():
    """A mini-batch per agent takes its rows, with native code no layer's outputs for all of them."""
    spec = make_env("cooperative-navigation", agents=24).spec
    config = TrainConfig(agents=24, minibatch="independent", threads=1)
    rows = 24 * 1024 * 24 * (spec.observation_size + spec.action_size)
    assert 2 * rows < native_rows(config, spec) < 2.1 * rows
    assert native_rows(dataclasses.replace(config, others="current"), spec) > 3 * rows


def test_embeddings_of_pooled_critics_are_counted():
    """In torch each of 24 critics has its own embedding of each of 24 agents; shared ones have them once."""
    spec = make_env("cooperative-navigation", agents=24).spec
    config = TrainConfig(agents=24, critic="pooled", update="torch", threads=1)
    embeddings = 4 * 24 * 1024 * 64
    own, shared = (update_bytes(dataclasses.replace(config, share=share), spec) for share in ("none", "critics"))
    assert 3 * 23 * embeddings < own - shared < 3.5 * 23 * embeddings


def test_update_that_does_not_fit_into_memory_is_refused(monkeypatch):
    monkeypatch.setattr("shoal.system.memory.free_memory", lambda: 10**8)
    assert check_update_memory(TrainConfig(), SPEC) < 10**8
    with pytest.raises(UserError, match=r"update of 4 agents needs .* smaller `hidden`"):
        check_update_memory(TrainConfig(hidden=(1000, 1000)), SPEC)


def test_world_that_does_not_fit_into_memory_is_refused(monkeypatch):
    monkeypatch.setattr("shoal.system.memory.free_memory", lambda: 10**8)
    with pytest.raises(UserError, match=r"copies of 64 agents needs .* at most .* copies fit"):
        make_env("cooperative-navigation", agents=64, copies=10_000)


def test_small_updates_use_one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with threads_for(ONE_THREAD):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with threads_for(ONE_THREAD + 1):
            assert torch.get_num_threads() == 2
        with pytest.raises(ValueError, match="x"), threads_for(1):
            raise ValueError("x")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("usable", "agents", "settings", "threads"),
    [
        (2, 3, {}, 1),  # a second one would save little and wait much
        (2, 12, {}, 2),
        (1, 12, {}, 1),
        (64, 3, {}, 1),
        (64, 3, {"hidden": (2048, 2048)}, 64),
        (64, 3, {"device": "cuda"}, 64),  # the networks are elsewhere
    ],
)
def test_number_of_threads_follows_the_work(monkeypatch, usable, agents, settings, threads):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("shoal.training.resources.usable_processors", lambda: usable)
    spec = make_env("predator-prey", agents=agents).spec
    assert default_threads(TrainConfig(**settings), spec) == threads


def test_shared_actors_do_as_many_products_shared_critics_fewer(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("shoal.training.resources.usable_processors", lambda: 64)
    spec = make_env("predator-prey", agents=24).spec
    none, actors, both = (default_threads(TrainConfig(share=share), spec) for share in ("none", "actors", "all"))
    apart = default_threads(TrainConfig(share="all", minibatch="independent"), spec)
    assert 1 < both < none / 4 and none == actors < apart


def test_thread_settings_of_the_environment_are_respected(monkeypatch):
    monkeypatch.setattr("shoal.training.resources.usable_processors", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    large = TrainConfig(hidden=(2048, 2048))
    assert default_threads(large, SPEC) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "nonsense")
    assert default_threads(large, SPEC) == 8


def test_threads_are_set_in_torch_and_numba(monkeypatch):
    before, before_numba = torch.get_num_threads(), numba.get_num_threads()
    monkeypatch.setattr("shoal.system.processors.usable_processors", lambda: 2)
    try:
        for threads in (1, 2):
            use_threads(TrainConfig(threads=threads), SPEC)
            assert torch.get_num_threads() == threads
            assert numba.get_num_threads() == min(threads, numba.config.NUMBA_NUM_THREADS)
        with pytest.raises(UserError, match="`threads` is 3, but this process may use 2 processors"):
            use_threads(TrainConfig(threads=3), SPEC)
    finally:
        torch.set_num_threads(before)
        numba.set_num_threads(before_numba)


def test_devices():
    assert make_device("cpu").type == "cpu"
    with pytest.raises(UserError, match="`device` 'gpu' is not a torch device"):
        make_device("gpu")


def test_multithreaded_torch_after_fork_is_refused(monkeypatch):
    monkeypatch.setattr(torch_threads, "_threads_of", os.getpid() + 1)  # as a child of that process sees it
    torch_threads.set_torch_threads(1)
    with pytest.raises(UserError, match="was forked from one in which torch has already learned with several threads"):
        torch_threads.set_torch_threads(2)
    monkeypatch.setattr(torch_threads, "_threads_of", None)
    torch_threads.set_torch_threads(2)
    torch_threads.set_torch_threads(2)
