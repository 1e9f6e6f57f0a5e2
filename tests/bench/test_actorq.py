"""`shoal bench actorq` on a small task: a row for each kind of actor, ratios over PyTorch and over the same engine."""

import pytest

from shoal.bench import actorq


def test_rows_of_the_bench(monkeypatch):
    small = {"env": "gym:CartPole-v1", "algorithm": "dqn", "hidden": (8, 8), "pull_every": 20}
    monkeypatch.setattr(actorq, "TASKS", {"small": small})
    monkeypatch.setattr(actorq, "SMALL_KINDS", (("torch", "float32"), ("onnx", "float32"), ("onnx", "int8")))
    rows = actorq.run("small", seconds=0.3)
    assert [(row["engine"], row["precision"]) for row in rows] == list(actorq.SMALL_KINDS)
    for row in rows:
        assert row["ratio"] == pytest.approx(row["env_steps_per_second"] / rows[0]["env_steps_per_second"])
        assert row["bottleneck"] in ("actors", "learner") and row["step_us"] > 0
    same = rows[2]["env_steps_per_second"] / rows[1]["env_steps_per_second"]
    assert rows[2]["ratio_same_engine"] == pytest.approx(same)
