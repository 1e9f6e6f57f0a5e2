"""Work in a process of its own."""

import os
import signal

import pytest

from shoal.errors import UserError
from shoal.profiling.apart import Ended, apart


def add(a, b, advance):
    advance(1.0, "half")
    advance(1.0, "done")
    return {"sum": a + b, "process": os.getpid()}


def complain(advance):
    raise UserError("not like this.")


def fail(advance):
    raise ArithmeticError


def vanish(advance):
    os.kill(os.getpid(), signal.SIGKILL)


def test_progress_and_result_come_back():
    said = []
    result = apart(add, 2, 3, advance=lambda *told: said.append(told))
    assert result["sum"] == 5 and result["process"] != os.getpid()
    assert said == [(1.0, "half"), (1.0, "done")]


def test_sentences_come_back():
    with pytest.raises(UserError, match="not like this"):
        apart(complain, advance=print)


def test_a_process_that_failed_is_told_of():
    with pytest.raises(Ended, match=r"code 1$"):
        apart(fail, advance=print)


def test_a_killed_process_is_told_of():
    with pytest.raises(Ended, match="memory"):
        apart(vanish, advance=print)


def test_whoever_waits_may_be_interrupted():
    def stop(*told):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apart(add, 2, 3, advance=stop)
