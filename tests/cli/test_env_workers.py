"""`shoal train --env-workers`: the same run as in one process, also when it is stopped and resumed."""

import json
import shlex
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from shoal import TrainConfig
from shoal.envs.parallel import ParallelCopies
from shoal.errors import UserError
from shoal.training import loop
from shoal.training.evaluation import build_env
from tests.cli.helpers import QUIET, call_before, lines, one_sentence, send

WORDS = [*QUIET, "--env", "gym:CartPole-v1", "--episode-length", "20", "--copies", "5", "--evaluate-episodes", "2"]


def learned(run):
    """What a run has learned and logged, without times."""
    (checkpoint,) = Path(run).glob("checkpoints/0*")
    kept = [
        {name: value for name, value in line.items() if not name.startswith(("time/", "seconds", "steps_per"))}
        for line in lines(run)
    ]
    result = json.loads((Path(run) / "result.json").read_text())
    return load_file(checkpoint / "weights.safetensors"), kept, result["return_deterministic"]


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory):
    from shoal.cli import main

    run = tmp_path_factory.mktemp("one") / "run"
    assert main(["train", *WORDS, "--out", str(run)]) == 0
    return learned(run)


@pytest.fixture
def started(monkeypatch):
    """The processes that are started during a test."""
    processes, popen = [], subprocess.Popen

    def noted(*arguments, **keywords):
        processes.append(popen(*arguments, **keywords))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    return processes


def test_workers_do_not_change_the_run(shoal, tmp_path, monkeypatch, in_one_process, started):
    """Stopped in the middle by a Ctrl-C, which a terminal sends to all processes; resumed with more workers."""
    run = tmp_path / "run"

    def interrupt():
        for process in started:
            process.send_signal(signal.SIGINT)
        send(signal.SIGINT)

    with monkeypatch.context() as patch:
        call_before(patch, loop.Training, "step", interrupt, at=100)
        assert shoal("train", *WORDS, "--env-workers", 2, "--out", run)[0] == 128 + signal.SIGINT
    assert len(started) == 2 and all(process.poll() is not None for process in started)
    assert shoal("train", "--resume", run, "--env-workers", 3, "--quiet")[0] == 0
    assert json.loads((run / "config.json").read_text())["env_workers"] == 3
    np.testing.assert_equal(learned(run), in_one_process)
    before = len(started)
    code, alone, _ = shoal("evaluate", run, "--episodes", 5, "--json")  # the run's workers are not the evaluation's
    assert code == 0 and json.loads(alone)["episodes"] == 5 and len(started) == before
    assert shoal("evaluate", run, "--episodes", 5, "--json", "--env-workers", 2)[:2] == (0, alone)
    assert len(started) == before + 2 * 3 and all(process.poll() is not None for process in started)
    code, _, err = shoal("evaluate", run, "--env-workers", 0)
    assert code == 2 and one_sentence(err) == "shoal: --env-workers is 0, but must be from 1 to 1024.\n"


@pytest.mark.parametrize("episodes", [1, 3])
def test_native_worlds_refuse_workers(episodes):
    with pytest.raises(UserError, match=r"^`env_workers` is not a setting of predator-prey; leave it out\.$"):
        build_env(TrainConfig(env="predator-prey", env_workers=2), episodes, 0, stagger=False)
    env = build_env(TrainConfig(env="gym:CartPole-v1", env_workers=2), 1, 0, stagger=False)
    assert isinstance(env, ParallelCopies)  # one copy is not shared


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--env-workers 0", "--env-workers is 0, but must be from 1 to 1024."),
        ("--env-workers 6", "--env-workers is 6, but there are only 5 copies to share (--copies)."),
        ("--env-workers 2 --copies 1", "--env-workers is 2, but there is only 1 copy to share (--copies)."),
        ("--env-workers two", "--env-workers 'two' is not a whole number or None"),
        ("--env-workers 2 --env predator-prey", "--env-workers is not a setting of predator-prey; leave it out."),
        ("--env-workers 2 --actors 1", "--actors and --env-workers cannot be used together"),
        ("--env-workers 2 --env-options {", "--env-options is not JSON"),
        ("--env-workers 2 --env-options [1]", "--env-options must be a JSON object"),
    ],
)
def test_wrong_worker_counts_are_refused(shoal, tmp_path, words, sentence):
    code, out, err = shoal("train", *WORDS, "--out", tmp_path / "run", *shlex.split(words))
    assert (
        code == 2 and out == "" and one_sentence(err).startswith(f"shoal: {sentence}") and not any(tmp_path.iterdir())
    )


def test_killed_worker_ends_the_run(shoal, tmp_path, monkeypatch, started):
    call_before(monkeypatch, loop.Training, "step", lambda: started[1].kill(), at=100)
    code, out, err = shoal("train", *WORDS, "--env-workers", 2, "--out", tmp_path / "run")
    assert code == 2 and out == "" and "A worker process of gym:CartPole-v1 was killed" in one_sentence(err)
    assert all(process.poll() is not None for process in started)
