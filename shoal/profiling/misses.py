"""The cache model over what the samplers of both implementations touch in one update of all trainers.

The engine's addresses are those of a ring laid out as the real one; the reference's are its objects' own.
"""

from typing import Literal, TypedDict

import numpy as np

from shoal.lazy import papers
from shoal.profiling.caches import CacheModel, Misses, mean_misses
from shoal.profiling.cells import Cell
from shoal.profiling.machine import Geometry
from shoal.profiling.ring_addresses import VirtualRing
from shoal.profiling.subjects import Subject

WARM, COUNTED = 1, 3  # mini-batches; they are alike, so a few tell the mean of all
Event = Literal["l1", "l2", "l3", "dtlb", "walks"]
EVENTS: tuple[Event, ...] = ("l1", "l2", "l3", "dtlb", "walks")


class Missed(TypedDict):
    """The mini-batches of one update of all trainers in the cache model."""

    minibatches: int
    bytes: float
    lines: float
    l1: float
    l2: float
    l3: float
    dtlb: float
    walks: float


def sampling_misses(cell: Cell, subject: Subject, geometry: Geometry) -> Missed:
    """Misses of one mini-batch, and of the mini-batches of one update of all trainers."""
    training = subject.use(cell.algorithm, cell.sampler)
    rng, model = np.random.default_rng(0), CacheModel(geometry)
    batch, ring, sampler = training.config.batch, training.ring, training.learner.sampler
    found: list[Misses] = []
    if training.config.implementation == "reference":
        ranges = papers("reference.profiling").sampled_ranges(ring, sampler, batch, rng)
        found += [model.run(next(ranges)) for _ in range(WARM + COUNTED)]
        minibatches = training.env.spec.agents
    else:
        virtual = VirtualRing(training.env.spec, training.config.copies, len(ring), training.config.storage)
        for _ in range(WARM + COUNTED):
            copies, transitions = sampler.draw(virtual, 1, batch, rng)
            found.append(model.run(virtual.ranges(copies, transitions)))
        minibatches = 1 if training.config.minibatch == "shared" else training.env.spec.agents
    mean = mean_misses(found[WARM:])
    return {
        "minibatches": minibatches,
        "bytes": minibatches * mean["bytes"],
        "lines": minibatches * mean["lines"],
        "l1": minibatches * mean["l1"],
        "l2": minibatches * mean["l2"],
        "l3": minibatches * mean["l3"],
        "dtlb": minibatches * mean["dtlb"],
        "walks": minibatches * mean["walks"],
    }


def growth(fewer: Missed, more: Missed) -> dict[str, float | None]:
    """How many times as many misses; None where there were none before."""
    return {event: more[event] / fewer[event] if fewer[event] else None for event in EVENTS}
