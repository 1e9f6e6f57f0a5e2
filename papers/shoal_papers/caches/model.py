"""A model of the data caches: which accesses miss, exactly and repeatably, on a machine of any geometry.

The model: three caches over lines and two translation buffers over pages, each set-associative with a true
least-recently-used order in every set. An access that misses L1 asks L2, one that misses there asks L3; a line is put
into every level that was asked. So each level is an LRU of its own over the lines that reach it: nothing is taken out
of a small cache because a large one forgot it. A page that is not in the first translation buffer asks the second; one
that is in neither is a page walk. Reads and writes are the same: a written line is fetched first.

What it is not: there is no hardware prefetching, one core has all of L3, an address is a physical address (set = line
mod sets, without the hashing of L3 slices), and neither page tables nor instructions take room.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, cast

import numpy as np

from shoal.compiled import njit
from shoal.profiling.records import EVENTS
from shoal_papers.caches.addresses import Ints, VirtualRing
from shoal_papers.caches.geometry import Geometry
from shoal_papers.reference.profiling import sampled_ranges
from shoal_papers.reference.replay import ListSampler, Replays

if TYPE_CHECKING:
    from shoal.profiling.rounds import Subject

EMPTY = -1
WARM, COUNTED = 1, 3  # mini-batches; they are alike, so a few tell the mean of all


@dataclass(frozen=True)
class Misses:
    """What a list of accesses cost."""

    ranges: int
    """Runs of bytes that were read or written."""
    bytes: int
    """Bytes in them."""
    lines: int
    """Lines that each range lies in, summed: the requests to L1."""
    l1: int
    """Lines that were not in L1: the requests to L2."""
    l2: int
    l3: int
    """Lines that came from memory: the last-level misses."""
    pages: int
    """Pages that each range lies in, summed: one request per page and range."""
    dtlb: int
    """Pages that were not in the first translation buffer."""
    walks: int
    """Pages that were in neither."""


def mean_misses(several: Sequence[Misses]) -> dict[str, float]:
    """The mean of each number."""
    names = [field.name for field in fields(Misses)]
    return {name: float(np.mean([getattr(one, name) for one in several])) for name in names}


class CacheModel:
    """Caches that start empty and stay warm from one `run` to the next."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self._tags = {name: np.full(shape, EMPTY, np.int64) for name, shape in geometry.shapes().items()}

    def reset(self) -> None:
        """Empty the caches."""
        for tags in self._tags.values():
            tags.fill(EMPTY)

    def run(self, ranges: Ints) -> Misses:
        """Access the ranges (K, 2) of address and length in their order; those of length 0 touch nothing."""
        checked = np.ascontiguousarray(ranges, np.int64)
        if checked.ndim != 2 or checked.shape[1] != 2:
            raise ValueError(f"ranges have shape {checked.shape}, but must be (K, 2): address and length")
        if checked.size and checked.min() < 0:
            raise ValueError("a range has a negative address or length")
        shifts = self.geometry.line.bit_length() - 1, self.geometry.page.bit_length() - 1
        tags = self._tags
        counts = _run(checked, *shifts, tags["L1"], tags["L2"], tags["L3"], tags["dtlb"], tags["stlb"])
        return Misses(*(int(count) for count in counts))


@njit(cache=True)
def _touch(tags: Ints, tag: int) -> bool:
    """Whether the line or page was in this level; afterwards it is, as the most recent of its set.

    A set is kept in order from the most recent to the least: those before the found one move back by one place.
    """
    sets, ways = tags.shape
    places = tags[tag & (sets - 1) if sets & (sets - 1) == 0 else tag % sets]
    carried = places[0]
    if carried == tag:
        return True
    places[0] = tag
    for way in range(1, ways):
        carried, places[way] = places[way], carried
        if carried == tag:
            return True
    return False


@njit(cache=True)
def _run(  # type: ignore[no-untyped-def]
    ranges, line_shift, page_shift, level1, level2, level3, dtlb, stlb
):  # fmt: skip
    """The numbers of `Misses`, in its order."""
    touched, size, lines, l1, l2, l3, pages, first, walks = 0, 0, 0, 0, 0, 0, 0, 0, 0
    for k in range(ranges.shape[0]):
        address, length = ranges[k, 0], ranges[k, 1]
        if length == 0:
            continue
        touched += 1
        size += length
        last = address + length - 1
        for page in range(address >> page_shift, (last >> page_shift) + 1):
            pages += 1
            if not _touch(dtlb, page):
                first += 1
                walks += not _touch(stlb, page)
        for line in range(address >> line_shift, (last >> line_shift) + 1):
            lines += 1
            if not _touch(level1, line):
                l1 += 1
                if not _touch(level2, line):
                    l2 += 1
                    l3 += not _touch(level3, line)
    return touched, size, lines, l1, l2, l3, pages, first, walks


def sampling_misses(subject: "Subject", algorithm: str, sampler_name: str, geometry: Geometry) -> dict[str, float]:
    """Misses of the mini-batches of one update of all trainers.

    The engine's addresses are those of a ring laid out like the real one; the reference's are its objects' own.
    """
    training = subject.use(algorithm, sampler_name)
    rng, model = np.random.default_rng(0), CacheModel(geometry)
    config, ring, sampler = training.config, training.ring, training.learner.sampler
    misses: list[Misses] = []
    if config.implementation == "reference":
        ranges = sampled_ranges(cast(Replays, ring), cast(ListSampler, sampler), config.batch, rng)
        misses += [model.run(next(ranges)) for _ in range(WARM + COUNTED)]
    else:
        virtual = VirtualRing(training.env.spec, config.copies, len(ring), config.storage)
        for _ in range(WARM + COUNTED):
            copies, transitions = sampler.draw(virtual, 1, config.batch, rng)
            misses.append(model.run(virtual.ranges(copies, transitions)))
    minibatches = 1 if config.minibatch == "shared" else training.env.spec.agents
    mean = mean_misses(misses[WARM:])
    return {"minibatches": minibatches} | {name: minibatches * mean[name] for name in ("bytes", "lines", *EVENTS)}
