"""A run from beginning to end: what it writes, that it learns, and that its counters are true."""

import dataclasses
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal import TrainConfig, load, train
from shoal.algorithms import MADDPG
from shoal.errors import Diverged, UserError
from shoal.training.clock import PHASES
from shoal.training.loop import Training
from shoal.training.world_file import WORLD, world_json

SMALL = {
    "warmup": 400, "batch": 64, "hidden": (16, 16), "checkpoint_every": 40, "log_every": 20, "evaluate_episodes": 20,
    "tensorboard": False,
}  # fmt: skip


def lines(folder):
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_run_folder(tmp_path, algorithm):
    result = train(TrainConfig(**SMALL, algorithm=algorithm, episodes=100, out=str(tmp_path / "run")))
    assert result.finished and result.episodes == 100
    assert result.updates == result.env_steps // 100
    assert result.return_mean < 0 and result.return_random < 0
    log = lines(tmp_path / "run")
    assert [line["episode"] for line in log] == [20, 40, 60, 80, 100]
    assert {"episode", "env_steps", "return_mean", "seconds", "loss/q", "loss/p"} <= log[-1].keys()
    assert sum(result.phases.values()) == result.seconds  # of one moment
    assert set(result.phases) == set(PHASES) and result.phases["Q loss"] > 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["algorithm"] == algorithm
    # the mean of the lines is the mean of the episodes
    assert np.mean([line["return_mean"] for line in log]) == pytest.approx(result.return_mean)


@pytest.mark.parametrize(
    "world",
    [
        {"env": "predator-prey", "agents": 4},
        {"env": "predator-prey", "agents": 3, "prey": "learned"},
        {"env": "predator-prey", "rules": "openai", "prey": "facmac", "sampler": "neighbor", "storage": "float16"},
        {"env": "cooperative-navigation", "agents": 1, "copies": 1, "minibatch": "independent"},
        {"env": "pettingzoo:mpe2.simple_speaker_listener_v4", "copies": 3},
        {"env": "gym:Pendulum-v1", "copies": 2, "episode_length": 30},
        {"env": "gym:CartPole-v1", "copies": 2, "algorithm": "masac"},
    ],
    ids=lambda world: f"{world['env']}-{world.get('prey', '')}",
)
def test_every_kind_of_world(tmp_path, world):
    result = train(TrainConfig(**{**SMALL, "episodes": 40, "out": str(tmp_path / "run"), **world}))
    assert result.finished and result.updates > 0 and np.isfinite(result.return_mean)
    assert (result.return_prey is not None) == (world.get("prey") == "learned")
    groups = (
        {"speaker", "listener"} if "speaker" in world["env"] else {"predator", "prey"} if result.return_prey else None
    )
    assert result.groups.keys() == (groups or {"predator" if world["env"] == "predator-prey" else "agent"})
    name = {"predator-prey": "prey_caught", "cooperative-navigation": "landmarks_covered"}.get(world["env"])
    log = lines(tmp_path / "run")
    printed = result.to_json()
    for family, found in (("agent", result.agents), ("group", result.groups)):
        keys = {f"return/{family}/{name}": name for name in found}
        assert {key for key in log[0] if key.startswith(f"return/{family}/")} == keys.keys() <= printed.keys()
        for key, own in keys.items():
            assert printed[key] == found[own]["training"] == pytest.approx(np.mean([line[key] for line in log]))
            assert printed[f"return_random_ci95/{family}/{own}"] == found[own]["random_ci95"]
    assert {"prey_caught", "landmarks_covered"} & log[0].keys() == {name} - {None} == result.figures.keys()
    if name:
        # the mean of the lines is the mean of the episodes
        assert result.figures[name]["training"] == pytest.approx(np.mean([line[name] for line in log]))
        assert {name, f"{name}_deterministic", f"{name}_random", f"{name}_random_ci95"} <= printed.keys()
        assert printed[f"{name}_noisy"] == result.figures[name]["noisy"] >= 0


@pytest.mark.parametrize("copies", [1, 7, 25, 60])
def test_updates_owed(copies):
    """One for every 100 samples counted from the first, for any number of copies; the backlog at once."""
    training = Training(TrainConfig(copies=copies, warmup=1000, batch=32, hidden=(8,), episodes=200))
    seen = []
    while training.samples < 2000:
        training.step()
        while training.owes_update():
            training.update()
        seen.append((training.samples, training.updates))
    assert all(updates == (samples // 100 if samples >= 1000 else 0) for samples, updates in seen)


def test_staggered_first_episodes_are_not_counted():
    """With 25 copies that start at steps 0 to 24, the first full episode to end is copy 0's, at step 25."""
    training = Training(TrainConfig(copies=25, episodes=10))
    for _ in range(24):
        training.step()
    assert training.episodes == 0
    training.step()
    assert training.episodes == 1


def test_team_learns(tmp_path):
    """Cooperative navigation, openai rules: well above the untrained team after a minute's worth of episodes."""
    config = TrainConfig(rules="openai", episodes=1800, warmup=10_000, batch=256, out=str(tmp_path / "run"), seed=1,
                         checkpoint_every=0, tensorboard=False)  # fmt: skip
    result = train(config)
    assert result.return_noisy > result.return_random + 20


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_loss_ends_the_run_with_a_sentence(tmp_path, monkeypatch, value):
    monkeypatch.setattr(MADDPG, "learn", lambda self, batch, phase: {"q": torch.full((3,), value), "p": torch.zeros(3)})
    with pytest.raises(UserError, match=r"q loss is (nan|inf).*`learning_rate`"):
        train(TrainConfig(**SMALL, episodes=100, update="torch", out=str(tmp_path / "run")))
    assert not list((tmp_path / "run" / "checkpoints").glob("0*"))  # what is poisoned is not saved


def test_runs_depend_on_the_seed_only(tmp_path):
    runs = [
        train(TrainConfig(**SMALL, episodes=60, seed=seed, out=str(tmp_path / str(k))))
        for k, seed in enumerate((3, 3, 4))
    ]
    a, b, c = ([line["return_mean"] for line in lines(run.run)] for run in runs)
    assert a == b != c


def diverged(tmp_path, **settings):
    """The sentence of a run that diverges."""
    small = SMALL | {"warmup": 100, "update_every": 10, "batch": 32, "hidden": (8,), "out": str(tmp_path / "run")}
    with pytest.raises(UserError) as error:
        train(TrainConfig(**small, episodes=200, **settings))
    return str(error.value)


def test_a_run_that_diverges_names_rewards_that_are_too_large(tmp_path):
    said = diverged(tmp_path, env="gym:tests.envs.own_worlds:Rich")
    assert "diverged; returns are as large as 7.6e+31: scale down the rewards of gym:tests.envs" in said
    assert "learning_rate" not in said


def test_a_run_that_diverges_names_the_learning_rate(tmp_path, monkeypatch):
    def update(training):
        raise Diverged("The q loss is nan")

    monkeypatch.setattr(Training, "update", update)
    said = diverged(tmp_path)
    assert said.endswith("training has diverged; a smaller `learning_rate` than 0.01 may help.")


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("dqn", {}),
        ("maddpg", {"env_masks": True, "env_options": '{"where": "infos"}'}),
        ("masac", {"env_options": '{"several": ["a_1"]}'}),
        ("d4pg", {"env_masks": True, "env_options": '{"where": "infos", "several": ["a_1"], "boxes": ["a_0"]}'}),
    ],
    ids=str,
)
def test_forbidden_choices_are_never_played(tmp_path, algorithm, options):
    """The world raises where one is: in training, and from trained, random and noisy teams."""
    world = {"env": "pettingzoo:tests.envs.own_worlds:Masked", "copies": 4, **options}
    settings = SMALL | world | {"algorithm": algorithm, "warmup": 200, "update_every": 50, "episodes": 50}
    result = train(TrainConfig(**settings, out=str(tmp_path / "run")))
    assert result.updates == result.env_steps // 50
    policy = load(tmp_path / "run")
    assert policy.evaluate(10).episodes == 10
    if not policy.spec.choices:
        policy.export(str(tmp_path / "policy.onnx"))
        assert load(tmp_path / "policy.onnx", trust=True).evaluate(10).episodes == 10
    else:
        with pytest.raises(UserError, match="which exported files do not support; play the run itself"):
            policy.export(str(tmp_path / "policy.onnx"))
        with pytest.raises(UserError, match="are not one choice per agent"):
            policy.act(np.zeros(policy.observation_size * 2).reshape(2, -1), as_choices=True)
    if algorithm == "dqn":  # a run from before masks were applied
        spec = dataclasses.replace(policy.spec, masked=False)
        (tmp_path / "run" / WORLD).write_text(world_json(policy.config, spec, tmp_path / "run"))
        again = TrainConfig(out=str(tmp_path / "run"), episodes=60)
        for wrong in (load(tmp_path / "run").make_env, partial(train, again, resume=True, trust=True)):
            with pytest.raises(
                UserError, match="from an earlier version of Shoal, which did not apply the action masks"
            ):
                wrong()
