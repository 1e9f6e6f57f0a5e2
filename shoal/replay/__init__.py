"""The replay ring, which stores experience, and the samplers, which draw mini-batches from it."""

from shoal.replay.gather import Batch, Returns
from shoal.replay.layout import STORAGES
from shoal.replay.ring import Ring
from shoal.replay.samplers import SAMPLERS, Neighbor, Sampler, Uniform, can_sample, make_sampler

__all__ = [
    "Batch",
    "Neighbor",
    "Returns",
    "Ring",
    "Sampler",
    "SAMPLERS",
    "STORAGES",
    "Uniform",
    "can_sample",
    "make_sampler",
]
