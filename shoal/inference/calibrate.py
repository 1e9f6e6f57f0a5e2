"""Frozen grids for a policy's inputs and layers, from the states that it meets."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import check_range
from shoal.inference.codes import layer_codes
from shoal.inference.layers import Array, Grid, Quantized
from shoal.inference.policy import Policy


def calibrated(policy: Policy, states: Array, bits: int) -> Policy:
    """The policy with a grid of 8 bits for the input of every layer, and weights of this many bits.

    A grid reaches from the smallest to the largest number that the layer is given for these states (B, N, O), and
    holds zero exactly. Layers that are frozen already, by training, stay as they are.
    """
    check_range("--bits", bits, 2, 8)
    policy = policy.played()
    layers = []
    for layer, seen in zip(policy.layers, policy.inputs_of_layers(states), strict=True):
        if layer.quantized is None or layer.quantized.input is None:
            grid = range_grid(seen.reshape(len(seen), -1))
            layer = replace(layer, quantized=Quantized(bits, layer_codes(layer, bits)[1], grid))
        layers.append(layer)
    return replace(policy, layers=tuple(layers))


def range_grid(seen: NDArray[np.floating[Any]], bits: int = 8) -> Grid:
    """The grid between the ends of what each agent has seen (N, …)."""
    low, high = np.minimum(seen.min(1), 0).astype(np.float64), np.maximum(seen.max(1), 0).astype(np.float64)
    scale = np.where(high > low, (high - low) / (2**bits - 1), 1.0).astype(np.float32)
    scale = np.maximum(scale, np.finfo(np.float32).tiny)
    return Grid(scale, np.rint(-low / scale).astype(np.int32), bits)
