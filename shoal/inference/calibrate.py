"""Frozen grids for a policy's inputs and layers, from the states that it meets."""

from dataclasses import replace

from shoal.errors import check_range
from shoal.inference.codes import layer_codes
from shoal.inference.grid import Grid
from shoal.inference.layers import Array, Quantized
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
            grid = Grid.of_numbers(seen.reshape(*seen.shape[:2], -1), 8, keep=(0,))
            layer = replace(layer, quantized=Quantized(layer_codes(layer, bits)[1], grid))
        layers.append(layer)
    return replace(policy, layers=tuple(layers))
