"""Training killed with SIGKILL at random moments, over and over: the run ends with the bits of an unbroken one."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.soak.harness import HOME, digest, returns

FULL, KILLS = 100, 10
"""Kills, and kills of a case: it begins another run if one is finished before."""
SECONDS = 120
EPISODES = 400
RUN = (
    f"--episodes {EPISODES} --copies 4 --warmup 200 --batch 32 --hidden 16 16 --update-every 10 --algorithm masac "
    "--sampler neighbor --capacity 1500 --checkpoint-every 20 --log-every 10 --evaluate-episodes 400 --threads 1 "
    "--quiet"
).split()
"""Half a second of training between many checkpoints, a ring that wraps around, and some evaluation."""


def started(*words: object) -> "subprocess.Popen[bytes]":
    code = "import sys; from shoal.cli import main; sys.exit(main())"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HOME), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", code, "train", *map(str, words)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finished(process: "subprocess.Popen[bytes]") -> None:
    """Wait for a process that nobody kills."""
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said.decode(errors="replace")


def at_work(process: "subprocess.Popen[bytes]") -> bool:
    """Whether the process has its run: it holds the folder's lock, which to try for would be to get in its way."""
    return any("FLOCK" in line and str(process.pid) in line.split() for line in Path("/proc/locks").open())


def writes(run: Path) -> bool:
    """Whether a checkpoint is being written."""
    return any((run / "checkpoints").glob(".*.new"))


def evaluates(run: Path) -> bool:
    """Whether the trained team plays: the last checkpoint is there, and the result is not."""
    last = any(int(path.name) >= EPISODES for path in (run / "checkpoints").glob("[0-9]*"))
    return last and not (run / "result.json").exists()


def seen(process: "subprocess.Popen[bytes]", sign: Callable[[], bool]) -> bool:
    """Wait for a sign, or for the end of the process."""
    end = time.monotonic() + SECONDS
    while process.poll() is None:
        if sign():
            return True
        assert time.monotonic() < end, "the process does not get on"
        time.sleep(0.0005)
    return False


def killed(process: "subprocess.Popen[bytes]", run: Path, rng: Random) -> str:
    """Kill a process at a random moment of its work; what it was at, or nothing if it ended before."""
    if not seen(process, lambda: at_work(process)):
        return ""
    sign, longest = rng.choice(
        ((lambda: True, 1.0), (lambda: True, 3.0), (lambda: writes(run), 0.005), (lambda: evaluates(run), 0.3))
    )
    if not seen(process, sign):
        return ""
    time.sleep(rng.uniform(0, longest))
    process.kill()
    if process.wait() != -9:
        return ""
    return "writing a checkpoint" if writes(run) else "evaluating" if evaluates(run) else "training"


def log(run: Path) -> list[tuple[object, ...]]:
    """The lines of the log without their times."""
    names = ("episode", "env_steps", "updates", "return_mean", "loss/q")
    return [tuple(map(line.get, names)) for line in map(json.loads, (run / "metrics.jsonl").open())]


@pytest.mark.slow
def test_kills(soak, tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    finished(started(*RUN, "--out", whole))
    for case in soak.cases(FULL // KILLS):
        with case:
            kills = 0
            while kills < KILLS:
                shutil.rmtree(run, ignore_errors=True)
                places: list[str] = []
                process = started(*RUN, "--out", run)
                while kills < KILLS and (place := killed(process, run, case.rng)):
                    places.append(place)
                    case.count(f"kills while {place}")
                    case.story, kills = f"killed {places}", kills + 1
                    process = (
                        started("--resume", run, "--quiet")
                        if (run / "config.json").exists()
                        else started(*RUN, "--out", run)
                    )
                finished(process)
                assert digest(run) == digest(whole), "other weights"
                assert returns(run) == returns(whole) and log(run) == log(whole), "other returns"
                case.count("runs")
