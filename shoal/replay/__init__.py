"""The replay ring and its samplers: what the team lived through, and which of it the next mini-batch is made of."""

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
