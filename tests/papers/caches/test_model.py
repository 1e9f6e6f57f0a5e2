"""The compiled cache model misses where a plain one does, and where the textbook says."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_papers.caches.geometry import Geometry, Level
from shoal_papers.caches.model import CacheModel, Misses, mean_misses

SMALL = Geometry(
    l1=Level(512, 2), l2=Level(2048, 4), l3=Level(12 * 1024, 4), line=64, dtlb=Level(4, 2), stlb=Level(12, 4), page=256
)  # L3 has 48 sets, stlb 3: no powers of two


class PlainLevel:
    """One ordered dictionary a set, the least recently used first."""

    def __init__(self, sets, ways):
        self.sets, self.ways = [OrderedDict() for _ in range(sets)], ways

    def touch(self, tag):
        places = self.sets[tag % len(self.sets)]
        hit = tag in places
        places[tag] = None
        places.move_to_end(tag)
        if len(places) > self.ways:
            places.popitem(last=False)
        return hit


class PlainModel:
    def __init__(self, geometry):
        self.geometry = geometry
        self.levels = {name: PlainLevel(*shape) for name, shape in geometry.shapes().items()}

    def misses(self, tag, *names):
        """How many of the levels, asked one after the other, did not have it."""
        for count, name in enumerate(names):
            if self.levels[name].touch(tag):
                return count
        return len(names)

    def run(self, ranges):
        count = dict.fromkeys(Misses.__dataclass_fields__, 0)
        for address, length in ranges:
            if length == 0:
                continue
            count["ranges"] += 1
            count["bytes"] += length
            for page in sorted({byte // self.geometry.page for byte in range(address, address + length)}):
                missed = self.misses(page, "dtlb", "stlb")
                count["pages"] += 1
                count["dtlb"] += missed > 0
                count["walks"] += missed > 1
            for line in sorted({byte // self.geometry.line for byte in range(address, address + length)}):
                missed = self.misses(line, "L1", "L2", "L3")
                count["lines"] += 1
                for k, name in enumerate(("l1", "l2", "l3")):
                    count[name] += missed > k
        return Misses(**count)


LEVELS = st.sampled_from([Level(256, 1), Level(512, 2), Level(768, 4), Level(1024, 16), Level(6144, 3)])
BUFFERS = st.sampled_from([Level(1, 1), Level(4, 4), Level(6, 2), Level(8, 1)])
GEOMETRIES = st.builds(
    Geometry, l1=LEVELS, l2=LEVELS, l3=LEVELS, line=st.sampled_from([16, 64]), dtlb=BUFFERS, stlb=BUFFERS,
    page=st.sampled_from([64, 128, 512]),
)  # fmt: skip
RANGES = st.lists(st.tuples(st.integers(0, 16_000), st.integers(0, 700)), max_size=120)


@settings(max_examples=150, deadline=None)
@given(GEOMETRIES, st.lists(RANGES, min_size=1, max_size=3))
def test_cache_matches_a_plain_lru(geometry, several):
    model, plain = CacheModel(geometry), PlainModel(geometry)
    for ranges in several:  # warm from the second on
        assert model.run(np.array(ranges, np.int64).reshape(-1, 2)) == plain.run(ranges)


def lines(numbers):
    return np.stack([64 * np.asarray(numbers), np.ones(len(numbers), int)], axis=1)


def test_one_line_more_than_the_ways_always_misses():
    model = CacheModel(SMALL)  # L1: 4 sets of 2
    fits, thrashes = lines([0, 4] * 10), lines([0, 4, 8] * 10)
    assert model.run(fits).l1 == 2
    model.reset()
    assert model.run(thrashes).l1 == 30


def test_data_that_fits_misses_only_once():
    model, whole = CacheModel(SMALL), np.array([[0, 512]])
    assert model.run(whole).l1 == 8
    assert model.run(whole) == Misses(1, 512, 8, 0, 0, 0, 2, 0, 0)


def test_scan_longer_than_the_cache_always_misses():
    model, scan = CacheModel(SMALL), np.array([[0, 512 + 256]])
    model.run(scan)
    second = model.run(scan)
    assert (second.lines, second.l1, second.l2) == (12, 12, 0)


def test_a_range_touches_all_lines_and_pages_it_lies_in():
    counted = CacheModel(SMALL).run(np.array([[255, 2], [63, 1], [0, 0]]))
    assert (counted.ranges, counted.bytes, counted.lines, counted.pages) == (2, 3, 3, 3)


def test_pages_in_neither_tlb_are_page_walks():
    model = CacheModel(SMALL)  # 4 entries, then 12
    pages = np.array([[256 * page, 1] for page in range(12)])
    assert (model.run(pages).dtlb, model.run(pages).walks) == (12, 0)


def test_addresses_may_be_large():
    top = np.array([[2**47 - 64, 64], [2**47 - 64, 64]])
    assert CacheModel(Geometry()).run(top).l3 == 1


def test_a_reset_model_is_cold():
    model, ranges = CacheModel(SMALL), np.array([[0, 5000]])
    first = model.run(ranges)
    model.reset()
    assert model.run(ranges) == first


@pytest.mark.parametrize("wrong", [np.zeros(4, int), np.array([[0, -1]]), np.array([[-64, 8]])])
def test_invalid_ranges_are_refused(wrong):
    with pytest.raises(ValueError, match="range"):
        CacheModel(SMALL).run(wrong)


def test_mean_misses():
    mean = mean_misses([Misses(1, 2, 3, 4, 5, 6, 7, 8, 9), Misses(3, 2, 3, 4, 5, 6, 7, 8, 10)])
    assert list(mean) == list(Misses.__dataclass_fields__)
    assert list(mean.values()) == [2, 2, 3, 4, 5, 6, 7, 8, 9.5]
