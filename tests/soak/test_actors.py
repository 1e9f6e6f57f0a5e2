"""Processes of a run with actors that stop without dying, no shared memory, a Ray that dies under the learner."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.actorq.test_cluster import descendants
from tests.actorq.test_system import alive
from tests.soak.test_kills import ACTORS, check_ring, finished, named, newest, seen, started

FULL = 6
STOPPED = 30
"""Seconds."""


def last_line(run: Path) -> dict:
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.slow
def test_stopped_for_half_a_minute(soak, tmp_path):
    """An actor or the quantizer is replaced; if the learner is stopped, or all of them, everything goes on."""
    for case in soak.cases(FULL):
        with case:
            run = tmp_path / f"run{case.number}"
            process = started(*ACTORS, "--out", run, "--episodes", 10**7, "--capacity", 5_000)
            assert seen(process, lambda run=run: newest(run) > 0)
            below = descendants(process.pid)
            kind = ("actor", "quantizer", "learner", "everything")[case.number % 4]
            case.story = f"stops the {kind}"
            chosen = {
                "actor": case.rng.sample(named(below, "shoal.actorq.actor"), 1),
                "quantizer": named(below, "shoal.actorq.quantizer"),
                "learner": [process.pid],
                "everything": [process.pid, *below],
            }[kind]
            for pid in chosen:
                os.kill(pid, signal.SIGSTOP)
            before, _ = newest(run), time.sleep(STOPPED)
            if kind in ("actor", "quantizer"):
                assert not any(map(alive, chosen)), "it is still there"
                assert newest(run) > before, "the run waited for it"
            else:
                for pid in chosen:
                    os.kill(pid, signal.SIGCONT)
            before = newest(run)
            assert seen(process, lambda run=run, before=before: newest(run) > before + 500)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 128 + signal.SIGTERM
            replaced = last_line(run)["actors/replaced"]
            assert replaced == (1 if kind in ("actor", "quantizer") else 0), f"{replaced} processes were replaced"
            assert check_ring(run) > 1_000
            case.count(f"stops of the {kind}")
            shutil.rmtree(run)


@pytest.mark.slow
@pytest.mark.skipif(
    subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0,
    reason="needs a mount of its own",
)
@pytest.mark.parametrize("where", [[], ["--cluster", "local"]])
def test_a_full_dev_shm(tmp_path, where):
    """Nothing of ours is in it, and Ray falls back to files."""
    code = "import sys; from shoal.cli import main; sys.exit(main())"
    full = 'mount -t tmpfs -o size=1m none /dev/shm && head -c 1048576 /dev/zero > /dev/shm/full; exec "$@"'
    command = ["unshare", "-m", "sh", "-c", full, "sh", sys.executable, "-c", code, "train", *ACTORS, *where]
    done = subprocess.run([*command, "--out", str(tmp_path / "run")], capture_output=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert check_ring(tmp_path / "run") > 1_000


@pytest.mark.slow
@pytest.mark.parametrize("part", ["raylet", "gcs_server"])
def test_ray_that_dies_under_the_learner(tmp_path, part):
    run = tmp_path / "run"
    process = started(*ACTORS, "--cluster", "local", "--out", run, "--episodes", 10**7)
    assert seen(process, lambda: newest(run) > 0)
    below = descendants(process.pid)
    os.kill(next(pid for pid in below if Path(f"/proc/{pid}/comm").read_text().strip() == part), signal.SIGKILL)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2 and f"shoal: Ray's {part} on this machine has died" in said.decode()
    for pid in below:
        if alive(pid):  # Ray's helpers, which try for a minute to report it
            os.kill(pid, signal.SIGKILL)
    finished(started("--resume", run, "--trust", "--quiet", "--episodes", newest(run) + 1_000))
    assert check_ring(run) > 1_000
