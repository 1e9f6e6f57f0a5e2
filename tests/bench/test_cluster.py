"""`shoal bench cluster` on a small task: a row for each transport."""

import pytest

from shoal.bench import cluster


def test_rows(monkeypatch):
    small = {"env": "gym:CartPole-v1", "algorithm": "dqn", "hidden": (8, 8), "pull_every": 20}
    monkeypatch.setattr(cluster, "TASKS", {"small": small})
    rows = cluster.run(("small",), seconds=0.3)
    assert [row["transport"] for row in rows] == ["shared memory", "ray local"]
    assert rows[0]["ratio"] == 1 and rows[0]["bytes_per_pull"] == rows[1]["bytes_per_pull"]
    assert rows[1]["ratio"] == pytest.approx(rows[1]["env_steps_per_second"] / rows[0]["env_steps_per_second"])
    assert set(rows[0]) == set(cluster.Row.__annotations__) and rows[1]["env_steps_per_second"] > 0
