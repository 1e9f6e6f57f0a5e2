"""The comparison with mpe2 runs and says what it compared. Speeds themselves are never asserted."""

import sys

import pytest

from shoal.bench.env import run
from shoal.errors import UserError


def test_rows():
    pytest.importorskip("mpe2")
    rows = run(agents=(1, 2), seconds=0.0)
    worlds = ["cooperative-navigation", "predator-prey"]
    assert [(row["world"], row["agents"]) for row in rows] == [(world, n) for world in worlds for n in (1, 2)]
    for row in rows:
        assert row["shoal_steps_per_second"] > 0
        assert row["ratio"] == row["shoal_steps_per_second"] / row["mpe2_steps_per_second"]
        assert row["copies"] >= 64
        assert row["threads"] >= 1


def test_without_mpe2(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpe2", None)
    with pytest.raises(UserError, match=r"not installed; run pip install .*pettingzoo.* in your clone of Shoal\.$"):
        run(agents=(2,), seconds=0.0)
