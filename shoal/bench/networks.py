"""The papers' networks with random weights, and the memory of a process that runs one of them.

Such a process imports this module, hence nothing here that only some engines need.
"""

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.inference import Head, Linear, Policy
from shoal.system.memory import resident_bytes

if TYPE_CHECKING:
    from shoal.inference.engine import Engine
    from shoal.inference.file import PolicyFile

NETWORKS: dict[str, tuple[int, tuple[int, ...], int]] = {
    "3x64": (24, (64, 64, 64), 5),
    "3x256": (24, (256, 256, 256), 5),
    "4096-512-1024": (24, (4096, 512, 1024), 25),
    "3x2048": (67, (2048, 2048, 2048), 21),
}
"""The papers' networks: observation, hidden layers, actions."""


def bench_policy(network: str) -> Policy:
    """A policy of this shape with random weights; choices, or boxes in the humanoid's network."""
    seen, hidden, acted = NETWORKS[network]
    rng = np.random.default_rng(0)
    widths, layers = (seen, *hidden, acted), []
    for k, (inputs, units) in enumerate(pairwise(widths)):
        weight = rng.standard_normal((1, inputs, units), np.float32) * np.float32(1.4 / inputs**0.5)
        layers.append(Linear(weight, np.zeros((1, units), np.float32), "none" if k == len(hidden) else "relu"))
    ends = np.ones((1, acted), np.float32)
    head = Head("box", "tanh", -ends, ends) if network == "3x2048" else Head("argmax")
    return Policy(tuple(layers), head, (seen,), (acted,), ("agent",))


def memory_of(engine: str, network: str, path: str) -> dict[int, float]:
    """Act for one state, then for a batch; megabytes of this process after each, by batch."""
    player: Engine | PolicyFile
    if engine == "onnx":
        from shoal.inference import file

        player = file.PolicyFile(Path(path), trusted=True)
    elif engine == "torch":
        from shoal.quantization.torch_engine import TorchEngine

        player = TorchEngine(bench_policy(network))
    elif engine == "native":
        from shoal.inference.native_engine import NativeEngine

        player = NativeEngine(bench_policy(network))
    else:
        from shoal.inference.numba_engine import NumbaEngine

        player = NumbaEngine(bench_policy(network))
    held = {}
    for batch in (1, 64):
        player.act(np.zeros((batch, 1, NETWORKS[network][0]), np.float32))
        held[batch] = resident_bytes() / 1e6
    return held
