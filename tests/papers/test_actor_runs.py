"""Curves of runs with actors: what is read from a run, means over seeds, times to a level, verdicts."""

import numpy as np
import pytest

from shoal.errors import UserError
from shoal_papers.quarl import actor_runs
from shoal_papers.quarl.actor_runs import Limit, Runs
from shoal_papers.seeds import with_interval

TINY = {"hidden": (8,), "batch": 32, "warmup": 100, "update_every": 50, "copies": 4, "log_every": 1, "capacity": 1_000}


def made(returns, seconds=None, random=0.0, updates=10, seed=0, **actors):
    """A run with these returns after 100, 200, … steps, and as many seconds per point."""
    steps = 100.0 * np.arange(1, len(returns) + 1)
    times = steps / 100 if seconds is None else np.asarray(seconds, float)
    return {
        "seed": seed, "env_steps": steps.tolist(), "seconds": times.tolist(), "returns": [*map(float, returns)],
        "updates": updates, "trained": float(returns[-1]), "random": random, "actors": actors,
    }  # fmt: skip


def test_run_ends_at_its_steps(tmp_path):
    settings = {"env": "cooperative-navigation", **TINY, "seed": 3}
    run = actor_runs.train_run({"train": settings, "steps": 2_000, "evaluate": 4}, tmp_path)
    assert len(run["returns"]) == actor_runs.POINTS and 1_900 <= run["env_steps"][-1] <= 2_000
    assert np.all(np.diff(run["seconds"]) >= 0) and run["seconds"][0] > 0
    assert run["seed"] == 3 and run["updates"] == int(run["env_steps"][-1]) // 50
    assert run["actors"] == {} and run["trained"] < 0 and run["random"] < 0
    with pytest.raises(UserError, match="No episode ended within 50 env steps"):
        actor_runs.train_run({"train": settings, "steps": 50, "evaluate": 4}, tmp_path)


def test_start_up_time_is_excluded():
    class Clock:
        now = 7.0

        def total(self):
            return self.now

    class Training:
        samples, clock = 0, Clock()

        class collector:
            metrics = staticmethod(lambda: {"actors/lag_mean": 2.0})

    training, limit = Training(), Limit(steps=100)
    limit.advance(training)
    training.samples, training.clock.now = 5, 9.0
    limit.advance(training)
    assert limit.started == 9.0
    training.samples, training.clock.now = 100, 12.0
    with pytest.raises(actor_runs.Enough):
        limit.advance(training)
    assert limit.passed == 3.0 and limit.metrics == {"actors/lag_mean": 2.0}
    with pytest.raises(actor_runs.Enough):
        limit = Limit(seconds=0.0)
        limit.advance(training)


def test_running_mean_is_causal():
    values = np.random.default_rng(0).normal(size=37)
    plain = [values[max(0, i - 9) : i + 1].mean() for i in range(37)]
    np.testing.assert_allclose(actor_runs.running_mean(values), plain)


def test_a_curve_of_log_lines():
    lines = [{"env_steps": 50 * k, "seconds": 4.0 + k, "return_mean": 10.0 * k} for k in range(1, 21)]
    curve = actor_runs.curve(lines, started=4.0, steps=1_000)
    assert curve["env_steps"][-1] == 1_000 and curve["env_steps"][0] == 10
    assert curve["seconds"][4] == pytest.approx(1.0) and curve["seconds"][-1] == 20
    assert curve["returns"][-1] == pytest.approx(np.mean(np.arange(11, 21)) * 10)


def test_the_level_and_the_time_to_it():
    runs = [made([-200, -150, -100, -120], random=-200.0), made([-200, -170, -140, -100], random=-200.0)]
    assert Runs(runs).best == pytest.approx(-110)
    level = Runs(runs).threshold
    assert level == pytest.approx(-200 + 0.95 * 90)  # 95 % of -110 would be above the best score
    assert Runs(runs).time_to(-160.0) == pytest.approx(2.0, abs=0.05)
    assert Runs(runs).time_to(-100.0) is None
    twice = [made([-200, -150, -100, -120], [2, 4, 6, 8])]
    assert Runs(twice).time_to(-150.0) == pytest.approx(4.0, abs=0.1)


def test_verdicts_need_all_seeds():
    assert actor_runs.loss_verdict([0.0, 1.0], 100.0) == "inconclusive with 2 of 3 seeds"
    assert actor_runs.loss_verdict([0.0, 1.0, -1.0], 100.0) == "holds"
    assert actor_runs.loss_verdict([-50.0, -51.0, -49.0], 100.0) == "does not hold"
    assert actor_runs.loss_verdict([-50.0, 40.0, 5.0], 100.0).startswith("inconclusive, the interval")
    assert actor_runs.speed_verdict([2.0, 2.1]) == "inconclusive with 2 of 3 seeds"
    assert actor_runs.speed_verdict([2.0, 2.1, 1.9]).endswith("): holds")
    assert actor_runs.speed_verdict([0.5, 0.5, 0.51]).endswith("): does not hold")
    assert actor_runs.speed_verdict([0.5, 2.0, 1.0]) == "1.00 times (0.18 to 5.59): inconclusive"


def test_kinds_are_compared_seed_by_seed():
    first, second = [made([k], seed=k) for k in (0, 2)], [made([10 * k], seed=k) for k in (2, 1)]
    ((own, other),) = actor_runs.pairs(first, second)
    assert own["seed"] == other["seed"] == 2 and other["returns"] == [20.0]


def test_metrics_of_actors():
    runs = [made([1, 2], bottleneck="actors", lag_mean=4.0, learner_wait_seconds=1.0),
            made([1, 2], bottleneck="learner", lag_mean=6.0, learner_wait_seconds=0.0)]  # fmt: skip
    assert Runs(runs).metric("lag_mean") == 5 and Runs(runs).metric("load_ms") is None
    assert Runs(runs).bottleneck == "actors and learner" and Runs([made([1, 2])]).bottleneck == ""
    assert Runs(runs).waiting("learner") == 25 and Runs(runs).waiting("actor") is None
    assert Runs(runs).steps_per_second == 100 and Runs(runs).updates_per_second == 5
    assert with_interval([]) == "not run" and with_interval([1.0]) == "1.0"


def test_a_panel_has_the_spread_of_the_seeds():
    panel = actor_runs.curves_panel("task", {"a": Runs([made([0, 10]), made([0, 20])]), "b": Runs()}, "env_steps", 7.0)
    (series,) = panel.series
    assert (series.low[-1], series.values[-1], series.high[-1]) == (10, 15, 20)
    assert panel.level == 7 and panel.x == "env steps"
