"""A process that runs one engine and tells the megabytes it holds: python -m shoal.bench.resident onnx 3x64 FILE."""

import json
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.inference.file import PolicyFile

if TYPE_CHECKING:
    from shoal.inference.engine import Engine


def megabytes() -> float:
    """What this process holds in memory now; where the system does not tell, the most that it ever held."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main(engine: str, network: str, path: str) -> None:
    """Act for one state, then for a batch, and print what each took."""
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
    print(json.dumps(held))


if __name__ == "__main__":
    main(*sys.argv[1:])
