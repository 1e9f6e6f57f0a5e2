"""What a profile of the reference needs: full lists, the bytes of a transition, addresses of what samplers touch."""

import gc
from collections.abc import Iterator

import numpy as np

from shoal.envs.base import EnvSpec
from shoal.profiling.ring_addresses import Ints
from shoal_papers.reference.addresses import object_ranges, walk
from shoal_papers.reference.replay import ListSampler, Replays

FILL_BLOCK = 4096  # different rows that the lists are filled with


def fill(replays: Replays, rows: int) -> None:
    """Fill the reference's lists as its own steps would: each observation an object of its own, kept once."""
    rng = np.random.default_rng(0)
    was_enabled = gc.isenabled()
    gc.disable()  # it would walk through millions of tuples again and again
    for buffer, observation, action in zip(
        replays.agents, replays.spec.observation_sizes, replays.spec.action_sizes, strict=True
    ):
        seen = rng.normal(size=(FILL_BLOCK, observation)).astype(np.float32)
        played = rng.random((FILL_BLOCK, action)).astype(np.float32)
        here = seen[0].copy()
        for t in range(rows):
            there = seen[(t + 1) % FILL_BLOCK].copy()
            buffer.add(here, played[t % FILL_BLOCK].copy(), float(t), there, 0.0)
            here = there
    replays.added += rows
    if was_enabled:
        gc.enable()
    gc.collect()


def transition_bytes(spec: EnvSpec) -> int:
    """Bytes that the lists of all agents take per transition."""
    return Replays(spec, 1).transition_bytes


def sampled_ranges(replays: Replays, sampler: ListSampler, batch: int, random: np.random.Generator) -> Iterator[Ints]:
    """The bytes that mini-batches touch, one agent's after the other's: each gathers all agents' transitions, then its
    own again."""
    storages = [buffer.storage for buffer in replays.agents]
    while True:
        for storage in storages:
            indices = sampler.indices(replays, batch, random)
            way = walk(sampler, indices, len(replays), replays.capacity)
            yield object_ranges([*storages, storage], way)
