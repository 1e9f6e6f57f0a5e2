"""Counter-based random bits: a hash of (seed, call, element index), with no state.

An element gets the same bits whichever thread rounds it and however the work is split. There are two 32-bit words per
element; the first is the upper one, so r <= 32 bits are the same whether or not the second is used. A word is a keyed
permutation of the lower 32 bits of the index: two rounds of xor-shift and multiply, with keys before the first round
and between the two. The finaliser of splitmix64 derives the keys from the seed, the call and the upper index bits.
"""

from typing import Any, NamedTuple

MULTIPLIERS = (0x7FEB352D, 0x846CA68B)
SHIFTS = (16, 15, 16)
SPAN = 2**32
"""Indices that share a set of keys."""


class Keys(NamedTuple):
    """Keys of the upper word, then of the lower one; 32 bits each."""

    upper_before: int
    upper_between: int
    lower_before: int
    lower_between: int


def keys(seed: int, call: int, span: int) -> Keys:
    """The keys for the indices span·2^32 to (span+1)·2^32 - 1."""
    state = _mix64(seed)
    for part in (call, span):
        state = _mix64(state ^ _mix64(part + 0x9E3779B97F4A7C15))
    second = _mix64(state + 0x9E3779B97F4A7C15)
    return Keys(state >> 32, state % SPAN, second >> 32, second % SPAN)


def word(index: Any, before: int, between: int) -> Any:
    """The 32 random bits of an element, or of an array of them: the definition that the loops implement."""
    x = (index % SPAN) ^ before
    x ^= x >> SHIFTS[0]
    x = x * MULTIPLIERS[0] % SPAN
    x ^= between
    x ^= x >> SHIFTS[1]
    x = x * MULTIPLIERS[1] % SPAN
    return x ^ (x >> SHIFTS[2])


def random_bits(seed: int, call: int, index: int, bits: int) -> int:
    """R in [0, 2^bits) for an element, bits <= 64."""
    chosen = keys(seed, call, index // SPAN)
    both = word(index, *chosen[:2]) * SPAN + word(index, *chosen[2:])
    return both >> (64 - bits)


def _mix64(x: int) -> int:
    x %= 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)
