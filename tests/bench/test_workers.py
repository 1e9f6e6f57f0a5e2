"""The comparison of worker processes with one process. Speeds themselves are never asserted."""

import numpy as np
import pytest

from shoal.bench import workers
from shoal.bench.workers import SlowWorld


def test_rows_of_the_bench(monkeypatch):
    monkeypatch.setattr(workers, "COPIES", 2)
    monkeypatch.setattr(workers, "SECONDS", 0.0)
    (row,) = workers.run(("waits", 2), seconds=0.0)
    assert row["step"] == "waits for 0 ms" and row["workers"] == 2
    assert row["ratio"] == pytest.approx(row["steps_per_second"] / row["one_process_steps_per_second"])


def test_a_slow_world_is_an_environment():
    for waits in (False, True):
        world = SlowWorld(0.0, waits)
        assert np.array_equal(world.reset(seed=1)[0], world.reset(seed=1)[0])
        assert [world.step(1)[3] for _ in range(100)].index(True) == 99
