"""Work shared out to threads."""

import multiprocessing

import numpy as np
import pytest

from shoal.envs import make_env, particle
from shoal.system.threads import share_out


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_item_is_done_once(threads):
    played = np.zeros(7, int)
    shares = []

    def work(first, last, amount):
        played[first:last] += amount
        shares.append(last - first)
        return last - first

    assert sum(share_out(work, 7, threads, 5)) == 7
    assert (played == 5).all()
    assert len(shares) == threads
    assert max(shares) - min(shares) <= 1


def test_error_in_any_share_is_raised_after_all_finish():
    finished = []

    def work(first, last):
        if first == 2:
            raise ZeroDivisionError
        finished.append(first)

    with pytest.raises(ZeroDivisionError):
        share_out(work, 4, 4)
    assert sorted(finished) == [0, 1, 3]


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
def test_a_forked_process_makes_its_own_threads(monkeypatch):
    monkeypatch.setattr(particle, "THREADS_FROM", 0)
    env = make_env("cooperative-navigation", copies=4)
    actions = np.zeros((4, 3, 5), np.float32)
    env.step(actions)
    child = multiprocessing.get_context("fork").Process(target=env.step, args=(actions,))
    child.start()
    child.join(timeout=60)
    try:
        assert child.exitcode == 0
    finally:
        child.kill()
