"""Stacked per-agent networks: actors and critics."""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    from shoal.networks.actors import Actors, NoiseSource
    from shoal.networks.critics import JointCritics, own_actions, own_observations
    from shoal.networks.stacked import StackedMLP

__all__ = ["Actors", "JointCritics", "NoiseSource", "StackedMLP", "own_actions", "own_observations"]

__getattr__ = lazy(
    "shoal.networks",
    {
        "Actors": "shoal.networks.actors",
        "NoiseSource": "shoal.networks.actors",
        "JointCritics": "shoal.networks.critics",
        "own_actions": "shoal.networks.critics",
        "own_observations": "shoal.networks.critics",
        "StackedMLP": "shoal.networks.stacked",
    },
)
