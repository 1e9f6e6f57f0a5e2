"""The noise that the native update draws, as arrays."""

import math

import numpy as np

from shoal.compiled import njit
from shoal.native.arithmetic import key_of, log, normal, uniform


@njit(cache=True)
def fill_noise(out, kind, seed, moment, stream, width):  # type: ignore[no-untyped-def]
    """out (rows, columns) = the Gumbel (kind 0) or normal noise (kind 1) of a policy's head of this (padded) width."""
    key = key_of(seed, moment, stream)
    for r in range(out.shape[0]):
        for a in range(out.shape[1]):
            counter = r * width + a
            if kind == 0:
                out[r, a] = -math.log(np.float64(-log(uniform(key, counter))))
            else:
                out[r, a] = normal(key, counter)
