"""Static quantization: frozen grids for a policy's layers, calibrated on states that it visits."""

from dataclasses import replace

from shoal.errors import check_range
from shoal.inference.codes import layer_codes
from shoal.inference.grid import Grid
from shoal.inference.layers import Array, Quantized
from shoal.inference.policy import Policy


def calibrated(policy: Policy, states: Array, bits: int) -> Policy:
    """The policy with an 8-bit grid for the input of every layer, and weights of this many bits.

    A grid spans the range of the layer's input over these states (B, N, O) and represents zero exactly. Layers that
    quantization-aware training has already frozen are kept.
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
