"""The comparison with other worlds runs and says what it compared. Speeds themselves are never asserted."""

import sys

import pytest

from shoal.bench.env import run
from shoal.bench.jaxmarl_world import Episodes
from shoal.errors import UserError

WORLDS = ["cooperative-navigation", "predator-prey"]


def test_rows_of_the_bench(monkeypatch):
    pytest.importorskip("mpe2")
    monkeypatch.setitem(sys.modules, "jaxmarl", None)
    rows = [row for n in (1, 2) for row in run(n, seconds=0.0)]
    assert [(row["world"], row["agents"], row["peer"]) for row in rows] == [
        (world, n, peer) for n in (1, 2) for world in WORLDS for peer in ("mpe2", "Shoal by index")
    ]
    for row in rows:
        assert row["shoal_steps_per_second"] > 0
        assert row["ratio"] == row["shoal_steps_per_second"] / row["peer_steps_per_second"]
        assert row["copies"] == 25 if row["peer"] == "Shoal by index" else row["copies"] >= 64
        assert row["threads"] >= 1


def test_without_mpe2(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpe2", None)
    with pytest.raises(UserError, match=r"not installed; run pip install .*pettingzoo.* in your clone of Shoal\.$"):
        run(2, seconds=0.0)


def test_jaxmarl_rows_if_installed(monkeypatch):
    pytest.importorskip("mpe2")
    played = []
    peer = Episodes(lambda: played.append(1), copies=32, episodes=5)
    monkeypatch.setattr("shoal.bench.env.jaxmarl_episodes", lambda *world: peer)
    rows = run(2, seconds=0.0)
    assert [row["peer"] for row in rows] == ["mpe2", "JaxMARL", "Shoal by index"] * 2
    assert [row["goal"] for row in rows] == [None, 12.0, None] * 2
    assert all(row["peer_copies"] == 32 for row in rows[1::3]) and len(played) >= 6
