"""Initial weights are torch's numbers; names and shapes are those of the torch networks; padding stays zero."""

import math

import numpy as np
import pytest
import torch

from shoal.algorithms import LearnConfig, make_team
from shoal.algorithms.native import NativeTeam
from shoal.networks.layout import Random, xavier
from tests.algorithms.test_oracle import make_spec

CPU = torch.device("cpu")


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_xavier_matches_torch(seed):
    random, generator = Random(seed), torch.Generator().manual_seed(seed)
    for shape in ((3, 5), (1, 1), (70, 33)):
        bound = math.sqrt(6 / sum(shape))
        wanted = torch.rand(*shape, generator=generator).mul_(2 * bound).sub_(bound)
        assert np.array_equal(xavier(*(np.ones(size, bool) for size in shape), random), wanted.numpy())


def test_padding_is_zero_and_draws_nothing():
    real_in, real_out = np.array([True, False, True, True]), np.array([True, True, False])
    padded = xavier(real_in, real_out, Random(3))
    assert np.array_equal(padded[real_in][:, real_out], xavier(np.ones(3, bool), np.ones(2, bool), Random(3)))
    assert not padded[~real_in].any() and not padded[:, ~real_out].any()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": "masac", "learn_entropy": True, "entropy": 0.3},
        {"algorithm": "masac", "variant": "tf2", "target_period": 2, "critic_hidden": (9, 7, 5)},
    ],
    ids=str,
)
@pytest.mark.parametrize("discrete", [True, False])
def test_native_and_torch_teams_begin_with_the_same_state(settings, discrete):
    spec, config = make_spec(3, discrete, unequal=True), LearnConfig(hidden=(12, 9), batch=16, **settings)
    native, team = NativeTeam(spec, config, 5), make_team(spec, config, 5, CPU)
    assert (native.kind, native.hard, native.losses) == (team.kind, team.hard, team.losses)
    assert native.targets == team.targets
    for what in ("weights", "optimizer_state"):
        found, wanted = getattr(native, what)(), getattr(team, what)()
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            assert found[name].dtype == array.dtype and found[name].shape == array.shape
            assert np.array_equal(found[name], array), name
    for found, wanted in zip(native.rollout_arrays(), team.rollout_arrays(), strict=True):
        assert np.array_equal(found, wanted)


def test_more_updates_than_float32_counts_are_restored():
    spec, config = make_spec(2, True, unequal=False), LearnConfig(hidden=(4,), batch=8)
    team, resumed = NativeTeam(spec, config, 0), NativeTeam(spec, config, 0)
    team.counters[1] = 2**24 + 1
    resumed.load_optimizer_state(team.optimizer_state())
    resumed.load_random_state(team.random_state())
    assert np.array_equal(resumed.counters, team.counters)
