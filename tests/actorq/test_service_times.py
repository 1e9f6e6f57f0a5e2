"""Service times of a running system: of one actor, of the learner, and of both at once."""

import math

import pytest

from shoal.actorq.service_times import Observed, measure, service_times
from shoal.system.processors import usable_processors
from shoal.training.config import TrainConfig


def test_service_times_of_a_running_system():
    task = {"env": "gym:CartPole-v1", "algorithm": "dqn", "hidden": (8, 8), "batch": 32, "copies": 1}
    found = measure(TrainConfig(actors=1, actor_engine="onnx", actor_precision="int8", **task), 0.3)
    for name in ("learner_ms", "step_ms", "insert_ms", "pull_ms", "load_ms", "quantize_ms"):
        assert 0 < getattr(found, name) < math.inf, name
    assert found.pull_bytes % 8 == 0 and found.pull_bytes > 8 * 8 + 4 * 8 + 8 * 2
    assert found.transition_bytes > 4 * (2 * 4 + 2) and found.contention >= 0


def test_contention_is_the_mutual_slowdown():
    """An actor with steps of 1 ms and a learner with updates of 10 ms, of which both take half as long again."""
    part = {
        "actors": 1, "engine": "onnx", "seconds": 3.0, "samples": 0, "updates": 0, "lags": [], "steps": 0, "act": 0.0,
        "pull": 0.0, "load": 0.0, "wait": 0.0, "pulls": 0, "pulled_bytes": 0, "quantized": 0, "quantize": 0.0,
        "update_cpu": 0.0, "insert_cpu": 0.0, "learner_wait": 0.0, "actors_delay": 0.0, "actors_cpu": 3.0,
        "quantizer_cpu": 0.0, "learner_cpu": 3.0, "machine_cpu": 7.5, "bottleneck": "actors",
        "transition_bytes": 59.0,
    }  # fmt: skip
    playing = Observed(**part | {"steps": 3000, "samples": 3000, "insert_cpu": 0.06, "learner_wait": 2.94})
    waited = {"wait": 1.0, "actors_delay": 1.0}  # of two seconds it had a processor for one
    pulls = {"pulls": 10, "pull": 0.3, "load": 0.6, "pulled_bytes": 80, "quantized": 4, "quantize": 0.06}
    steps = round((3 - 1 - 0.9) / 2 / 1.5e-3)
    both = Observed(**part | waited | pulls | {"steps": steps, "updates": 200, "update_cpu": 200 * 10e-3 * 4 / 3})
    learning = Observed(**part | {"updates": 300, "update_cpu": 3.0})
    found = service_times(playing, both, learning)
    assert found.contention == pytest.approx(0.5, rel=0.01)  # the actor was there for two thirds of the time
    assert (found.learner_ms, found.step_ms, found.insert_ms) == pytest.approx((10, 1, 0.02))
    assert (found.pull_ms, found.load_ms, found.quantize_ms) == pytest.approx((10, 20, 5), rel=0.01)
    assert (found.pull_bytes, found.transition_bytes) == (8, 59)
    assert learning.others == pytest.approx(1.5 / (3 * usable_processors()))
