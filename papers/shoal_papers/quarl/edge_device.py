"""A process that runs an exported policy like a small device, with nothing imported that this does not need."""

import os
import resource
import time
from pathlib import Path

import numpy as np

from shoal.inference.file import PolicyFile

MEGABYTE = 2**20


def pages(which: int) -> int:
    """Bytes of address space (0) or of resident memory (1) of this process."""
    return int(Path("/proc/self/statm").read_text().split()[which]) * os.sysconf("SC_PAGE_SIZE")


def measure(path: str, megabytes: int, calls: int) -> dict[str, float]:
    """Limit this process to so many more megabytes of address space (0: no limit), read the file, time single states.

    The process ends if the file does not fit.
    """
    spare = np.zeros(1)  # numpy's own first allocation
    space, resident = pages(0), pages(1)
    if megabytes:
        limit = space + megabytes * MEGABYTE
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    policy = PolicyFile(Path(path), trusted=True)
    state = np.zeros((1, policy.agents, policy.observation_size), np.float32)
    took = []
    for call in range(calls):
        state[...] = np.sin(call + spare[0])
        start = time.perf_counter()
        policy.act(state)
        took.append(time.perf_counter() - start)
    late = np.array(took[len(took) // 4 :])  # the first calls run with cold caches
    return {
        "latency_ms": 1e3 * float(np.median(late)),
        "p99_ms": 1e3 * float(np.quantile(late, 0.99)),
        "memory_mb": pages(1) / MEGABYTE,
        "policy_mb": (pages(1) - resident) / MEGABYTE,
    }
