"""The benches of whole training: both sides are there, and the ratios are of them."""

import pytest

from shoal.bench import checkpoint, phases, train


def test_train_beside_the_reference(monkeypatch):
    monkeypatch.setattr(train, "RING", 1_100)
    (row,) = train.run((1,), seconds=0.05)
    assert row["ratio"] == pytest.approx(row["steps_per_second"] / row["reference_steps_per_second"])
    assert row["ceiling_ratio"] == pytest.approx(row["steps_per_second"] / row["ceiling_steps_per_second"])
    assert row["ratio_without_environment"] > 0


def test_phases(monkeypatch):
    monkeypatch.setattr(phases, "RING_BYTES", 10**6)
    (row,) = phases.run((1,), seconds=0.05)
    assert row["ratio"] == pytest.approx(row["sampling_ms"] / row["update_ms"])
    assert row["neighbor_reduction"] == pytest.approx(1 - row["neighbor_sampling_ms"] / row["sampling_ms"])
    assert 0 < row["acting_share"] < 1 and row["ring"] == 25_600


def test_checkpoint(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkpoint, "rows_that_fit", lambda *asked: 50_000)
    (row,) = checkpoint.run((1,), seconds=0.05)
    assert row["ratio"] == pytest.approx(row["checkpoint_ms"] / row["training_ms"])
    assert list(tmp_path.iterdir()) == []
