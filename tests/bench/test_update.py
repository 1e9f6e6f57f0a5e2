"""The bench of an update: all three sides are measured, and the ratios are of them."""

import functools

import pytest
import torch

from shoal.bench import update
from shoal.bench.ceiling import BareProducts


def test_update_relative_to_its_products(monkeypatch):
    monkeypatch.setattr(update, "TURN", 0.005)
    monkeypatch.setattr(update, "usable_processors", lambda: 1)  # two tests with two threads each would wait
    monkeypatch.setattr(update, "filled_training", functools.partial(update.filled_training, transitions=1_100))
    rows = update.run(1, seconds=0.05)
    assert [row["update"] for row in rows] == ["native", "torch", "native, shared"]
    assert rows[2]["unshared_ratio"] == pytest.approx(rows[0]["update_ms"] / rows[2]["update_ms"])
    for row in rows:
        assert row["agents"] == 1 and (row["peak_share"] is None) == ("shared" in row["update"])
        assert row["ratio"] == pytest.approx(row["update_ms"] / row["bare_products_ms"])
        assert row["turned_ratio"] == pytest.approx(row["update_ms"] / row["turned_products_ms"])


def test_multiply_adds_are_counted(monkeypatch):
    """Counted by torch's own calls."""
    products, counted = BareProducts(2, 5, 3, 8, hidden=4), 0

    def counting(multiply):
        def counted_multiply(x, y, out):
            nonlocal counted
            counted += x.shape[:-1].numel() * y.shape[-1] * x.shape[-1]
            return multiply(x, y, out=out)

        return counted_multiply

    for name in ("mm", "bmm"):
        monkeypatch.setattr(torch, name, counting(getattr(torch, name)))
    products()
    assert products.multiply_adds == counted


@pytest.mark.parametrize("turned", [False, True])
def test_bare_products_can_be_repeated(turned):
    products = BareProducts(2, 5, 3, 8, turned=turned)
    products()
    products()
