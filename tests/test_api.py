"""`shoal.train` from Python: the run folder has what the command's has, pictures included."""

import dataclasses
import functools
import sys

import pytest

import shoal
from shoal import TrainConfig, load, train
from shoal.errors import UserError
from shoal.runs.checkpoint import Checkpoints
from tests.envs.own_worlds import Corridor

SHORT = TrainConfig(
    episodes=20, copies=5, warmup=100, batch=16, hidden=(8,), evaluate_episodes=4, threads=1, tensorboard=False
)


@pytest.mark.usefixtures("rendered")
def test_learning_curve_is_optional(tmp_path):
    def run(name, **how):
        result = train(dataclasses.replace(SHORT, out=str(tmp_path / name)), **how)
        assert result.finished and result.return_random is not None
        return {path.name for path in (tmp_path / name).iterdir()}

    assert run("with") - run("without", pictures=False) == {"curve.png", "diagnosis.png"}
    drawn = (tmp_path / "with" / "curve.png").stat()
    assert drawn.st_size > 5_000
    train(TrainConfig(out=str(tmp_path / "with")), resume=True)
    assert (tmp_path / "with" / "curve.png").stat() == drawn  # it was finished: nothing is written


def test_public_names_are_listed_by_dir():
    assert {*shoal.__all__} <= {*dir(shoal)}


def test_library_warnings_are_python_warnings(tmp_path):
    config = dataclasses.replace(SHORT, warmup=100_000, evaluate_episodes=0, out=str(tmp_path))
    with pytest.warns(UserWarning, match="^Nothing will be learned: the run ends after at most"):
        assert train(config, pictures=False).updates == 0


@pytest.mark.parametrize("config", ["predator-prey", {"episodes": 3}, None])
def test_train_refuses_anything_but_a_config(config):
    with pytest.raises(
        UserError, match=r"^train\(\) takes a TrainConfig, as in train\(TrainConfig\(episodes=2_000\)\), not"
    ):
        train(config)


@pytest.mark.parametrize("keep_replay", [False, True])
def test_run_killed_at_its_end_is_completed(tmp_path, monkeypatch, keep_replay):
    config = dataclasses.replace(SHORT, out=str(tmp_path), checkpoint_every=5, keep_replay=keep_replay)
    with monkeypatch.context() as killed:
        killed.setattr(Checkpoints, "keep_newest", lambda self: None)
        result = train(config, pictures=False)
    checkpoints = tmp_path / "checkpoints"
    assert len(list(checkpoints.glob("0*"))) == 2 and (checkpoints / "replay").exists()
    assert train(TrainConfig(out=str(tmp_path)), resume=True) == result
    assert [path.name for path in checkpoints.glob("0*")] == ["00000020"] and (tmp_path / "curve.png").exists()
    assert (checkpoints / "replay").exists() == keep_replay
    if keep_replay:
        assert Checkpoints(checkpoints).load(pytest.fail).segments


def in_script(monkeypatch):
    """The same class as if the script or notebook that is running had defined it."""
    found = type("MyEnv", (Corridor,), {"__module__": "__main__", "__qualname__": "MyEnv"})
    monkeypatch.setattr(sys.modules["__main__"], "MyEnv", found, raising=False)
    return found


@pytest.mark.parametrize("kind", ["script", "local", "lambda", "partial"])
def test_environment_defined_in_a_script_or_notebook(tmp_path, monkeypatch, shoal, kind):
    class Here(Corridor):
        pass

    envs = {"local": Here, "lambda": lambda length=4: Corridor(length), "partial": functools.partial(Corridor, 5)}
    env = envs[kind] if kind != "script" else in_script(monkeypatch)
    small = {"copies": 2, "warmup": 20, "batch": 8, "hidden": (8,), "threads": 1, "tensorboard": False}
    config = TrainConfig(env=env, episodes=4, evaluate_episodes=2, out=str(tmp_path / "run"), **small)
    first = train(config, pictures=False)
    assert first.finished and first.return_deterministic is not None
    longer = TrainConfig(env=env, episodes=6, out=config.out)
    assert train(longer, resume=True, pictures=False).episodes == 6
    policy = load(config.out, env=env)
    assert policy.env == config.env and policy.evaluate(2).episodes == 2
    with pytest.raises(
        UserError, match=r"^The environment 'gym:__main__:.*' of the run in .* is defined in the script"
    ):
        load(config.out)
    if kind == "script":  # as another process would meet it
        monkeypatch.delattr(sys.modules["__main__"], "MyEnv")
    else:
        monkeypatch.setattr("shoal.trust.LOCAL", {})
        monkeypatch.setattr("shoal.envs.adapters.LOCAL", {})
    for words in ([], ["--trust"]):
        code, _, err = shoal("evaluate", config.out, *words)
        assert code == 2 and "pass the class or function itself there, as in shoal.load(run, env=MyEnv)" in err
        assert len(err.splitlines()) == 1
