"""The memory of a process that runs one engine, with nothing imported that this does not need."""

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.inference.file import PolicyFile

if TYPE_CHECKING:
    from shoal.inference.engine import Engine


def megabytes() -> float:
    """Current memory of this process; its peak, where the system does not report the current value."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def memory_of(engine: str, network: str, path: str) -> dict[int, float]:
    """Act for one state, then for a batch; megabytes of this process after each, by batch."""
    player: Engine | PolicyFile
    if engine == "onnx":
        player = PolicyFile(Path(path), trusted=True)
        size = player.observation_size
    else:
        from shoal.bench.networks import bench_policy

        policy = bench_policy(network)
        size = policy.observation_size
        if engine == "torch":
            from shoal.quantization.torch_engine import TorchEngine

            player = TorchEngine(policy)
        elif engine == "native":
            from shoal.inference.native_engine import NativeEngine

            player = NativeEngine(policy)
        else:
            from shoal.inference.numba_engine import NumbaEngine

            player = NumbaEngine(policy)
        del policy
    held = {}
    for batch in (1, 64):
        player.act(np.zeros((batch, 1, size), np.float32))
        held[batch] = megabytes()
    return held
