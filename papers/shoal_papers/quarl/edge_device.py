"""A process that runs an exported policy like a small device: python -m shoal_papers.quarl.edge_device FILE MB CALLS.

It imports what it needs, limits itself to MB more address space (0: unlimited), reads the file and acts for one state
at a time. It prints its measurements as JSON, and exits if the file does not fit.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

import numpy as np

from shoal.inference.file import PolicyFile

MEGABYTE = 2**20


def pages(which: int) -> int:
    """Bytes of address space (0) or of resident memory (1) of this process."""
    return int(Path("/proc/self/statm").read_text().split()[which]) * os.sysconf("SC_PAGE_SIZE")


def main(path: str, megabytes: str, calls: str) -> None:
    """Read the file within the limit, and time single states."""
    spare = np.zeros(1)  # numpy's own first allocation
    space, held = pages(0), pages(1)
    if float(megabytes):
        limit = space + int(float(megabytes) * MEGABYTE)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    policy = PolicyFile(Path(path), trusted=True)
    state = np.zeros((1, policy.agents, policy.observation_size), np.float32)
    took = []
    for call in range(int(calls)):
        state[...] = np.sin(call + spare[0])
        start = time.perf_counter()
        policy.act(state)
        took.append(time.perf_counter() - start)
    late = np.array(took[len(took) // 4 :])  # the first calls run with cold caches
    found = {
        "latency_ms": 1e3 * float(np.median(late)),
        "p99_ms": 1e3 * float(np.quantile(late, 0.99)),
        "memory_mb": pages(1) / MEGABYTE,
        "policy_mb": (pages(1) - held) / MEGABYTE,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
