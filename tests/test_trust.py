"""Which names make Python run third-party code, and which command lines ask for it."""

import dataclasses
import functools
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

from shoal import TrainConfig
from shoal.errors import UserError
from shoal.sweeps.grid import sweep_runs
from shoal.trust import check_trusted, env_name, is_local, is_third_party, names_third_party, untrusted

KNOWN = [
    "cooperative-navigation", "predator-prey", "gym:Pendulum-v1", "gym:ALE/Pong-v5", "gym:", "unknown", "",
    "pettingzoo:mpe2.simple_tag_v3", "pettingzoo:pettingzoo.sisl.pursuit_v5", "pettingzoo:sisl.pursuit_v5",
    "pettingzoo:mpe.simple_v3", "pettingzoo:mpe2.simple_tag_v3:parallel_env",
]  # fmt: skip
THIRD_PARTY = [
    "gym:module:World-v0", "gym:ale_py:ALE/Pong-v5", "gym:module:World", "pettingzoo:module", "pettingzoo:module.world",
    "pettingzoo:module:make", "pettingzoo:mpe2x.world", "pettingzoo:.mpe2", "pettingzoo:",
    "pettingzoo:pettingzoo.utils.env:ParallelEnv",
]  # fmt: skip


@pytest.mark.parametrize("env", KNOWN)
def test_worlds_that_need_no_trust(env):
    assert not is_third_party(env)
    check_trusted("The run", env, '{"N": 4, "continuous_actions": true, "sizes": [1, 2.5, null]}', trust=False)


@pytest.mark.parametrize("env", THIRD_PARTY)
def test_worlds_that_need_trust(env):
    with pytest.raises(UserError, match=r"^The run names the environment .* is third-party code: add `trust=True`"):
        check_trusted("The run", env, "", trust=False)
    check_trusted("The run", env, '{"map": "a"}', trust=True)


class Outer:
    class Inner:
        pass


def function():
    def inside():
        pass

    return inside


def test_classes_and_functions_have_names():
    assert env_name(gymnasium.Env) == "gym:gymnasium.core:Env"
    assert env_name(Outer.Inner) == f"pettingzoo:{__name__}:Outer.Inner"
    assert env_name(function) == f"gym:{__name__}:function"
    assert env_name("gym:Pendulum-v1") == "gym:Pendulum-v1"
    assert all(map(is_third_party, (env_name(gymnasium.Env), env_name(Outer.Inner), env_name(function))))


def test_local_objects_are_numbered_within_the_process():
    one, other = function(), function()
    assert env_name(one) == env_name(one) == "gym:__main__:function.<locals>.inside#1"
    assert env_name(other) == "gym:__main__:function.<locals>.inside#2"
    assert re.fullmatch(r"gym:__main__:.*<lambda>#1", env_name(lambda: None))
    assert env_name(functools.partial(function)) == "gym:__main__:function#1"
    assert all(map(is_local, (env_name(one), "gym:__main__:Mine", "pettingzoo:__main__:Mine")))
    assert not any(map(is_local, (env_name(function), "gym:Pendulum-v1", "cooperative-navigation")))


@pytest.mark.parametrize("env", [Outer(), None, 3], ids=["instance", "None", "number"])
@pytest.mark.parametrize("take", [env_name, lambda env: TrainConfig(env=env)], ids=["env_name", "TrainConfig"])
def test_non_environments_have_no_name(env, take):
    with pytest.raises(UserError, match=r"^`env` is .*, but must be a name, or a class or function that makes"):
        take(env)


@pytest.mark.parametrize("settings", [{"actors": 1}, {"env_workers": 2}])
def test_scripts_cannot_be_imported_by_other_processes(settings):
    config = TrainConfig(env="gym:__main__:Mine")
    config.checked()
    who = r"^`env` is gym:__main__:Mine, which is defined in the running script or notebook, where (actors|workers)"
    with pytest.raises(UserError, match=who):
        dataclasses.replace(config, **settings).checked()
    with pytest.raises(UserError, match="the processes of a sweep cannot import it"):
        sweep_runs({"base": {"env": "gym:__main__:Mine"}}, Path("sweep"))


@pytest.mark.parametrize("options", ['{"map": "a"}', '{"a": [{"b": "c"}]}', '"a"', "{", 10**5 * "["])
def test_options_that_need_trust(options):
    assert untrusted("gym:FrozenLake-v1", options)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("train", False),
        ("evaluate run", False),
        ("evaluate run --trust", True),
        ("train --env predator-prey", False),
        ("train --env pettingzoo:mpe2.simple_tag_v3", False),
        ("train --env pettingzoo:mine", True),
        ("train --env=gym:mine:World-v0", True),
        ("quantize ppo.zip --env CartPole-v1", False),
        ("quantize ppo.zip --env mine:World-v0", True),
        ("train --out pettingzoo:mine", False),
        ("train --env", False),
    ],
)
def test_command_lines_that_name_third_party_code(words, named):
    assert names_third_party(words.split()) is named


def test_python_m_does_not_import_from_the_working_directory(tmp_path):
    """As `shoal` does not: a file there may have the name of any library."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('it was run')")
    words = [sys.executable, "-m", "shoal", "fly"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 2 and "There is no command 'fly'" in ran.stderr, ran.stderr
