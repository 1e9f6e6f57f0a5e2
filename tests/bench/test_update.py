"""The bench of an update: all three sides are measured, and the ratios are of them."""

import pytest

from shoal.bench import update
from shoal.bench.bare import BareProducts


def test_an_update_beside_its_products():
    (row,) = update.run((1,), seconds=0.05)
    assert row["agents"] == 1 and row["observation"] > 0
    assert row["ratio"] == pytest.approx(row["update_ms"] / row["bare_products_ms"])
    assert row["turned_ratio"] == pytest.approx(row["update_ms"] / row["turned_products_ms"])


@pytest.mark.parametrize("turned", [False, True])
def test_bare_products_can_be_repeated(turned):
    products = BareProducts(2, 5, 3, 8, turned=turned)
    products()
    products()
