"""Tests run side by side, one thread each: small networks gain nothing from more; and however they were started."""

import base64
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import shoal.waiting

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("COLUMNS", None)  # tables have 80 characters

for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:  # as under nohup or in the background; our runs would inherit it
        signal.signal(_number, _handler)


shoal.waiting.FIRST = 600.0  # seconds: no test has a line more because the machine is busy


def pytest_addoption(parser):
    """Of the soaks in tests/soak, here because pytest asks only this file when it is run from the root."""
    group = parser.getgroup("soak", "random trials in tests/soak (-m slow), see docs/testing.md")
    group.addoption("--soak-scale", type=float, default=1.0, help="share of the full number of cases (default 1)")
    group.addoption("--soak-seed", type=int, default=0, help="seed of all cases (default 0)")
    group.addoption("--soak-case", type=int, default=None, help="run only the case of this number")


@pytest.fixture(autouse=True, scope="session")
def own_state(tmp_path_factory):
    """The key that signs runs is the tests' own, not that of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def figures_without_pictures():
    """Figures are built, but a white pixel is written in place of the picture, which would take most of a short run.

    Tests with `rendered`, such as all in tests/report, have the real ones.
    """
    from matplotlib.figure import Figure

    real = Figure.savefig

    def savefig(figure, file, **options):
        return real(figure, file, **options) if rendering else file.write(PIXEL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", savefig)
        yield


rendering = []
"""Not empty while a test wants real pictures."""
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4//8/AAX+Av4N70a4AAAAAElFTkSuQmCC")


@pytest.fixture
def rendered():
    """Pictures of this test are really drawn."""
    rendering.append(True)
    yield
    rendering.pop()


@pytest.fixture(autouse=True)
def one_thread():
    """Whatever the test before, or the start of numba's threads, has set: two workers with two threads would wait."""
    from shoal.runs.threads import set_torch_threads

    set_torch_threads(1)


@pytest.fixture
def without_torch(tmp_path):
    """Run a command in a process in which torch cannot be imported."""
    blocked = tmp_path / "blocked" / "torch"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('there is no torch here')")
    paths = os.pathsep.join([str(blocked.parent), str(Path(__file__).parents[1])])
    code = "import sys; from shoal.cli import main; sys.exit(main())"

    def run(*words):
        line = [sys.executable, "-c", code, *map(str, words)]
        environment = {**os.environ, "PYTHONPATH": paths}
        return subprocess.run(line, capture_output=True, text=True, env=environment, cwd=tmp_path)

    return run


@pytest.fixture
def shoal(capsys):
    """Run a command in this process: exit code, standard output, standard error."""

    def run(*words):
        from shoal.cli import main

        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return run
