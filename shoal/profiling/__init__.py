"""Where the time goes: the processor's counters, and a model of its caches for every sampler and layout."""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    from shoal.profiling.caches import CacheModel, Misses, mean_misses
    from shoal.profiling.counters import Counters, PhaseCounters
    from shoal.profiling.machine import Geometry, Level, machine_geometry, parse_geometry
    from shoal.profiling.object_addresses import VirtualObjects, object_ranges, walk
    from shoal.profiling.ring_addresses import VirtualRing, ring_ranges
else:
    __getattr__ = lazy(
        __name__,
        dict.fromkeys(("CacheModel", "Misses", "mean_misses"), "shoal.profiling.caches")
        | dict.fromkeys(("Counters", "PhaseCounters"), "shoal.profiling.counters")
        | dict.fromkeys(("Geometry", "Level", "machine_geometry", "parse_geometry"), "shoal.profiling.machine")
        | dict.fromkeys(("VirtualObjects", "object_ranges", "walk"), "shoal.profiling.object_addresses")
        | dict.fromkeys(("VirtualRing", "ring_ranges"), "shoal.profiling.ring_addresses"),
    )

__all__ = [
    "CacheModel",
    "Counters",
    "Geometry",
    "Level",
    "Misses",
    "PhaseCounters",
    "VirtualObjects",
    "VirtualRing",
    "machine_geometry",
    "mean_misses",
    "object_ranges",
    "parse_geometry",
    "ring_ranges",
    "walk",
]
