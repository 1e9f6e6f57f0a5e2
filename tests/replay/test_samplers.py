"""What the samplers draw: how often each transition, which neighbours, how many random numbers."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from shoal.errors import UserError
from shoal.replay import Neighbor, Uniform, can_sample, make_sampler
from shoal.replay.samplers import split


def history(copies=2, oldest=0, added=10):
    """Copies in lock-step."""
    return SimpleNamespace(oldest=np.full(copies, oldest), added=np.full(copies, added))


def uneven(*windows):
    """Copies that hold these transitions, each (oldest, added)."""
    oldest, added = np.array(windows).T
    return SimpleNamespace(oldest=oldest.copy(), added=added.copy())


def neighborhoods(seen, sampler):
    """(cluster, slot): how often each centre yields each live transition, written out plainly."""
    live = seen.added - seen.oldest
    table = np.zeros((live.sum(), live.sum()))
    for first, own in zip(np.cumsum(live) - live, live, strict=True):
        for center in range(own):
            for near in range(center - sampler.neighbors, center + sampler.neighbors + 1):
                if 0 <= near < own and (near != center or sampler.include_center):
                    table[first + center, first + near] = 1
    return table


def slots(seen, sampler, batch, seed):
    """How often each live transition was drawn in one large mini-batch."""
    live = seen.added - seen.oldest
    copies, transitions = sampler.draw(seen, 1, batch, np.random.default_rng(seed))
    age = transitions - seen.oldest[copies]
    assert ((age >= 0) & (age < live[copies])).all()
    return np.bincount(((np.cumsum(live) - live)[copies] + age).ravel(), minlength=live.sum())


def test_uniform_sampling_is_uniform():
    counts = slots(history(3, 100, 117), Uniform(), 51_000, seed=1)
    assert counts.size == 51
    assert stats.chisquare(counts).pvalue > 0.01


def test_uniform_sampling_over_copies_of_unequal_length():
    counts = slots(uneven((100, 117), (0, 0), (5, 6), (40, 73), (0, 0)), Uniform(), 51_000, seed=1)
    assert counts.size == 51
    assert stats.chisquare(counts).pvalue > 0.01


def cluster_pvalue(counts, table, share):
    """Chi-square of counts that come in whole neighbourhoods, drawn evenly, against these shares.

    Members of a neighbourhood come together, so the counts' covariance is that of the neighbourhoods.
    """
    drawn = counts.sum() / table.sum(1).mean()
    deviation = table - table.sum(1, keepdims=True) * share
    covariance = drawn * np.cov(deviation.T, bias=True)
    distance = counts - counts.sum() * share
    rank = np.linalg.matrix_rank(covariance)
    return stats.chi2.sf(distance @ np.linalg.pinv(covariance, rcond=1e-10) @ distance, rank)


@pytest.mark.parametrize(
    "seen", [history(2, 5, 17), uneven((5, 16), (0, 0), (3, 4), (90, 102))], ids=["even", "uneven"]
)
@pytest.mark.parametrize("sampler", [Neighbor(3), Neighbor(1), Neighbor(2, include_center=True), Neighbor(30)])
def test_neighbor_draws_in_proportion_to_the_centres_that_reach_a_transition(sampler, seen):
    table = neighborhoods(seen, sampler)
    share = table.sum(0) / table.sum()
    counts = slots(seen, sampler, 120_000, seed=2)
    assert cluster_pvalue(counts, table, share) > 0.01
    if sampler.neighbors < 30:  # the test would notice an even distribution
        assert cluster_pvalue(counts, table, np.full(share.size, 1 / share.size)) < 1e-6


def test_neighbor_is_uniform_inside_and_half_as_likely_at_the_ends():
    counts = slots(history(1, 0, 40), Neighbor(3), 400_000, seed=3)
    inside = counts[6:-6].mean()
    assert counts[0] / inside == pytest.approx(0.5, abs=0.02)
    assert counts[-1] / inside == pytest.approx(0.5, abs=0.02)
    assert counts[1] / inside == pytest.approx(4 / 6, abs=0.02)


@pytest.mark.parametrize("sampler", [Neighbor(3), Neighbor(2, include_center=True), Neighbor(50), Neighbor(1)])
@pytest.mark.parametrize("batch", [1, 5, 6, 7, 100])
def test_neighborhoods_are_whole_ascending_and_clipped(sampler, batch):
    seen = history(3, 7, 20)
    rng, again = np.random.default_rng(4), np.random.default_rng(4)
    copies, transitions = sampler.draw(seen, 2, batch, rng)
    for m in range(2):
        wanted = []
        while len(wanted) < batch:  # the same centres, one number at a time, and the rule written out
            copy, age = divmod(int(again.integers(3 * 13)), 13)
            near = range(age - sampler.neighbors, age + sampler.neighbors + 1)
            wanted += [(copy, 7 + t) for t in near if 0 <= t < 13 and (t != age or sampler.include_center)]
        assert list(zip(copies[m], transitions[m], strict=True)) == wanted[:batch]
    assert copies.shape == transitions.shape == (2, batch)


class Counting(np.random.Generator):
    """Counts the integers drawn."""

    drawn = 0

    def integers(self, *arguments, size=None, **options):
        self.drawn += int(np.prod(size))
        return super().integers(*arguments, size=size, **options)


@pytest.mark.parametrize(("batch", "centers"), [(1, 1), (6, 1), (7, 2), (1024, 171)])
def test_only_needed_centres_are_drawn(batch, centers):
    rng = Counting(np.random.PCG64(0))
    Neighbor(3).draw(history(25, 0, 1_000_000), 1, batch, rng)
    assert rng.drawn == centers


def test_draws_depend_on_the_generator_alone():
    for sampler in (Uniform(), Neighbor(3)):
        one, other = (sampler.draw(history(), 3, 50, np.random.default_rng(9)) for _ in range(2))
        np.testing.assert_array_equal(one, other)


def test_mini_batches_are_independent():
    _, transitions = Neighbor(3).draw(history(4, 0, 1000), 2, 600, np.random.default_rng(0))
    assert not np.array_equal(transitions[0], transitions[1])


def test_minimum_history_of_each_sampler():
    assert not can_sample(history(added=0), Uniform())
    assert can_sample(history(added=1), Uniform())
    assert not can_sample(history(added=0), Neighbor(3, include_center=True))
    assert can_sample(history(added=1), Neighbor(3, include_center=True))
    assert not can_sample(history(oldest=8, added=9), Neighbor(3))
    assert can_sample(history(oldest=8, added=10), Neighbor(3))
    assert not can_sample(uneven((8, 9), (0, 0)), Neighbor(3))
    assert can_sample(uneven((8, 9), (0, 0), (3, 5)), Neighbor(3))


def test_two_transitions_are_each_others_only_neighbours():
    _, transitions = Neighbor(3).draw(history(1, 0, 2), 1, 101, np.random.default_rng(5))
    assert set(transitions.ravel()) == {0, 1}


def test_samplers_by_name():
    assert make_sampler("uniform") == Uniform()
    assert make_sampler("neighbor") == Neighbor(3, False)
    assert make_sampler("neighbor", 5, True) == Neighbor(5, True)
    with pytest.raises(UserError, match="`sampler` 'prioritized' is not known; choose one of: uniform, neighbor"):
        make_sampler("prioritized")
    with pytest.raises(UserError, match="`neighbors` is 0, but must be at least 1"):
        make_sampler("neighbor", neighbors=0)


@given(words=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50), copies=st.integers(1, 1000), live=st.data())
def test_random_words_map_uniformly_to_live_transitions(words, copies, live):
    live = live.draw(st.integers(1, (2**32 - 1) // copies))
    chosen, transitions = split(np.array([words], np.uint64), np.full(copies, 7), np.full(copies, live))
    numbers = [word * copies * live >> 64 for word in words]  # exact
    assert (chosen[0] * live + transitions[0] - 7).tolist() == numbers
    assert (transitions[0] - 7 < live).all()


@given(
    words=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50),
    windows=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 9)), min_size=1, max_size=9).filter(
        lambda windows: any(live for _, live in windows)
    ),
)
def test_random_words_map_uniformly_to_copies_of_unequal_length(words, windows):
    every = [(copy, oldest + age) for copy, (oldest, live) in enumerate(windows) for age in range(live)]
    copies, transitions = split(np.array([words], np.uint64), *np.array(windows).T.copy())
    wanted = [every[word * len(every) >> 64] for word in words]
    assert list(zip(copies[0], transitions[0], strict=True)) == wanted
