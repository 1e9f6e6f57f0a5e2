"""Random words by hash: uniform, and independent over elements, calls and seeds."""

import numpy as np
import torch
from scipy import stats

from shoal.numerics.rounding.randomness import keys, word

LEAST_P = 1e-4  # of a χ² test; the seeds are fixed, so a test passes always or never


def words(seed: int, call: int = 0, count: int = 2**18) -> np.ndarray:
    return word(torch.arange(count), *keys(seed, call, 0)[:2]).numpy()


def test_words_are_uniform_and_independent() -> None:
    a = words(0)
    assert [int(v) for v in a[:100]] == [word(i, *keys(0, 0, 0)[:2]) for i in range(100)]
    for bits in range(1, 13):
        assert stats.chisquare(np.bincount(a >> (32 - bits), minlength=2**bits)).pvalue > LEAST_P
    for shift in (0, 8, 20):  # lower bits of the word, too
        assert stats.chisquare(np.bincount((a >> shift) & 255, minlength=256)).pvalue > LEAST_P
    lower = word(torch.arange(a.size), *keys(0, 0, 0)[2:]).numpy()
    for b in (np.roll(a, 1), np.roll(a, 64), words(1), words(0, call=1), words(2**40), lower):
        pairs = (a >> 28) * 16 + (b >> 28)
        assert stats.chisquare(np.bincount(pairs, minlength=256)).pvalue > LEAST_P
