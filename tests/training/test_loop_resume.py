"""A run that was killed, interrupted or whose files were damaged ends with the bits of an uninterrupted one."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from shoal import TrainConfig, train
from shoal.cli import main
from shoal.errors import ActorsLost, UserError
from shoal.runs import disk, lifecycle
from shoal.runs.observer import Observer
from shoal.training import loop
from shoal.training.result import COLUMNS
from shoal.training.saved_team import BEST
from tests.training.witness import Crash, Witness

ARGUMENTS = (
    "--env cooperative-navigation --episodes 160 --warmup 400 --batch 64 --hidden 16 16 --update-every 20 "
    "--checkpoint-every 16 --log-every 16 --evaluate-episodes 10 --no-tensorboard --threads 1 --quiet "
    "--evaluate-every 24 --evaluate-during 3"
).split()


IN_RUN = """
import os, signal, sys
from shoal.cli import main
from shoal.training import loop

def run(team, *arguments, run=loop.TeamRun.run):
    {begin}
    run(team, *arguments)

def step(training, step=loop.Training.step):
    {each}
    return step(training)

loop.TeamRun.run, loop.Training.step = run, step
sys.exit(main())
"""


def command(*words, begin="pass", each="pass"):
    """A command in a process of its own that runs code when training begins and before each step.

    A test that waited for the right moment would miss it on a busy machine.
    """
    return [sys.executable, "-c", IN_RUN.format(begin=begin, each=each), *map(str, words)]


def newest(run):
    """The weights of the newest checkpoint."""
    return load_file(sorted(Path(run, "checkpoints").glob("[0-9]*"))[-1] / "weights.safetensors")


def stored(run):
    """What the newest checkpoint says of itself."""
    return json.loads((sorted(Path(run, "checkpoints").glob("[0-9]*"))[-1] / "meta.json").read_text())["meta"]


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].tobytes() == b[name].tobytes(), name


def returns(run):
    """All of the log but times."""
    timed = ("seconds", "steps_per_second", "time/")
    log = map(json.loads, (Path(run) / "metrics.jsonl").open())
    return [{key: value for key, value in line.items() if not key.startswith(timed)} for line in log]


@pytest.fixture(scope="module", params=["masac-neighbor"])
def whole(request, tmp_path_factory):
    """An uninterrupted run, and the arguments that made it."""
    algorithm, sampler = request.param.split("-")
    # a ring that wraps: oldest transitions are forgotten before the end
    extra = ["--algorithm", algorithm, "--sampler", sampler, "--capacity", "2000"]
    run = tmp_path_factory.mktemp(request.param) / "whole"
    assert main(["train", *ARGUMENTS, *extra, "--out", str(run)]) == 0
    return run, [*ARGUMENTS, *extra]


def finish(run):
    assert main(["train", "--resume", str(run), "--quiet"]) == 0


def test_killed_at_random_moments(whole, tmp_path):
    run, arguments = whole
    rng = random.Random(7)
    kills, words = 0, ["train", *arguments, "--out", tmp_path / "run"]
    while kills < 4:
        # after some CPU time, in the middle of steps, updates and checkpoints being written; SIGPROF ends a process
        timer = f"signal.setitimer(signal.ITIMER_PROF, {rng.uniform(0.001, 0.3)})"
        process = subprocess.run(command(*words, begin=timer), stderr=subprocess.DEVNULL)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGPROF
        kills += 1
        words = ["train", "--resume", tmp_path / "run", "--quiet"]
    assert kills
    finish(tmp_path / "run")
    same(newest(run), newest(tmp_path / "run"))
    same(load_file(run / BEST), load_file(tmp_path / "run" / BEST))
    assert returns(run) == returns(tmp_path / "run")


def test_older_run_resumes_in_torch(tmp_path):
    """Its settings do not say with what it learns, and its random state is torch's."""
    run, arguments = tmp_path / "run", [*ARGUMENTS, "--update", "torch"]
    assert main(["train", *arguments, "--out", str(tmp_path / "whole")]) == 0
    stop = "if training.saved: os.kill(os.getpid(), signal.SIGTERM)"
    process = subprocess.run(command("train", *arguments, "--out", run, each=stop), stderr=subprocess.DEVNULL)
    assert process.returncode == 128 + signal.SIGTERM
    for checkpoint in run.glob("checkpoints/[0-9]*"):
        held = json.loads((checkpoint / "meta.json").read_text())
        del held["meta"]["settings"]["update"]
        text = json.dumps(held).encode()
        (checkpoint / "meta.json").write_bytes(text)
        manifest = disk.unsealed(json.loads((checkpoint / "manifest.json").read_text()))
        manifest["files"]["meta.json"] = {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        (checkpoint / "manifest.json").write_text(json.dumps(disk.sealed(manifest)))
    settings = disk.unsealed(json.loads((run / "config.json").read_text()))
    del settings["update"]
    (run / "config.json").write_text(json.dumps(disk.sealed(settings)))
    finish(run)
    assert json.loads((run / "config.json").read_text())["update"] == "torch"
    same(newest(tmp_path / "whole"), newest(run))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_save_and_print_the_resume_command(whole, tmp_path, number):
    run, arguments = whole
    stop = f"if training.saved: os.kill(os.getpid(), {number:d})"
    words = command("train", *arguments, "--out", tmp_path / "run", each=stop)
    process = subprocess.run(words, stderr=subprocess.PIPE, text=True)
    assert process.returncode == 128 + number
    # numba's threads start after the number of torch's was chosen, only in a process of its own
    assert stored(tmp_path / "run")["threads"] == 1
    assert f"shoal train --resume {tmp_path / 'run'}" in process.stderr
    finish(tmp_path / "run")
    same(newest(run), newest(tmp_path / "run"))


SMALL = {
    "episodes": 160, "warmup": 400, "batch": 64, "hidden": (16, 16), "update_every": 20, "checkpoint_every": 16,
    "log_every": 16, "evaluate_episodes": 10, "tensorboard": False, "capacity": 2000,
}  # fmt: skip


NORMALISED = {"normalize_observations": True, "normalize_rewards": True, "learning_rate_schedule": "cosine"}


def crashed_run(run, until, **options):
    with pytest.raises(Crash):
        train(TrainConfig(**{**SMALL, **options}, out=str(run)), observer=Witness(until))


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The same settings run in this process without any trouble."""
    run = tmp_path_factory.mktemp("calm") / "run"
    train(TrainConfig(**SMALL, out=str(run)))
    return run


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """A run that crashed, with checkpoints at 48 and 64; to be copied."""
    run = tmp_path_factory.mktemp("crashed") / "run"
    crashed_run(run, until=70)
    return run


@pytest.mark.parametrize("harm", ["truncate", "flip", "delete"])
@pytest.mark.parametrize("what", ["weights", "optimizer", "random", "environment", "training", "meta", "segment"])
def test_damaged_checkpoint_falls_back_to_the_previous(calm, crashed, tmp_path, what, harm):
    run = Path(shutil.copytree(crashed, tmp_path / "run"))
    last = sorted((run / "checkpoints").glob("[0-9]*"))[-1]
    if what == "segment":  # the newest one: the checkpoint before does not need it
        path = sorted((run / "checkpoints" / "replay").iterdir())[-1]
    else:
        path = next(last.glob(f"{what}.*"))
    data = bytearray(path.read_bytes())
    if harm == "delete":
        path.unlink()
    elif harm == "truncate":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    witness = Witness()
    assert train(TrainConfig(out=str(run)), resume=True, observer=witness).finished
    assert len(witness.said) == 1 and last.name in witness.said[0]
    same(newest(calm), newest(run))
    assert returns(calm) == returns(run)


@pytest.mark.parametrize("until", [1, 15, 17, 100, 159])
def test_resume_after_a_crash_at_any_point(calm, tmp_path, until):
    crashed_run(tmp_path / "run", until)
    train(TrainConfig(out=str(tmp_path / "run")), resume=True)
    same(newest(calm), newest(tmp_path / "run"))
    assert returns(calm) == returns(tmp_path / "run")


def test_killed_between_the_last_episode_and_the_result(calm, tmp_path):
    class KilledAtTheEnd(Observer):
        def end(self):
            raise Crash

    with pytest.raises(Crash):
        train(TrainConfig(**SMALL, out=str(tmp_path / "run")), observer=KilledAtTheEnd())
    assert not (tmp_path / "run" / "result.json").exists()
    result = train(TrainConfig(out=str(tmp_path / "run")), resume=True)
    assert result.finished and result.return_random is not None
    same(newest(calm), newest(tmp_path / "run"))
    assert returns(calm) == returns(tmp_path / "run")


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "masac", "sampler": "neighbor", "storage": "float16", "learn_entropy": True},
        {"env": "predator-prey", "prey": "learned", "minibatch": "independent", "copies": 7} | NORMALISED,
        {"env": "predator-prey", "prey": "facmac", "rules": "openai", "variant": "tf2", "algorithm": "masac"},
        {"env": "pettingzoo:mpe2.simple_speaker_listener_v4", "episode_length": 20, "copies": 3},
        {"env": "gym:Pendulum-v1", "episode_length": 20, "copies": 3},
    ],
    ids=str,
)
def test_every_kind_of_run_resumes_exactly(tmp_path, options):
    whole = train(TrainConfig(**{**SMALL, **options}, out=str(tmp_path / "whole")))
    crashed_run(tmp_path / "run", until=90, **options)
    resumed = train(TrainConfig(out=str(tmp_path / "run")), resume=True)
    for field in COLUMNS:
        assert getattr(whole, field) == getattr(resumed, field)
    same(newest(tmp_path / "whole"), newest(tmp_path / "run"))
    assert returns(tmp_path / "whole") == returns(tmp_path / "run")


def test_a_resumed_run_keeps_its_settings(tmp_path):
    crashed_run(tmp_path / "run", until=40)
    with pytest.raises(UserError, match=r"`batch` is 32, but the run in .* has 64"):
        train(TrainConfig(batch=32, out=str(tmp_path / "run")), resume=True)


def test_resume_without_checkpoint_starts_over(shoal, whole, tmp_path):
    run, _arguments = whole
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text((run / "config.json").read_text())
    code, _, err = shoal("train", "--resume", tmp_path / "run")
    assert code == 0 and "starting over" in err
    same(newest(run), newest(tmp_path / "run"))


def test_run_killed_while_creating_its_folder_resumes(tmp_path, monkeypatch):
    run = tmp_path / "run"

    def killed(folder, *arguments, **named):
        (folder / "metrics.jsonl").touch()
        raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(lifecycle, "MetricsLog", killed)
        train(TrainConfig(episodes=1, evaluate_episodes=0, out=str(run)))
    with pytest.raises(UserError, match="already holds a run: resume it"):
        train(TrainConfig(episodes=1, evaluate_episodes=0, out=str(run)))
    assert train(TrainConfig(out=str(run)), resume=True).finished


def test_resume_of_a_finished_run_does_nothing(shoal, whole):
    run, _ = whole
    before = os.stat(run / "metrics.jsonl").st_mtime_ns
    for words in (["--resume", run], ["--out", run, "--resume"]):
        code, _, err = shoal("train", *words)
        assert code == 0 and "finished" in err
    assert os.stat(run / "metrics.jsonl").st_mtime_ns == before


@pytest.mark.parametrize("stopped", [True, False])
def test_stopping_run_without_actors_is_saved(tmp_path, monkeypatch, stopped):
    """A signal to all processes of a run ends those that play before the learner has come to a safe point."""
    step, steps = loop.Training.step, []

    def lose(training):
        steps.append(training)
        if len(steps) < 20:
            return step(training)
        if stopped:
            signal.raise_signal(signal.SIGTERM)
        raise ActorsLost("They are gone.")

    monkeypatch.setattr(loop.Training, "step", lose)
    config = TrainConfig(out=str(tmp_path / "run"), hidden=(4,), threads=1, tensorboard=False, evaluate_episodes=0)
    if not stopped:
        with pytest.raises(ActorsLost):
            train(config)
    else:
        result = train(config)
        assert result.signal == signal.SIGTERM and result.env_steps == steps[0].samples > 0
        assert any((tmp_path / "run" / "checkpoints").iterdir())
