"""The memory of a process that runs one engine, with nothing imported that this does not need."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.inference.file import PolicyFile
from shoal.system.memory import resident_bytes

if TYPE_CHECKING:
    from shoal.inference.engine import Engine


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
        held[batch] = resident_bytes() / 1e6
    return held
