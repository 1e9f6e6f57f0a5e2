"""The replay bench measures what it says; how fast is for people to read, not for a test."""

import numpy as np
import pytest

from shoal.bench import replay
from shoal.envs import make_env


def test_a_row_for_each_team_storage_and_sampler():
    rows = [row for n in (1, 3) for row in replay.run(n, batch=32, seconds=0.01, size=2**20)]
    assert [(row["agents"], row["storage"], row["sampler"]) for row in rows] == [
        (agents, storage, sampler)
        for agents in (1, 3)
        for storage in ("float32", "float16")
        for sampler in ("uniform", "neighbor")
    ]
    for row in rows:
        assert row["sample_gb_per_second"] > 0
        assert row["ratio"] == pytest.approx(row["sample_gb_per_second"] / row["copy_gb_per_second"])
        assert row["bytes_ratio"] == pytest.approx(row["bytes_per_transition"] / row["both_observations_bytes"])


def test_bytes_of_a_transition_at_three_agents():
    full, half = (replay.run(3, batch=8, seconds=0, size=2**22)[k] for k in (0, 2))
    assert full["both_observations_bytes"] == 4 * (2 * 3 * 18 + 3 * 5 + 3 + 3)  # 516, as in the facts of the design
    assert full["row_bytes"] == 4 * (3 * 18 + 3 * 5 + 3 + 3)
    assert half["row_bytes"] == 4 * (3 * 9 + 3 * 5 + 3 + 3)
    # One row in 25 is dead, and where a transition starts takes 8 bytes.
    assert full["bytes_per_transition"] == pytest.approx(300 * 26 / 25 + 8, rel=0.01)


def test_bytes_delivered_by_a_sampler():
    ring = replay._filled_ring(make_env("cooperative-navigation", 2).spec, "float16", 2**18)
    batch = ring.sample(replay.make_sampler("uniform"), 4, np.random.default_rng(0))
    assert replay._delivered(batch) == 4 * (4 * (2 * 24 + 2 * 5 + 2) + 2 * 2)


@pytest.mark.parametrize("threads", [1, 3])
def test_copy_covers_its_whole_region(threads):
    source, target = (np.arange(3500) // 1000).astype(np.uint8), np.full(1000, 9, np.uint8)
    copy = replay._copier(source, target, threads)
    for turn in (0, 1, 2, 0):
        copy()
        assert (target == turn).all()
