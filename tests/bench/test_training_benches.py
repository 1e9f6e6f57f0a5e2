"""The benches of whole training: both sides are there, and the ratios are of them."""

import functools

import pytest

from shoal.bench import checkpoint, phases, qat, train


def test_training_relative_to_the_reference(monkeypatch):
    monkeypatch.setattr(train, "RING", 300)
    monkeypatch.setattr(train, "usable_processors", lambda: 1)  # two tests with two threads each would wait
    monkeypatch.setattr(train, "TrainConfig", functools.partial(train.TrainConfig, batch=64))
    (row,) = train.run(1, seconds=0.05)
    assert row["ratio"] == pytest.approx(row["steps_per_second"] / row["reference_steps_per_second"])
    assert row["torch_ratio"] == pytest.approx(row["steps_per_second"] / row["torch_steps_per_second"])
    assert row["ceiling_ratio"] == pytest.approx(row["steps_per_second"] / row["ceiling_steps_per_second"])
    assert row["ratio_without_environment"] > 0


def test_phases_bench(monkeypatch):
    monkeypatch.setattr(phases, "RING_BYTES", 10**6)
    (row,) = phases.run(1, seconds=0.05)
    assert row["ratio"] == pytest.approx(row["sampling_ms"] / row["update_ms"])
    assert row["neighbor_reduction"] == pytest.approx(1 - row["neighbor_sampling_ms"] / row["sampling_ms"])
    assert 0 < row["acting_share"] < row["outside_share"] < 1 and row["ring"] == 25_600


def test_checkpoint(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkpoint, "rows_that_fit", lambda *asked: 50_000)
    (row,) = checkpoint.run(1, seconds=0.05)
    assert row["ratio"] == pytest.approx(row["checkpoint_ms"] / row["training_ms"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("part", "stages"), [(2, ["observing", "quantized"]), ("ppo", ["quantized"])])
def test_qat_relative_to_plain_training(monkeypatch, part, stages):
    tasks = {"ppo": ("CartPole-v1", 32, {"n_steps": 16, "batch_size": 16})}
    monkeypatch.setattr(qat, "TASKS", tasks)
    rows = qat.run(part, seconds=0.01, transitions=1_100)
    assert [row["stage"] for row in rows] == stages
    for row in rows:
        assert row["ratio"] == pytest.approx(row["qat_ms"] / row["plain_ms"])


def test_stages_of_qat():
    """What is timed really observes, and quantizes."""
    observing, quantized = (qat.team(2, 1_100, stage) for stage in qat.DELAYS)
    for training in (observing, quantized):
        training.update()
    assert not observing.learner.precision.qat.on and quantized.learner.precision.qat.on
    assert all(layer.seen for layer in observing.learner.precision.qat.layers.values())
