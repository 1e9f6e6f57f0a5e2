"""Functions called in child processes: results, progress, faults, kills and interrupts."""

import os
import signal
import time

import pytest

from shoal.errors import UserError
from shoal.system.calls import ChildPool, call_in_child
from shoal.system.child import Ended


def add(a, b, advance=None):
    if advance is not None:
        advance(1.0, "half")
        advance(1.0, "done")
    return {"sum": a + b, "process": os.getpid()}


def refuse():
    raise UserError("not like this.")


def fail():
    raise ArithmeticError("a fault")


def vanish():
    os.kill(os.getpid(), signal.SIGKILL)


def interrupted():
    raise KeyboardInterrupt


def sleep(seconds):
    time.sleep(seconds)


def variable(name):
    return os.environ.get(name)


def test_progress_and_result_are_returned():
    progress = []
    result = call_in_child(add, 2, 3, advance=lambda *values: progress.append(values))
    assert result["sum"] == 5 and result["process"] != os.getpid()
    assert progress == [(1.0, "half"), (1.0, "done")]


def test_errors_return_as_a_sentence_or_a_traceback():
    with pytest.raises(UserError, match=r"^not like this\.$"):
        call_in_child(refuse)
    with pytest.raises(RuntimeError, match=r"(?s)^the calls process failed:\n.*in fail.*ArithmeticError: a fault"):
        call_in_child(fail)


def test_a_killed_process_is_reported():
    with pytest.raises(Ended, match="was killed, perhaps because memory ran out"):
        call_in_child(vanish)


def test_calls_have_a_time_limit():
    with pytest.raises(TimeoutError):
        call_in_child(sleep, 60, timeout=1)


def test_caller_can_be_interrupted():
    def stop(*progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_in_child(add, 2, 3, advance=stop)


def test_threads_of_libraries_are_limited(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert call_in_child(variable, "OMP_NUM_THREADS") == "1"
    assert call_in_child(variable, "OMP_NUM_THREADS", threads=None) == "7"
    assert call_in_child(variable, "SHOAL_CACHE", environment={"SHOAL_CACHE": "there"}) == "there"


def test_a_pool_keeps_its_processes_for_further_calls():
    with ChildPool(2) as pool:
        results = [future.result() for future in [pool.submit(add, k, 1) for k in range(6)]]
        assert [result["sum"] for result in results] == [1, 2, 3, 4, 5, 6]
        assert 1 <= len({result["process"] for result in results}) <= 2
        for function, error in ((refuse, UserError), (vanish, Ended), (interrupted, KeyboardInterrupt)):
            with pytest.raises(error):
                pool.submit(function).result()
        assert pool.submit(add, 1, 1).result()["sum"] == 2


def test_killed_pool_returns_at_once():
    begun = time.monotonic()
    with ChildPool(1) as pool:
        running, waiting = pool.submit(sleep, 60), pool.submit(sleep, 60)
        while not running.running():
            time.sleep(0.01)
        pool.kill()
        with pytest.raises(Ended):
            running.result()
        assert waiting.cancelled()
    assert time.monotonic() - begun < 30
