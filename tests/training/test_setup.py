"""What is found out before a run begins: memory, threads, and what has to be compiled."""

import dataclasses
import time

import numba
import pytest
import torch

from shoal.algorithms import make_team
from shoal.algorithms.team import ONE_THREAD, threads_for
from shoal.envs import make_env
from shoal.errors import UserError
from shoal.training.config import TrainConfig
from shoal.training.setup import (
    check_update_memory,
    compile_loops,
    default_threads,
    make_device,
    told_if_long,
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
def test_what_takes_more_is_counted(more):
    assert update_bytes(TrainConfig(**more), SPEC) > 1.1 * update_bytes(TrainConfig(), SPEC)


def test_deep_layers_count_with_their_square():
    """Each of 4 agents has two 1000 × 1000 layers, in the actor and in the critic, with targets, gradients, moments."""
    assert update_bytes(TrainConfig(hidden=(1000, 1000)), SPEC) > 4 * 4 * 2 * 1000**2 * 5


@pytest.mark.parametrize("agents", [1, 3, 24])
@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_native_memory_is_counted(algorithm, agents):
    """What the native update adds to torch's estimate is what its engine allocates for networks and gradients."""
    spec = make_env("cooperative-navigation", agents=agents).spec
    config = TrainConfig(algorithm=algorithm, agents=agents, hidden=(256, 256), threads=2)
    team = make_team(spec, config, 0, torch.device("cpu"))
    team.learn_natively(0, 2)
    taken = team.native.engine.network_bytes + team.native.engine.working_bytes
    added = update_bytes(config, spec) - update_bytes(dataclasses.replace(config, update="torch"), spec)
    assert 0.8 * taken < added < 1.25 * taken


def test_an_update_that_does_not_fit(monkeypatch):
    monkeypatch.setattr("shoal.memory.free_memory", lambda: 10**8)
    assert check_update_memory(TrainConfig(), SPEC) < 10**8
    with pytest.raises(UserError, match=r"update of 4 agents needs .* smaller --hidden"):
        check_update_memory(TrainConfig(hidden=(1000, 1000)), SPEC)


def test_a_world_that_does_not_fit(monkeypatch):
    monkeypatch.setattr("shoal.memory.free_memory", lambda: 10**8)
    with pytest.raises(UserError, match=r"copies of 64 agents needs .* at most .* copies fit"):
        make_env("cooperative-navigation", agents=64, copies=10_000)


def test_few_products_are_one_threads_work():
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
def test_threads_by_the_size_of_the_work(monkeypatch, usable, agents, settings, threads):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("shoal.training.setup.usable_processors", lambda: usable)
    spec = make_env("predator-prey", agents=agents).spec
    assert default_threads(TrainConfig(**settings), spec) == threads


def test_threads_that_the_person_has_set_in_the_environment(monkeypatch):
    monkeypatch.setattr("shoal.training.setup.usable_processors", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    large = TrainConfig(hidden=(2048, 2048))
    assert default_threads(large, SPEC) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "nonsense")
    assert default_threads(large, SPEC) == 8


def test_threads_are_set_in_torch_and_numba(monkeypatch):
    before, before_numba = torch.get_num_threads(), numba.get_num_threads()
    monkeypatch.setattr("shoal.processors.usable_processors", lambda: 2)
    try:
        for threads in (1, 2):
            use_threads(TrainConfig(threads=threads), SPEC)
            assert torch.get_num_threads() == threads
            assert numba.get_num_threads() == min(threads, numba.config.NUMBA_NUM_THREADS)
        with pytest.raises(UserError, match="--threads is 3, but this process may use 2 processors"):
            use_threads(TrainConfig(threads=3), SPEC)
    finally:
        torch.set_num_threads(before)
        numba.set_num_threads(before_numba)


def test_only_long_waits_are_explained():
    said = []
    with told_if_long(said.append, 7, seconds=0.05):
        pass
    assert said == []
    with told_if_long(said.append, 7, seconds=0.0, every=0.02):
        time.sleep(0.2)
    assert said[0] == "Compiling native code for this machine; it is cached for later runs."
    assert said[1] == "Compiled 0 of about 7 functions." and 2 < len(said) < 12


@pytest.mark.parametrize("env", ["cooperative-navigation", "predator-prey", "gym:CartPole-v1"])
def test_compiling_has_no_effect_on_anything(env):
    compile_loops(TrainConfig(env=env, sampler="neighbor", storage="float16"))


def test_devices():
    assert make_device("cpu").type == "cpu"
    with pytest.raises(UserError, match="'gpu' is not a torch device"):
        make_device("gpu")
