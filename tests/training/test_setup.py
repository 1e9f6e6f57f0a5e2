"""What is found out before a run begins: memory, threads, and what has to be compiled."""

import time

import pytest
import torch

from shoal.algorithms.team import ONE_THREAD, threads_for
from shoal.envs import make_env
from shoal.errors import UserError
from shoal.training.config import TrainConfig
from shoal.training.setup import (
    check_update_memory,
    compile_loops,
    make_device,
    slowed_by_others,
    told_if_long,
    update_bytes,
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


def test_an_update_that_does_not_fit(monkeypatch):
    monkeypatch.setattr("shoal.memory.free_memory", lambda: 10**8)
    assert check_update_memory(TrainConfig(), SPEC) < 10**8
    with pytest.raises(UserError, match=r"update of 4 agents needs .* smaller --hidden"):
        check_update_memory(TrainConfig(hidden=(1000, 1000)), SPEC)


def test_a_world_that_does_not_fit(monkeypatch):
    monkeypatch.setattr("shoal.memory.free_memory", lambda: 10**8)
    with pytest.raises(UserError, match=r"copies of 64 agents needs .* most copies that fit"):
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
        assert slowed_by_others(2, 64, 8) is None or slowed_by_others(2, 64, 8) > 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_one_thread_waits_for_nobody():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    assert slowed_by_others(2, 64, 8) is None
    torch.set_num_threads(before)


def test_only_long_waits_are_explained():
    said = []
    with told_if_long(said.append, "patience", seconds=0.05):
        pass
    assert said == []
    with told_if_long(said.append, "patience", seconds=0.0):
        time.sleep(0.2)
    assert said == ["patience"]


@pytest.mark.parametrize("env", ["cooperative-navigation", "predator-prey", "gym:CartPole-v1"])
def test_compiling_has_no_effect_on_anything(env):
    compile_loops(TrainConfig(env=env, sampler="neighbor", storage="float16"))


def test_devices():
    assert make_device("cpu").type == "cpu"
    with pytest.raises(UserError, match="'gpu' is not a torch device"):
        make_device("gpu")
