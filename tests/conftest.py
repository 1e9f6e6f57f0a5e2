"""Tests run side by side, one thread each: small networks gain nothing from more; and however they were started."""

import os
import signal

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:  # as under nohup or in the background; our runs would inherit it
        signal.signal(_number, _handler)


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
