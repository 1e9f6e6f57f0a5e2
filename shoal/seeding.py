"""One seed gives independent, named random streams; nothing draws from a global generator."""

import zlib

import numpy as np


def stream(seed: int, name: str) -> np.random.Generator:
    """The stream called `name` of this seed; streams of different names are independent."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())])))


def stream_seed(seed: int, name: str) -> int:
    """A 63-bit seed for generators that are not numpy's, drawn from the named stream."""
    return int(stream(seed, name).integers(2**63 - 1))
