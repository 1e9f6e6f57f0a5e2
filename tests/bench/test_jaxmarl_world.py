"""JaxMARL's worlds as a peer; they are played only where JaxMARL is installed."""

import sys

import pytest

from shoal.bench import jaxmarl_world
from shoal.bench.jaxmarl_world import fastest, jaxmarl_episodes


@pytest.mark.parametrize("world", ["cooperative-navigation", "predator-prey"])
def test_jaxmarl_plays_whole_episodes(world, monkeypatch):
    pytest.importorskip("jaxmarl")
    monkeypatch.setattr(jaxmarl_world, "TURN", 0.0)
    peer = jaxmarl_episodes(world, 2, 3, threads=2)
    assert peer.copies >= 2 and peer.episodes == 1
    peer.play()


def test_missing_jaxmarl_has_no_rows(monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxmarl", None)
    assert jaxmarl_episodes("predator-prey", 2, 25, 1) is None


def test_the_fastest_number_of_copies_is_chosen(monkeypatch):
    seconds = {1: 1.0, 4: 2.0, 16: 8.0, 64: 40.0}
    monkeypatch.setattr(jaxmarl_world, "seconds_of", lambda play: seconds[play])
    assert fastest(lambda copies: copies) == (16, 16, 8.0)
    monkeypatch.setitem(seconds, 64, 16.0)
    assert fastest(lambda copies: copies) == (64, 64, 16.0)
