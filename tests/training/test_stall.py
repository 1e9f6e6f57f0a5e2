"""An environment that does not return from its step."""

import signal
import threading
import time
from types import SimpleNamespace

import pytest

from shoal.runs.interrupt import Interrupt, Stopped
from shoal.training import stall
from shoal.training.clock import PhaseClock
from shoal.training.stall import StallWatch


@pytest.fixture
def run(monkeypatch):
    for name, seconds in (("LOOK", 0.01), ("LONG", 0.05), ("GIVE_UP", 0.1)):
        monkeypatch.setattr(stall, name, seconds)
    env = SimpleNamespace(awaited="")
    return SimpleNamespace(clock=PhaseClock(), samples=0, env=env, config=SimpleNamespace(env="gym:Slow-v0"))


def test_long_step_is_reported_once(run):
    said, heard = [], threading.Event()
    interrupt = Interrupt(said.append)

    def tell(sentence):
        said.append(sentence)
        heard.set()

    with StallWatch(run, tell, interrupt):
        run.clock("environment")
        assert heard.wait(10)
        time.sleep(0.05)
    assert said == [
        "gym:Slow-v0 has not returned from step() for 0 s; Ctrl-C twice ends the run, --resume continues it."
    ]


def test_returning_steps_and_other_phases_are_not_reported(run):
    said = []
    with StallWatch(run, said.append, Interrupt(said.append)):
        time.sleep(0.1)  # in the phase "other"
        run.clock("environment")
        for _ in range(20):
            run.samples += 1
            time.sleep(0.005)
    assert said == []


def test_stop_request_ends_a_hanging_step(run):
    said = []
    run.env.awaited = "worker 2 of 3 (process 7)"
    with (
        pytest.raises(Stopped) as stopped,
        Interrupt(lambda sentence: None) as interrupt,
        StallWatch(run, said.append, interrupt),
    ):
        run.clock("environment")
        signal.raise_signal(signal.SIGTERM)
        time.sleep(30)
    assert stopped.value.number == signal.SIGTERM
    assert len(said) == 2 and all("returned from step() in worker 2 of 3 (process 7) for" in line for line in said)
