"""`shoal bench replay`: sampling from the ring compared with the machine's limit, and its size with the usual layout.

The limit is a contiguous copy of as many bytes as a sample delivers, from uncached memory into a reused buffer, by the
same number of threads. The usual layout stores both observations of a transition in float32. Observations have the
sizes of cooperative navigation.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import numba
import numpy as np
from numpy.typing import NDArray

from shoal.bench import Record
from shoal.bench.timing import interleaved
from shoal.envs import make_env
from shoal.envs.base import EnvSpec, Step
from shoal.replay import SAMPLERS, Batch, Returns, Ring, make_sampler
from shoal.replay.layout import RowLayout, ring_bytes
from shoal.replay.ring import gathered_in_parallel
from shoal.results import Column

COPIES, ACTIONS, EPISODE = 25, 5, 25
COLUMNS = {
    "sample_gb_per_second": Column("sample", "GB/s"),
    "copy_gb_per_second": Column("copy", "GB/s"),
    "sample_us": Column("sample", "µs"),
    "cached_us": Column("cached", "µs"),
}
PARTS = (3, 12, 48)


def run(agents: int, batch: int = 1024, seconds: float = 2.0, size: int = 2**29) -> list[Record]:
    """One record per storage and sampler; rings of about `size` bytes, `seconds` for each."""
    spec = make_env("cooperative-navigation", agents).spec
    rings = (_filled_ring(spec, storage, size) for storage in ("float32", "float16"))
    return [row for ring in rings for row in _rows(ring, batch, seconds, size // 2)]


def _rows(ring: Ring, batch: int, seconds: float, region: int) -> list[Record]:
    """Both samplers on one ring, interleaved with the copy."""
    rng = np.random.default_rng(0)
    samples = [partial(ring.sample, make_sampler(name), batch, rng) for name in SAMPLERS]
    first = samples[0]()
    count = _delivered(first)
    threads = numba.get_num_threads() if gathered_in_parallel(first) else 1
    copy = _copier(np.ones(max(region, 2 * count), np.uint8), np.ones(count, np.uint8), threads)
    again = partial(ring.gather, first.copies.copy(), first.transitions.copy())
    *sample_times, _, cached_time, copy_time = interleaved([*samples, again, again, copy], seconds)
    layout, per_transition = ring.layout, ring.nbytes / ring.capacity
    both = 4 * layout.agents * (2 * layout.observation_size + layout.action_size + 2)
    return [
        {
            "agents": layout.agents,
            "sampler": name,
            "storage": layout.storage,
            "sample_gb_per_second": count / time / 1e9,
            "copy_gb_per_second": count / copy_time / 1e9,
            "ratio": copy_time / time,
            "sample_us": 1e6 * time,
            "cached_us": 1e6 * cached_time,  # rows gathered just before: a lower bound for any read order
            "row_bytes": ring.row_bytes,
            "bytes_per_transition": per_transition,  # a row, its share of the dead rows, where it starts
            "both_observations_bytes": both,
            "bytes_ratio": per_transition / both,
        }
        for name, time in zip(SAMPLERS, sample_times, strict=True)
    ]


def _delivered(batch: Batch | Returns) -> int:
    """Bytes that a sample delivers, without its indices and the zeros that the algorithm fills in."""
    zeros = 4 * batch.reward.size * ACTIONS
    arrays = (batch.joint, batch.next_joint, batch.reward, batch.terminated, batch.alive)
    return sum(array.nbytes for array in arrays) - zeros


def _copier(source: NDArray[np.uint8], target: NDArray[np.uint8], threads: int) -> Callable[[], None]:
    """Copies into `target` from where the last call ended in `source`, cyclically, with this many threads."""
    edges = np.linspace(0, target.size, threads + 1).astype(int)
    parts = [slice(low, high) for low, high in pairwise(edges)]
    pool = ThreadPoolExecutor(threads) if threads > 1 else None
    position = 0

    def copy() -> None:
        nonlocal position
        if position + target.size > source.size:
            position = 0
        here = source[position : position + target.size]
        if pool is None:
            np.copyto(target, here)
        else:
            list(pool.map(lambda part: np.copyto(target[part], here[part]), parts))
        position += target.size

    return copy


def _filled_ring(spec: EnvSpec, storage: str, size: int) -> Ring:
    """A full ring of about this many bytes, every page of it written."""
    hundred = ring_bytes(spec, RowLayout.of(spec, storage), COPIES, 100)
    ring = Ring(spec, COPIES, COPIES * max(2, 100 * size // hundred), storage)
    each = (COPIES, spec.agents)
    observation = np.random.default_rng(0).normal(size=(*each, spec.observation_size)).astype(np.float32)
    actions, reward = np.zeros((*each, ACTIONS), np.float32), np.zeros(each, np.float32)
    nobody, everybody = np.zeros(each, np.bool_), np.ones(each, np.bool_)
    ring.begin(observation)
    for t in range(ring.capacity_per_copy):
        ended = np.full(COPIES, t % EPISODE == EPISODE - 1)
        ring.add(actions, Step(observation, reward, nobody, ended, everybody, ended, observation))
    return ring
