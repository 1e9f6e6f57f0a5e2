"""Stacked per-agent networks: actors and critics."""

from shoal.networks.actors import Actors, NoiseSource
from shoal.networks.critics import JointCritics, own_actions, own_observations
from shoal.networks.stacked import StackedMLP

__all__ = ["Actors", "JointCritics", "NoiseSource", "StackedMLP", "own_actions", "own_observations"]
