"""Where the time goes: the processor's counters, and a model of its caches for every sampler and layout."""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    from shoal.profiling.caches import CacheModel, Misses, mean_misses
    from shoal.profiling.counters import Counters, PhaseCounters
    from shoal.profiling.machine import Geometry, Level, machine_geometry, parse_geometry
    from shoal.profiling.ring_addresses import VirtualRing, ring_ranges
else:
    __getattr__ = lazy(
        __name__,
        dict.fromkeys(("CacheModel", "Misses", "mean_misses"), "shoal.profiling.caches")
        | dict.fromkeys(("Counters", "PhaseCounters"), "shoal.profiling.counters")
        | dict.fromkeys(("Geometry", "Level", "machine_geometry", "parse_geometry"), "shoal.profiling.machine")
        | dict.fromkeys(("VirtualRing", "ring_ranges"), "shoal.profiling.ring_addresses"),
    )

__all__ = [
    "CacheModel",
    "Counters",
    "Geometry",
    "Level",
    "Misses",
    "PhaseCounters",
    "VirtualRing",
    "machine_geometry",
    "mean_misses",
    "parse_geometry",
    "ring_ranges",
]
