"""world.json: the description of a run's world as it was, or nothing."""

import dataclasses
import json

import numpy as np
import pytest

from shoal import TrainConfig, make_env
from shoal.runs import disk
from shoal.training.world_file import WORLD, needs_trust, stored_spec, world_json

PENDULUM = TrainConfig(env="gym:Pendulum-v1")


@pytest.mark.parametrize("env", ["predator-prey", "gym:Pendulum-v1", "gym:FrozenLake-v1", "dm:cartpole/balance"])
def test_world_json_round_trips(tmp_path, env):
    spec = make_env(env, copies=2).spec
    (tmp_path / WORLD).write_text(world_json(TrainConfig(env=env), spec, tmp_path))
    found = stored_spec(TrainConfig(env=env), tmp_path, pytest.fail)
    for field in dataclasses.fields(spec):
        one, other = getattr(spec, field.name), getattr(found, field.name)
        assert type(one) is type(other) and np.array_equal(one, other), field.name
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype
    assert json.loads((tmp_path / WORLD).read_text())["signature"] == ""  # it needs no trust
    assert not needs_trust(TrainConfig(env=env), tmp_path)


def change(**values):
    return lambda held: held["spec"].update(values)


DAMAGE = [
    change(action_sizes=[2]), change(action_sizes=[1.0]), change(observation_sizes=[0]), change(agent_names=[]),
    change(agent_names=[3]), change(action_low=None), change(action_low=[[1.0, 2.0]]), change(action_low="a"),
    change(discrete=True), change(unknown=1), change(team="a"), change(name=None), lambda held: held.pop("spec"),
    lambda held: held.update(spec=3), lambda held: held.update(spec=[]),
    lambda held: held.update(env="gym:CartPole-v1"), lambda held: held.update(env_options="{}"),
]  # fmt: skip


@pytest.mark.parametrize("damage", [*DAMAGE, None], ids=[*map(str, range(len(DAMAGE))), "cut"])
def test_damaged_world_json_is_not_used(tmp_path, damage):
    text, said = world_json(PENDULUM, make_env("gym:Pendulum-v1").spec, tmp_path), []
    if damage is not None:
        held = disk.unsealed(json.loads(text))
        damage(held)
        text = json.dumps(disk.sealed(held))
    (tmp_path / WORLD).write_text(text if damage is not None else text[:-9])
    assert stored_spec(PENDULUM, tmp_path, said.append) is None
    assert len(said) == 1 and said[0].startswith(f"'{tmp_path / WORLD}' is damaged: ")


def test_a_file_of_an_earlier_version_named_metrics_otherwise(tmp_path):
    spec = make_env("predator-prey").spec
    stored = disk.unsealed(json.loads(world_json(TrainConfig(env="predator-prey"), spec, tmp_path)))
    stored["spec"]["figures"] = stored["spec"].pop("metrics")
    (tmp_path / WORLD).write_text(json.dumps(disk.sealed(stored)))
    assert stored_spec(TrainConfig(env="predator-prey"), tmp_path, pytest.fail).metrics == ("prey_caught",)


def test_missing_world_json_of_earlier_versions(tmp_path):
    assert stored_spec(TrainConfig(), tmp_path, pytest.fail) is None
    assert needs_trust(TrainConfig(env="gym:module:World"), tmp_path)
