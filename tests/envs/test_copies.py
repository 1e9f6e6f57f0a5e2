"""Copies of third-party environments are counted while they are built: what does not fit ends in a sentence."""

import numpy as np
import pytest

from shoal.envs import adapters, make_env
from shoal.envs.adapters import MOST, TELLING, build_copies
from shoal.envs.base import EnvSpec
from shoal.envs.parallel import check_arrays
from shoal.errors import UserError


@pytest.fixture
def growing(monkeypatch):
    """A process that grows by so many bytes with every world it builds."""
    built = []

    def grow(each, free):
        monkeypatch.setattr(adapters, "resident_bytes", lambda: 10**8 + each * len(built))
        monkeypatch.setattr("shoal.system.memory.free_memory", lambda: free)
        return lambda: built.append(len(built)) or built[-1], built

    return grow


def test_copies_that_fit_are_built_one_by_one(growing):
    one, _ = growing(10**6, 10**10)
    assert build_copies("gym:X", 1000, one) == list(range(1000))


def test_building_stops_early_if_copies_do_not_fit(growing):
    one, built = growing(10**7, 10**10)
    with pytest.raises(UserError, match=r"2,992 more of 3,000 copies of gym:X needs 29.9 GB.* about 908 copies fit"):
        build_copies("gym:X", 3000, one)
    assert len(built) == 8  # that they have grown by tells


def test_small_memory_growth_is_not_extrapolated(growing):
    one, built = growing(TELLING // 5, 10**6)
    assert len(build_copies("gym:X", 4, one)) == len(built) == 4


def test_too_many_python_copies_are_refused_at_once():
    for name in ("gym:Pendulum-v1", "pettingzoo:mpe2.simple_v3"):
        with pytest.raises(UserError, match=rf"`copies` is 1,000,000, but {name} is Python code .* at most {MOST:,}"):
            make_env(name, copies=10**6)


def spec(length):
    return EnvSpec("gym:X", ("agent",), (1000,), (3,), False, action_low=np.zeros((1, 3)), action_high=np.ones((1, 3)),
                   episode_length=length)  # fmt: skip


def test_memory_of_recorded_actions_is_checked(monkeypatch):
    monkeypatch.setattr("shoal.system.memory.free_memory", lambda: 10**9)
    check_arrays(spec(None), 10)
    check_arrays(spec(1000), 10)
    with pytest.raises(
        UserError, match=r"actions of an episode in 10 copies of gym:X needs .* of 6\d\d,\d\d\d steps fit"
    ):
        check_arrays(spec(10**9), 10)
    with pytest.raises(UserError, match="about 56,250 copies fit"):
        check_arrays(spec(None), 10**5)
    with pytest.raises(UserError, match="steps fit, or fewer copies"):
        make_env("pettingzoo:mpe2.simple_v3", episode_length=10**9)


def test_memory_of_this_process_is_measured():
    assert adapters.resident_bytes() > 10**7
