"""Copies in worker processes: the same results as in one process, and nothing left behind however it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import own_worlds
import pytest

from shoal.envs import make_env
from shoal.errors import UserError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
CORRIDOR = "gym:own_worlds:Corridor"
PLAN = {"scout": [0, 3, "terminated"], "carrier": [1, 6, "truncated"], "guard": [0, 9, "both"]}
RELAY = {"name": "pettingzoo:relay:Relay", "copies": 5, "seed": 3, "episode_length": 7, "options": {"plan": PLAN}}


def there(pid):
    """Whether a process is there; an orphan that is dead is its new parent's to wait for, not ours."""
    try:
        _, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return False
    state, parent, *_ = fields.split()
    return state != "Z" or int(parent) == os.getpid()


def gone(pids):
    """Whether these processes have ended, or do so soon."""
    deadline = time.monotonic() + 30
    while any(map(there, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(there, pids))


def pids(env):
    return [worker.process.pid for worker in env._workers]


def test_results_equal_those_of_one_process():
    """Agents that come and go, staggered copies that end at different times; and a state saved here or there."""
    one, two = make_env(**RELAY), make_env(**RELAY, workers=2)
    workers = pids(two)
    assert len(workers) == 2 and [len(range(5)[share]) for share in two._shares] == [2, 3]
    np.testing.assert_array_equal(two.reset(), one.reset())
    for t in range(30):
        actions = one.sample_actions()
        np.testing.assert_array_equal(two.sample_actions(), actions)
        if t % 2:
            actions = actions.argmax(-1)
        found = two.step(actions)
        assert all(isinstance(part, np.ndarray) for part in found) and found.metrics.shape == (5, 0)
        np.testing.assert_equal(found, one.step(actions))
        np.testing.assert_array_equal(two.episode_step, one.episode_step)
    np.testing.assert_equal(two.state(), one.state())
    saved, futures = one.state(), [one.sample_actions() for _ in range(20)]
    expected = [one.step(actions) for actions in futures]
    other = make_env(**RELAY)
    other.load_state(two.state())
    two.load_state(saved)
    for actions, step in zip(futures, expected, strict=True):
        np.testing.assert_equal(two.step(actions), step)
        np.testing.assert_equal(other.step(actions), step)
    two.close()
    two.close()
    assert gone(workers)
    with pytest.raises(UserError, match="is closed; make it again"):
        two.reset()


def test_rendering_and_validation_with_workers():
    env = make_env(CORRIDOR, copies=3, workers=2, options={"render_mode": "rgb_array"})
    for use in (env.state, env.render, lambda: env.step([[0]] * 3)):
        with pytest.raises(UserError, match="call reset"):
            use()
    env.reset()
    before = env.state()
    for wrong, words in (
        (np.zeros((3, 1)), r"must have \(3, 1, 3\)"),
        ([[0], [0], [3]], "in copy 2 of gym:own_worlds:Corridor was given choice 3"),
        (np.full((3, 1, 3), np.nan), "in copy 0 of gym:own_worlds:Corridor was given an action with NaN"),
        ([[0], [0, 1]], "not an array of numbers"),
    ):
        with pytest.raises(UserError, match=words):
            env.step(wrong)
    with pytest.raises(UserError, match="The saved state of gym:own_worlds:Corridor is of"):
        env.load_state({name: array[:2] for name, array in before.items()})
    np.testing.assert_equal(env.state(), before)  # still in use
    place = env.step([[1]] * 3).observation[0, 0, :6].argmax()
    np.testing.assert_array_equal(env.render(), np.full((2, 6, 3), place))
    env.close()


def test_invalid_image_is_refused_in_workers():
    env = make_env(own_worlds.Picture, copies=2, workers=2, options={"kind": "float"})
    env.reset()
    with pytest.raises(
        UserError, match=r"^The world '\S+' cannot be watched: its render\(\) returned an array of shape"
    ):
        env.render()


PLACE = r"\(own_worlds\.py:\d+ in step\)"
FAULTS = {
    "kill": (
        UserError,
        r"^A worker process of \S+ was killed, perhaps because memory ran out; use fewer `env_workers`\.$",
    ),
    "nan": (
        UserError,
        r"^Agent 'agent' in copy 2 of gym:own_worlds:Fatal got NaN or infinity in its obs",
    ),
    "raise": (UserError, rf"^gym:own_worlds:Fatal raised RuntimeError in step\(\): a wheel came off {PLACE}\.$"),
    "exit": (UserError, rf"^gym:own_worlds:Fatal called sys.exit\(0\) in step\(\) {PLACE}\.$"),
    "end": (UserError, r"^The worker process ended with exit code 2 without an error message\.$"),
    "memory": (UserError, r"^There is not enough memory; use fewer processes or copies\.$"),
    "unwritable": (UserError, r"raised RuntimeError in step\(\): \\udcff is no character"),
    "ask": (UserError, r"raised EOFError in step\(\): EOF when reading a line"),
}


@pytest.mark.parametrize("how", FAULTS)
def test_failing_worker_ends_the_others(how):
    env = make_env(own_worlds.Fatal, copies=4, workers=2, options={"how": how, "only": 2})
    workers = pids(env)
    env.reset()
    env.step([[1]] * 4)
    env.step([[1]] * 4)
    with pytest.raises(FAULTS[how][0], match=FAULTS[how][1]):
        env.step([[1]] * 4)
    assert gone(workers)
    with pytest.raises(UserError, match="is closed"):
        env.step([[1]] * 4)


def test_workers_end_with_their_user():
    env = make_env(CORRIDOR, copies=2, workers=2)
    workers = pids(env)
    del env
    assert gone(workers)


PARENT = """
import json, sys
from shoal.envs import make_env
env = make_env("gym:own_worlds:Corridor", copies=2, workers=2, options={"seconds": float(sys.argv[1])})
env.reset()
print(json.dumps([worker.process.pid for worker in env._workers]), flush=True)
while True:
    env.step([[1], [1]])
"""


@pytest.mark.parametrize(("number", "seconds"), [(signal.SIGKILL, 60.0), (signal.SIGINT, 0.0)])
def test_no_process_outlives_its_parent(number, seconds):
    """Neither between two steps nor within one; Ctrl-C goes to all of them."""
    paths = os.pathsep.join(sys.path)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(seconds)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths}, start_new_session=True,
    )  # fmt: skip
    workers = json.loads(parent.stdout.readline())
    time.sleep(0.1)
    os.kill(parent.pid, number) if number == signal.SIGKILL else os.killpg(parent.pid, number)
    assert parent.wait(60) != 0 and gone(workers)
    parent.stdout.close()


def test_nondeterministic_world_warns_once():
    env = make_env("gym:own_worlds:Unseeded", copies=2, workers=2)
    env.reset()
    env.step([[1], [1]])
    with pytest.warns(UserWarning, match="gym:own_worlds:Unseeded does not repeat an episode") as told:
        env.load_state(env.state())
    assert len(told) == 1
    env.close()


@pytest.mark.parametrize(
    ("name", "keywords", "words"),
    [
        (CORRIDOR, {"workers": 5}, "`workers` is 5, but must be from 1 to 4."),
        (CORRIDOR, {"workers": 0}, "`workers` is 0, but must be at least 1."),
        (CORRIDOR, {"workers": 1.5}, "`workers` is 1.5, but must be a whole number."),
        ("predator-prey", {}, "`workers` is not a setting of predator-prey; leave it out."),
        ("gym:__main__:Mine", {}, "is defined in the running script"),
        (CORRIDOR, {"options": {"length": np.int64(4)}}, "`options` must be JSON values"),
        (CORRIDOR, {"options": {"lenght": 4}}, "with the options {'lenght': 4}: "),
        ("gym:own_worlds:Unlike", {}, "gym:own_worlds:Unlike differs from copy to copy"),
    ],
)
def test_invalid_worker_counts_are_refused(name, keywords, words):
    with pytest.raises(UserError) as error:
        make_env(name, **{"copies": 4, "workers": 2, **keywords})
    assert words in str(error.value) and "\n" not in str(error.value)


def test_workers_that_do_not_fit_into_memory_are_refused(monkeypatch):
    monkeypatch.setattr("shoal.system.memory.free_memory", lambda: 10**8)
    with pytest.raises(UserError, match=r"Running 4 worker processes needs 160 MB.*at most 2 fit \(`env_workers`\)"):
        make_env(CORRIDOR, copies=4, workers=4)


def test_failure_to_start_a_process_is_a_user_error(monkeypatch):
    popen, started = subprocess.Popen, []

    def second_fails(*arguments, **keywords):
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(popen(*arguments, **keywords))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", second_fails)
    with pytest.raises(UserError, match=r"^A process for another worker cannot be started \(Resource temporarily unav"):
        make_env(CORRIDOR, copies=3, workers=3)
    assert gone([started[0].pid])
