"""Tests run side by side, one thread each: small networks gain nothing from more; and however they were started."""

import os
import signal

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:  # as under nohup or in the background; our runs would inherit it
        signal.signal(_number, _handler)


def pytest_addoption(parser):
    """Of the soaks in tests/soak, here because pytest asks only this file when it is run from the root."""
    group = parser.getgroup("soak", "random trials in tests/soak (-m slow), see docs/testing.md")
    group.addoption("--soak-scale", type=float, default=1.0, help="share of the full number of cases (default 1)")
    group.addoption("--soak-seed", type=int, default=0, help="seed of all cases (default 0)")
    group.addoption("--soak-case", type=int, default=None, help="run only the case of this number")


@pytest.fixture(autouse=True)
def one_thread():
    """Whatever the test before, or the start of numba's threads, has set: two workers with two threads would wait."""
    from shoal.training.setup import set_torch_threads

    set_torch_threads(1)


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
