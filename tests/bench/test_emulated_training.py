"""`shoal bench emulated-training`: shares add up, and both sides are what they say."""

import pytest

from shoal.bench import emulated_training


@pytest.mark.parametrize("model", ["resnet8", "maddpg"])
def test_training_step_relative_to_float32(monkeypatch, model):
    monkeypatch.setattr(emulated_training, "IMAGES", {"resnet8": (4, 8)})
    monkeypatch.setattr(emulated_training, "AGENTS", 1)
    row, peer = emulated_training.run(model, seconds=0.01)
    assert row["ratio"] == pytest.approx(row["step_ms"] / row["float32_ms"])
    assert row["products_share"] + row["rounding_share"] + row["other_share"] == pytest.approx(1)
    assert min(row["products_share"], row["rounding_share"], row["other_share"]) > 0
    assert row["gmac_per_second"] > 0
    assert peer["step_ms"] / row["step_ms"] == pytest.approx(row["gmac_per_second"] / emulated_training.MPTORCH)


def test_time_of_methods():
    class Work:
        def slow(self):
            return sum(range(100_000))

        def twice(self):
            return self.slow() + self.slow()

    before = Work.slow
    with emulated_training.timed(Work, "slow") as spent:
        assert Work().twice() == 2 * sum(range(100_000))
    assert spent[0] > 0 and Work.slow is before
