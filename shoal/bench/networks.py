"""The papers' networks with random weights."""

from itertools import pairwise

import numpy as np

from shoal.inference import Head, Linear, Policy

NETWORKS: dict[str, tuple[int, tuple[int, ...], int]] = {
    "3x64": (24, (64, 64, 64), 5),
    "3x256": (24, (256, 256, 256), 5),
    "4096-512-1024": (24, (4096, 512, 1024), 25),
    "3x2048": (67, (2048, 2048, 2048), 21),
}
"""The papers' networks: observation, hidden layers, actions."""


def bench_policy(network: str, seed: int = 0) -> Policy:
    """A policy of this shape with random weights; choices, or boxes in the humanoid's network."""
    seen, hidden, acted = NETWORKS[network]
    rng = np.random.default_rng(seed)
    widths, layers = (seen, *hidden, acted), []
    for k, (inputs, units) in enumerate(pairwise(widths)):
        weight = rng.standard_normal((1, inputs, units), np.float32) * np.float32(1.4 / inputs**0.5)
        layers.append(Linear(weight, np.zeros((1, units), np.float32), "none" if k == len(hidden) else "relu"))
    ends = np.ones((1, acted), np.float32)
    head = Head("box", "tanh", -ends, ends) if network == "3x2048" else Head("argmax")
    return Policy(tuple(layers), head, (seen,), (acted,), ("agent",))
