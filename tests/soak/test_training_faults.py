"""Trainings whose folder, system or environment goes wrong underneath them: the run's own results, or one sentence.

A run that can be continued afterwards ends with the weights of an undisturbed one.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.soak.harness import HOME, check_json, check_sentence, digest, returns
from tests.soak.test_kills import RUN, at_work, finished, seen, started

FULL = 40
TINY = "--episodes 60 --copies 2 --warmup 100 --batch 16 --hidden 8 --update-every 10 --checkpoint-every 10 --threads 1"
SECONDS = 180


def shoal(*words: object, limits: Callable[[], None] | None = None, **environment: str) -> subprocess.Popen[str]:
    """A command in a process of its own; file names may be no text."""
    code = "import sys; from shoal.cli import main; sys.exit(main())"
    paths = os.pathsep.join([str(HOME), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        env=os.environ | {"PYTHONPATH": paths} | environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", preexec_fn=limits,
    )  # fmt: skip


def refusal(said: str) -> str:
    """The last line of standard error, which is one sentence; nothing there is a traceback."""
    assert "Traceback" not in said, said
    last = said.strip().splitlines()[-1]
    check_sentence(last.removeprefix("shoal: "))
    return last


@contextlib.contextmanager
def read_only(*folders: Path) -> Iterator[None]:
    """Nothing can be made or deleted in these folders; root needs the attribute of the file system."""
    root = os.geteuid() == 0

    def switch(on: bool) -> bool:
        for folder in folders:
            if not root:
                folder.chmod(0o555 if on else 0o755)
            elif subprocess.run(["chattr", "+i" if on else "-i", folder], capture_output=True).returncode:
                return False
        return True

    try:
        if not switch(True):
            pytest.skip("this file system has no attribute for it")
        yield
    finally:
        switch(False)


def delete_all(run: Path, process: "subprocess.Popen[bytes]") -> str:
    shutil.rmtree(run, ignore_errors=True)
    shutil.rmtree(run, ignore_errors=True)  # what was made meanwhile
    return "gone"


def delete_checkpoints(run: Path, process: "subprocess.Popen[bytes]") -> str:
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    return "any"


def delete_files(run: Path, process: "subprocess.Popen[bytes]") -> str:
    for path in [run / "metrics.jsonl", run / "config.json", *run.glob("events*")]:
        path.unlink(missing_ok=True)
    return "any"


def forbid_writing(run: Path, process: "subprocess.Popen[bytes]") -> str:
    held = [folder for folder in (run, run / "checkpoints", run / "checkpoints" / "replay") if folder.is_dir()]
    with read_only(*held):
        process.wait(SECONDS)
    return "resumable"


FAULTS = (delete_all, delete_checkpoints, delete_files, forbid_writing)


@pytest.mark.slow
def test_folders_that_change_during_training(soak, tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    finished(started(*RUN, "--out", whole))
    for case in soak.cases(FULL):
        with case:
            shutil.rmtree(run, ignore_errors=True)
            fault = case.rng.choice(FAULTS)
            process = started(*RUN, "--out", run)
            if not seen(process, lambda process=process: at_work(process) and any(run.glob("checkpoints/[0-9]*"))):
                continue
            time.sleep(case.rng.uniform(0, 0.5))
            case.story = fault.__name__
            afterwards = fault(run, process)
            _, said = process.communicate(timeout=SECONDS)
            assert process.returncode in (0, 2), said.decode(errors="replace")
            if process.returncode == 2:
                refusal(said.decode(errors="replace"))
            case.count(f"{fault.__name__.replace('_', ' ')}, exit code {process.returncode}")
            if afterwards == "resumable":
                finished(started("--resume", run, "--quiet"))
            if afterwards == "resumable" or (process.returncode == 0 and run.is_dir()):
                assert digest(run) == digest(whole), "other weights"
                assert returns(run) == returns(whole), "other returns"


IN_ONE_PROCESS = """
import os, sys, threading
from tests.soak.harness import digest
from shoal import Callback, TrainConfig, train

folder, update = sys.argv[1:]
settings = dict(episodes=120, copies=4, warmup=200, batch=32, hidden=(16,), update_every=10, checkpoint_every=30)

def run(name, callbacks=()):
    config = TrainConfig(**settings, update=update, threads=1, evaluate_episodes=4, out=f"{folder}/{name}")
    result = train(config, callbacks=callbacks)
    return digest(__import__("pathlib").Path(result.run)), result.return_deterministic

class Inner(Callback):
    found = None
    def on_checkpoint(self, outer, path):
        if self.found is None:
            self.found = run("inside")

alone, again, inner, found = run("alone"), run("again"), Inner(), {}
found["again"], found["outside"], found["inside"] = again, run("outside", [inner]), inner.found
threads = [threading.Thread(target=lambda k=k: found.__setitem__(f"thread {k}", run(f"thread{k}"))) for k in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 7, found
child = os.fork()
if not child:
    os._exit(run("forked") != alone)
found["forked"] = alone if os.waitpid(child, 0)[1] == 0 else None
different = [name for name, result in found.items() if result != alone]
assert not different, different
"""


@pytest.mark.slow
@pytest.mark.parametrize("update", ["native", "torch"])
def test_several_trainings_in_one_process(tmp_path, update):
    """Twice, inside a callback, in four threads at once and after a fork: always the same weights and returns."""
    code = [sys.executable, "-c", IN_ONE_PROCESS, str(tmp_path), update]
    ended = subprocess.run(code, cwd=HOME, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", ["", "--env gym:tests.soak.faulty_worlds:Faulty --env-workers 2", "--actors 1"])
def test_few_file_descriptors(tmp_path, words):
    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    process = shoal("train", *TINY.split(), *words.split(), "--quiet", "--out", tmp_path / "run", limits=limits)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said


@pytest.mark.slow
@pytest.mark.parametrize("name", ["größe", os.fsdecode(b"no \xff text"), "esc\x1b[31m", "new\nline"])
@pytest.mark.parametrize("utf8", ["0", "1"])
def test_names_of_folders_in_a_locale_without_utf_8(tmp_path, name, utf8):
    locale = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": utf8, "PYTHONCOERCECLOCALE": "0"}
    out = os.fsencode(tmp_path / name)
    for words in (
        ["train", *TINY.split(), "--watch", "--out", out], ["train", "--resume", out, "--episodes", "80"],
        ["evaluate", out, "--episodes", "2"], ["watch", out], ["export", out, "--out", out + b"/policy.onnx"],
        ["evaluate", out + b"/policy.onnx", "--episodes", "2", "--json"],
    ):  # fmt: skip
        code = "import sys; from shoal.cli import main; sys.exit(main())"
        environment = os.environ | locale | {"PYTHONPATH": str(HOME)}
        ended = subprocess.run([sys.executable, "-c", code, *words], env=environment, capture_output=True)
        assert ended.returncode == 0 and b"Traceback" not in ended.stderr, (words, ended.stderr)
        assert b"\x1b" not in ended.stdout + ended.stderr and b"Warning" not in ended.stderr, ended.stderr
    assert len(json.loads(ended.stdout)) > 5


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_an_environment_that_hangs(tmp_path, workers):
    """The user is told after half a minute where the run hangs; Ctrl-C twice ends it, and the checkpoint stays."""
    words = ["--env", "gym:tests.soak.faulty_worlds:Hanging", *TINY.split(), "--env-workers", workers, "--quiet"]
    process = shoal("train", *words, "--out", tmp_path / "run")
    assert process.stderr is not None
    told = process.stderr.readline()
    place = r" in worker 1 of 2 (process " if workers == 2 else " for 30 s"
    assert told.startswith(f"gym:tests.soak.faulty_worlds:Hanging has not returned from step(){place}"), told
    for _ in range(2):
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in said and any((tmp_path / "run/checkpoints").iterdir())


@pytest.mark.slow
def test_an_environment_that_leaks(tmp_path):
    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))

    words = ["--env", "gym:tests.soak.faulty_worlds:Leaking", *TINY.split(), "--episodes", "100000", "--quiet"]
    process = shoal("train", *words, "--out", tmp_path / "run", limits=limits)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 2 and "memory" in refusal(said).lower(), said
    assert any((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.slow
def test_an_environment_that_prints(tmp_path):
    words = ["--env", "gym:tests.soak.faulty_worlds:Printing", *TINY.split(), "--json"]
    process = shoal("train", *words, "--out", tmp_path / "run")
    out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0 and check_json(out)["episodes"] == 60


LOG = 500_000_000


def most_memory(process: "subprocess.Popen[str]") -> int:
    """Wait for a process; the most bytes that it had in memory."""
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(OSError, StopIteration):
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            peak = max(peak, int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024)
        time.sleep(0.05)
    return peak


@pytest.mark.slow
def test_a_log_of_500_megabytes(tmp_path):
    """A run with such a log is resumed, drawn and evaluated with about the memory of any other, and soon."""
    run = tmp_path / "run"
    plain = shoal("train", *TINY.split(), "--keep-replay", "--quiet", "--out", run)
    usual = most_memory(plain)
    assert plain.returncode == 0
    enlarge(run / "metrics.jsonl", Random(0))
    began = time.monotonic()
    for words in (["train", "--resume", run, "--episodes", "120", "--quiet"], ["evaluate", run, "--episodes", "2"]):
        process = shoal(*words)
        peak = most_memory(process)
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.returncode == 0 and "Traceback" not in said, said
        assert peak < usual + 700_000_000, f"{words[0]} took {peak / 1e6:,.0f} MB, a run {usual / 1e6:,.0f} MB"
    assert time.monotonic() - began < 120 and (run / "curve.png").exists()
    assert (run / "metrics.jsonl").stat().st_size > LOG


def enlarge(log: Path, rng: Random) -> None:
    """Put lines in front of a log, and into the checkpoint's record of it, as a very long run would have written."""
    import hashlib

    from shoal.runs import disk

    held = log.read_bytes()
    first = json.loads(held.splitlines()[0])
    with log.open("wb") as file:
        while file.tell() < LOG:
            first["return_mean"] = rng.gauss(-30, 5)
            file.write((json.dumps(first) + "\n").encode() * 100)
        file.write(held)
    with log.open("rb") as file:
        mark = [log.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]
    newest = sorted((log.parent / "checkpoints").glob("[0-9]*"))[-1]
    meta = json.loads((newest / "meta.json").read_text())
    meta["meta"]["log"] = mark
    data = json.dumps(meta).encode()
    (newest / "meta.json").write_bytes(data)
    manifest = disk.unsealed(json.loads((newest / "manifest.json").read_text()))
    manifest["files"]["meta.json"] = {"size": len(data), "sha256": disk.sha256(data)}
    (newest / "manifest.json").write_text(json.dumps(disk.sealed(manifest)))
