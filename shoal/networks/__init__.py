"""Stacked per-agent networks: actors and critics."""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    from shoal.networks.actors import Actors, Noise, NoiseSource
    from shoal.networks.critics import JointCritics, own_actions, own_observations
    from shoal.networks.stacked import StackedMLP, to_arrays, to_tensors

__all__ = [
    "Actors", "JointCritics", "Noise", "NoiseSource", "StackedMLP", "own_actions", "own_observations", "to_arrays",
    "to_tensors",
]  # fmt: skip

HOMES = {
    "actors": ("Actors", "Noise", "NoiseSource"),
    "critics": ("JointCritics", "own_actions", "own_observations"),
    "stacked": ("StackedMLP", "to_arrays", "to_tensors"),
}
__getattr__ = lazy(
    "shoal.networks", {name: f"shoal.networks.{module}" for module, names in HOMES.items() for name in names}
)
