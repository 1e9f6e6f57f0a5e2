"""No transition is drawn more often than allowed, all are drawn as often as allowed, and early draws are uniform."""

import collections
from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.replay.samplers import Limited


def history(oldest, added):
    return SimpleNamespace(oldest=np.array(oldest), added=np.array(added))


@given(st.integers(1, 5), st.integers(1, 8), st.lists(st.integers(0, 12), min_size=1, max_size=3), st.data())
@settings(max_examples=60, deadline=None)
def test_sample_counts_equal_a_plain_list(most, capacity, first, data):
    """Beside a dictionary of counts, while copies grow at their own pace and forget their oldest."""
    copies = len(first)
    sampler, counts, rng = Limited(most, copies, capacity), collections.Counter(), np.random.default_rng(0)
    added, forgotten = np.array(first), data.draw(st.integers(0, 3))  # a ring may forget some before it is full
    for _ in range(4):
        now = history(np.minimum(np.maximum(forgotten, added - capacity), added), added)
        live = [(e, t) for e in range(copies) for t in range(now.oldest[e], added[e])]
        left = sum(most - counts[pair] for pair in live)
        assert sampler.left(now) == left
        batch = data.draw(st.integers(0, left))
        if batch:
            drawn = sampler.draw(now, 1, batch, rng)
            pairs = list(zip(drawn[0][0].tolist(), drawn[1][0].tolist(), strict=True))
            assert set(pairs) <= set(live)
            counts.update(pairs)
        assert all(count <= most for count in counts.values())
        if data.draw(st.booleans()):  # saved and loaded, perhaps beside a larger ring: the run is extended
            saved, places = sampler.state(now), sampler.times.shape[1] + data.draw(st.integers(0, 2))
            sampler = Limited(most, copies, places)
            sampler.load_state(saved, now)
        added = added + np.array(data.draw(st.lists(st.integers(0, 5), min_size=copies, max_size=copies)))


def test_draws_are_uniform_before_any_limit_is_reached():
    now, found = history([0, 5], [30, 75]), collections.Counter()
    for seed in range(50):
        drawn = Limited(1000, 2, 100).draw(now, 1, 1000, np.random.default_rng(seed))
        found.update(zip(drawn[0][0].tolist(), drawn[1][0].tolist(), strict=True))
    counts = np.array([found[e, t] for e, low, high in ((0, 0, 30), (1, 5, 75)) for t in range(low, high)])
    assert ((counts - 500) ** 2 / 500).sum() < 99 + 5 * np.sqrt(2 * 99)
