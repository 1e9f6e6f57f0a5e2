"""Commands run in this process or in their own; a finished and a stopped run."""

import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.runs import interrupt
from shoal.training import loop
from tests.cli.helpers import SHORT, call_before, send


@pytest.fixture(autouse=True)
def tidy(monkeypatch):
    """A command sets signal handlers and extends the path of modules; both are put back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(interrupt, "PATIENCE", 3600)  # a run that saves slowly on a busy machine would say so
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def process():
    """Run a command line of the shell with `shoal` in it, in a process of its own."""

    def run(line, **options):
        code = "import sys; from shoal.cli import main; sys.exit(main())"
        line = line.replace("shoal", f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}", 1)
        return subprocess.run(line, shell=True, capture_output=True, text=True, timeout=300, **options)

    return run


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A finished run, to be looked at only."""
    run = tmp_path_factory.mktemp("finished") / "run"
    assert main(["train", *SHORT, "--quiet", "--checkpoint-every", "20", "--out", str(run)]) == 0
    return run


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory):
    """A run that was stopped after some lines of its log, to be looked at only."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        call_before(patch, loop.Training, "step", lambda: send(signal.SIGTERM), at=50)
        assert main(["train", *SHORT, "--quiet", "--out", str(run)]) == 128 + signal.SIGTERM
    return run


@pytest.fixture
def finished(finished_run, tmp_path):
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.fixture
def stopped(stopped_run, tmp_path):
    return Path(shutil.copytree(stopped_run, tmp_path / "run"))
