"""Training killed at random moments, over and over: the run ends with the bits of an unbroken one.

With actors it ends with other bits, but nothing is lost, and every transition in the ring is one that happened.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from shoal.runs.checkpoint import Checkpoints
from shoal.training.config import read_config
from shoal.training.loop import Training
from shoal.training.resume import restore
from tests.actorq.test_cluster import descendants
from tests.actorq.test_system import alive
from tests.replay.model import all_live
from tests.soak import counting_world
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
ACTORS = (
    "--env gym:tests.soak.counting_world:Counting-v0 --algorithm dqn --episodes 6000 --actors 2 --copies 2 --batch 32 "
    "--warmup 200 --hidden 16 16 --update-every 10 --checkpoint-every 50 --log-every 50 --evaluate-episodes 0 "
    "--threads 1 --no-tensorboard --keep-replay --quiet"
).split()
"""The same with actors, in a world whose transitions can be checked."""
ACTOR_CASES, ACTOR_KILLS = 6, 8
CLUSTER_CASES, CLUSTER_KILLS = 2, 4


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
def test_random_kills(soak, tmp_path):
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


# ---- with actors ----------------------------------------------------------------------------------------------------


def check_ring(run: Path) -> int:
    """Load the newest checkpoint as a resume does and check all that its ring holds; returns how much that is."""
    training = Training(read_config(run).checked())
    checkpoint = Checkpoints(run / "checkpoints").load(pytest.fail)
    assert checkpoint is not None and restore(training, checkpoint) == 0, "transitions are missing"
    ring = training.ring
    batch = ring.gather(*all_live(ring))
    joint, after = batch.joint.reshape(-1, 5), batch.next_joint.reshape(-1, 5)
    counting_world.check(joint[:, :3], joint[:, 3:], batch.reward.ravel(), batch.terminated.ravel(), after[:, :3])
    return len(ring)


def disturb(process: "subprocess.Popen[bytes]", run: Path, rng: Random) -> str:
    """Kill the learner or one of its processes; what was done, or nothing if the run ended before."""
    checkpoints = run / "checkpoints"
    if not seen(process, lambda: at_work(process) and any(checkpoints.glob("[0-9]*"))):
        return ""
    what = rng.choice(["actor", "actor while a checkpoint is written", "learner", "learner", "learner, softly"])
    time.sleep(rng.uniform(0, 1.0))
    if "while" in what and not seen(process, lambda: writes(run)):
        return ""
    below = descendants(process.pid) if process.poll() is None else []
    if what.startswith("actor"):
        if not (actors := named(below, "shoal.actorq.actor", "ray::RemoteActor")):
            return ""
        os.kill(rng.choice(actors), signal.SIGKILL)
        return what
    process.send_signal(signal.SIGTERM if "softly" in what else signal.SIGKILL)
    if process.wait(SECONDS) not in (-signal.SIGKILL, 128 + signal.SIGTERM):
        return ""
    for pid in below:  # Ray's own try for a minute to report the end of what started them
        end = time.monotonic() + 20
        while alive(pid) and "ray" not in Path(f"/proc/{pid}/comm").read_text():
            assert time.monotonic() < end, f"process {pid} is left"
            time.sleep(0.01)
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    return what


def named(pids: list[int], *names: str) -> list[int]:
    """Those of the processes that have one of these names in their command lines."""
    words = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in pids if alive(pid)}
    return [pid for pid in words if any(name in words[pid] for name in names)]


def kill_over_and_over(case, run: Path, kills: int, *more: str) -> None:
    """A run with actors that is killed so often, and goes on each time to its end."""
    done: list[str] = []
    while len(done) < kills:
        shutil.rmtree(run, ignore_errors=True)
        process = started(*ACTORS, *more, "--out", run)
        while len(done) < kills and (what := disturb(process, run, case.rng)):
            done.append(what)
            case.story = f"disturbed {done}"
            case.count(f"kills of the {what}")
            if process.poll() is not None:
                assert check_ring(run) > 100
                process = started("--resume", run, "--trust", "--quiet")
        finished(process)
        assert json.loads((run / "result.json").read_text())["finished"] and check_ring(run) > 1_000
        case.count("runs")


@pytest.mark.slow
def test_kills_with_actors(soak, tmp_path):
    for case in soak.cases(ACTOR_CASES):
        with case:
            capacity = str(case.rng.choice([2_000, 100_000]))
            kill_over_and_over(case, tmp_path / "run", ACTOR_KILLS, "--capacity", capacity)


@pytest.mark.slow
def test_kills_on_a_cluster(soak, tmp_path):
    for case in soak.cases(CLUSTER_CASES):
        with case:
            kill_over_and_over(case, tmp_path / "run", CLUSTER_KILLS, "--cluster", "local")


@pytest.mark.slow
@pytest.mark.parametrize("stop", [None, signal.SIGTERM, signal.SIGKILL])
def test_a_run_with_actors_is_resumed_several_times(tmp_path, stop):
    """The commands of the report that it cannot be resumed a second time, and several stops in a row."""
    words = (
        "--actors 1 --keep-replay --hidden 16 16 --batch 64 --warmup 400 --evaluate-episodes 0 --quiet "
        "--checkpoint-every 50"
    ).split()
    run = tmp_path / "kx"
    process = started(*words, "--out", run, "--episodes", 200 if stop is None else 10**7)
    for episodes in (400, 600, 800, 1_000):
        if stop is None:
            finished(process)
            process = started("--resume", run, "--quiet", "--episodes", episodes)
        else:
            before = newest(run)
            assert seen(process, lambda before=before: newest(run) > before)
            process.send_signal(stop)
            assert process.wait(SECONDS) in (-stop, 128 + stop)
            process = started("--resume", run, "--quiet")
    if stop is not None:
        before = newest(run)
        assert seen(process, lambda: newest(run) > before)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 128 + signal.SIGTERM
    else:
        finished(process)
        assert newest(run) >= 1_000


def newest(run: Path) -> int:
    """The episode of the newest checkpoint."""
    return max((int(path.name) for path in (run / "checkpoints").glob("[0-9]*")), default=0)
