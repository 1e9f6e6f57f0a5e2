"""Evaluations during training, the best weights and snapshots: they change no bit of what is learned."""

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from shoal import Callback, TrainConfig, load, train
from shoal.algorithms.native import NativeTeam
from shoal.errors import UserError
from shoal.runs import disk
from shoal.runs.observer import Observer
from shoal.training.milestones import BEST, Milestones
from shoal.training.saved_team import read_weights
from tests.cli.helpers import call_before, lines, send
from tests.training.witness import Crash, Witness

SMALL = {
    "episodes": 100, "warmup": 400, "batch": 32, "hidden": (8,), "update_every": 20, "checkpoint_every": 30,
    "log_every": 50, "evaluate_episodes": 0, "tensorboard": False, "capacity": 1500, "threads": 1,
}  # fmt: skip
EVALUATED = {"evaluate_every": 20, "evaluate_during": 4, "snapshots": 4}


def newest(run):
    return load_file(sorted(Path(run, "checkpoints").glob("[0-9]*"))[-1] / "weights.safetensors")


def same(a, b):
    assert a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


def evaluations(run):
    return {line["episode"]: line["evaluate/return_mean"] for line in lines(run) if "evaluate/return_mean" in line}


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A run with evaluations and snapshots, to be looked at only."""
    run = tmp_path_factory.mktemp("evaluated") / "run"
    train(TrainConfig(**SMALL, **EVALUATED, out=str(run)))
    return run


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"algorithm": "masac", "update": "torch", "env": "predator-prey", "prey": "learned", "update_every": 100},
        {"algorithm": "d4pg", "env": "gym:Pendulum-v1", "episode_length": 20, "copies": 2, "update_every": 100},
        {"algorithm": "dqn", "qat_bits": 4, "quant_delay": 0.3, "update_every": 100},
        {"implementation": "reference", "episodes": 30},
    ],
    ids=str,
)
def test_training_is_bit_identical_with_and_without_evaluations(tmp_path, options):
    for name, more in (("plain", {}), ("evaluated", EVALUATED)):
        train(TrainConfig(**{**SMALL, **options, **more}, out=str(tmp_path / name)))
    same(newest(tmp_path / "plain"), newest(tmp_path / "evaluated"))
    assert len(evaluations(tmp_path / "evaluated")) == options.get("episodes", 100) // 20


def test_evaluations_are_logged_at_their_episode(evaluated):
    found = evaluations(evaluated)
    assert [episode // 20 for episode in found] == [1, 2, 3, 4, 5]
    assert all(line["evaluate/return_ci95"] > 0 for line in lines(evaluated) if "evaluate/return_mean" in line)
    assert len({*found.values()}) > 1  # the team has changed in between
    line = lines(evaluated)[0]
    assert line["evaluate/return/group/agent"] == pytest.approx(line["evaluate/return_mean"])
    assert {"evaluate/return/agent/agent_0", "evaluate/landmarks_covered"} <= line.keys()


def test_evaluations_are_logged_by_agent_and_by_group(tmp_path):
    class Keep(Callback):
        def on_evaluation(self, run, evaluation):
            self.evaluation = evaluation

    options = {"env": "predator-prey", "prey": "learned", "episodes": 20, "evaluate_every": 20, "evaluate_during": 4}
    train(TrainConfig(**{**SMALL, **options}, out=str(tmp_path / "run")), callbacks=[kept := Keep()])
    own, line = kept.evaluation, lines(tmp_path / "run")[-1]
    for kind, estimates in (("agent", own.agents), ("group", own.groups)):
        for name, (mean, ci95) in estimates.items():
            assert line[f"evaluate/return/{kind}/{name}"] == mean
            assert line[f"evaluate/return_ci95/{kind}/{name}"] == ci95
    assert {*own.groups} == {"predator", "prey"} and len(own.agents) == 4
    assert line["evaluate/prey_caught"] == own.figures["prey_caught"].mean


def test_the_best_weights_are_those_of_the_best_evaluation(evaluated):
    best = max(evaluations(evaluated).values())
    policy = load(evaluated, checkpoint="best")
    episode = next(episode for episode, mean in evaluations(evaluated).items() if mean == best)
    held = json.loads(json.loads(_header(evaluated / BEST))["__metadata__"]["shoal"])
    assert held["return_mean"] == best and held["episode"] == episode
    # the same evaluation of the weights that were kept: another engine, hence not the last bit
    config = TrainConfig(**SMALL, **EVALUATED)
    milestones = Milestones(config)
    played = milestones._evaluate(_Holder(policy.team), _Calm(), Observer())
    assert played.mean == pytest.approx(best, rel=1e-3)


class _Calm:
    signal = None


class _Holder:
    def __init__(self, team):
        self.team = team


def _header(path):
    data = path.read_bytes()
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


def test_snapshots_are_evenly_spaced_and_can_be_played(evaluated):
    files = sorted((evaluated / "snapshots").iterdir())
    episodes = [int(file.stem) for file in files]
    assert [episode // 25 for episode in episodes] == [1, 2, 3, 4] and all(len(file.stem) == 8 for file in files)
    first, last = (load(evaluated, checkpoint=episode) for episode in (episodes[0], episodes[-1]))
    seen = first.make_env(4).reset()
    assert not np.array_equal(first.team.actors.weights[0].detach(), last.team.actors.weights[0].detach())
    assert np.array_equal(last.act(seen), load(evaluated).act(seen))


def test_stop_at_return_finishes_the_run(shoal, tmp_path):
    words = ["train", *_words({**SMALL, **EVALUATED, "stop_at_return": -1e6}), "--out", tmp_path / "run"]
    code, out, _ = shoal(*words, "--json")
    result = json.loads(out)
    assert code == 0 and result["finished"] and 20 <= result["episodes"] < 40
    assert "reached `stop_at_return=" in result["stopped"]
    assert "`stop_at_return=" in json.loads((tmp_path / "run" / "result.json").read_text())["stopped"]
    code, _, err = shoal("train", "--resume", tmp_path / "run")
    assert code == 0 and "is finished" in err
    (tmp_path / "run" / "result.json").unlink()  # killed before it was written
    again = train(TrainConfig(out=str(tmp_path / "run")), resume=True)
    assert (again.episodes, again.stopped) == (result["episodes"], result["stopped"])


def _words(settings):
    switches = {"tensorboard": "--no-tensorboard"}
    words = ["--quiet"]
    for name, value in settings.items():
        option = switches.get(name)
        words += [option] if option else [f"--{name.replace('_', '-')}", *map(str, np.atleast_1d(value))]
    return words


def test_evaluation_time_is_not_training_time(tmp_path, monkeypatch):
    """A step takes a second in training and 100 in an evaluation: only the former count."""
    now = [0.0]
    monkeypatch.setattr("shoal.training.clock.time.perf_counter", lambda: now[0])
    act = NativeTeam.act

    def slow(self, observation, explore=True):
        now[0] += 1 if explore else 100
        return act(self, observation, explore)

    monkeypatch.setattr(NativeTeam, "act", slow)
    result = train(TrainConfig(**SMALL, **EVALUATED, out=str(tmp_path / "run")))
    assert now[0] > 5 * 25 * 100 and result.seconds == result.env_steps / 25


@pytest.mark.parametrize("until", [25, 45, 70, 99])
def test_killed_run_keeps_the_best_weights(evaluated, tmp_path, until):
    run = tmp_path / "run"
    with pytest.raises(Crash):
        train(TrainConfig(**SMALL, **EVALUATED, out=str(run)), observer=Witness(until))
    observer = Witness()
    train(TrainConfig(out=str(run)), resume=True, observer=observer)
    assert evaluations(run) == evaluations(evaluated)
    same(load_file(run / BEST), load_file(evaluated / BEST))
    same(newest(run), newest(evaluated))
    assert sorted(file.name for file in (run / "snapshots").iterdir()) == sorted(
        file.name for file in (evaluated / "snapshots").iterdir()
    )


def test_signal_interrupts_an_evaluation_which_is_repeated(shoal, evaluated, tmp_path, monkeypatch):
    call_before(monkeypatch, Milestones, "_evaluate", lambda: send(signal.SIGTERM), at=3)
    words = ["train", *_words({**SMALL, **EVALUATED}), "--out", tmp_path / "run"]
    assert shoal(*words)[0] == 128 + signal.SIGTERM
    assert len(evaluations(tmp_path / "run")) == 2
    monkeypatch.undo()
    assert shoal("train", "--resume", tmp_path / "run", "--quiet")[0] == 0
    assert evaluations(tmp_path / "run") == evaluations(evaluated)
    same(newest(tmp_path / "run"), newest(evaluated))


def test_resumed_run_restores_its_best_return(evaluated, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(Crash):
        train(TrainConfig(**SMALL, **EVALUATED, out=str(run)), observer=Witness(99))
    milestones = Milestones(TrainConfig(**SMALL, **EVALUATED))
    milestones.begin(run, pytest.fail)
    assert milestones.best == max(mean for episode, mean in evaluations(evaluated).items() if episode < 99)


@pytest.mark.parametrize("harm", ["flip", "truncate", "header", "empty"])
def test_damaged_best_weights_are_refused(shoal, evaluated, tmp_path, harm):
    run = Path(shutil.copytree(evaluated, tmp_path / "run"))
    data = bytearray((run / BEST).read_bytes())
    if harm in ("flip", "header"):
        data[-20 if harm == "flip" else data.index(b"return_mean")] ^= 1
    (run / BEST).write_bytes({"truncate": data[:-7], "empty": b""}.get(harm, data))
    code, _, err = shoal("evaluate", run, "--checkpoint", "best")
    assert code == 2 and "is damaged" in err and len(err.splitlines()) == 1
    assert shoal("evaluate", run, "--episodes", "2")[0] == 0
    said = []
    milestones = Milestones(TrainConfig(**SMALL, **EVALUATED))
    milestones.begin(run, said.append)
    assert milestones.best is None and len(said) == 1 and "damaged" in said[0]


def test_incomparable_evaluations_warn(tmp_path):
    world = {"env": "gym:tests.envs.own_worlds:Unseeded", "episode_length": 5, "out": str(tmp_path / "run")}
    with pytest.warns(UserWarning, match="evaluations during training start from different states each time"):
        train(TrainConfig(**world, **SMALL, **EVALUATED))


def test_best_weights_of_another_run_are_replaced(evaluated, tmp_path):
    """A snapshot has no return, and another run's return is no measure for this one."""
    run, said = Path(shutil.copytree(evaluated, tmp_path / "run")), []
    other = Milestones(TrainConfig(**SMALL, **{**EVALUATED, "learning_rate": 0.5}))
    other.begin(run, said.append)
    newer = read_weights(run / BEST)
    newer.meta["settings"]["speed"] = 3
    with pytest.raises(disk.Damaged, match="another run's"):
        other._return_of(newer.meta)
    shutil.copy(next((run / "snapshots").iterdir()), run / BEST)
    own = Milestones(TrainConfig(**SMALL, **EVALUATED))
    own.begin(run, said.append)
    assert other.best is None and own.best is None
    assert "another run's" in said[0] and "were not evaluated" in said[1]


@pytest.mark.parametrize(
    "command",
    [
        "evaluate --episodes 2 --json",
        "export --out best.onnx",
        "quantize --episodes 2 --bits 8 --json",
        "watch --seed 1",
    ],
)
def test_commands_load_best_weights_and_snapshots(shoal, evaluated, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    run = Path(shutil.copytree(evaluated, tmp_path / "run"))
    name, *words = command.split()
    code, out, err = shoal(name, run, *words, "--checkpoint", "25" if name == "quantize" else "best")
    assert code == 0, err
    if name == "evaluate":
        assert json.loads(out)["checkpoint"] == "best"
    if name == "quantize":
        returns = json.loads(out)["rows"][0]["return_mean"], load(run).evaluate(2).mean
        assert returns[0] == load(run, checkpoint=25).evaluate(2).mean != returns[1]
    if name == "watch":
        assert (run / "episode-best.gif").exists() and not (run / "episode.gif").exists()
    code, _, err = shoal(name, run, *words, "--checkpoint", "12345")
    assert code == 2 and "no snapshot of episode 12345: it has those of 2" in err
    code, _, err = shoal(name, run, *words, "--checkpoint", "newest")
    assert code == 2 and "must be last, best or the episode of a snapshot" in err


def test_missing_weights_are_refused(shoal, tmp_path):
    train(TrainConfig(**{**SMALL, "episodes": 10}, out=str(tmp_path / "run")))
    for name, sentence in (("best", "--evaluate-every"), ("10", "--snapshots")):
        code, _, err = shoal("evaluate", tmp_path / "run", "--checkpoint", name)
        assert code == 2 and sentence in err
    (tmp_path / "policy.onnx").write_bytes(b"x")
    with pytest.raises(UserError, match="`checkpoint` is for run folders"):
        load(tmp_path / "policy.onnx", checkpoint="best")
