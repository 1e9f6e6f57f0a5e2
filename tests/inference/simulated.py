"""int8 by rows in plain numpy, in the order of float32 operations that ONNX Runtime has."""

import numpy as np

from shoal.inference.grid import Grid, value_range
from shoal.inference.layers import Conv2d, activate, convolve, layer_codes


def int8_outputs(policy, observation, bits):
    """(B, N, U) float32: what an int8 engine's last layer must give, to the last bit."""
    f = np.float32
    x = policy.network_input(observation, f)
    if policy.image:
        x = x.reshape(1, -1, *policy.image)
    for layer in policy.unshared().layers:
        codes, grid = layer_codes(layer, bits)
        if isinstance(layer, Conv2d):
            x = _convolution(layer, x[0], codes.astype(np.int64), grid.scale.ravel())
            continue
        x = x.reshape(*x.shape[:2], -1)
        rows = row_grid(x, (0, 1))
        whole = (rows.codes(x) - rows.zero_point).astype(np.int64) @ codes.astype(np.int64)
        x = activate(whole.astype(f) * (rows.scale * grid.scale) + layer.bias[:, None], layer.activation)
    return x.transpose(1, 0, 2)


def row_grid(x, keep):
    """The grid of each row as the graph makes it: its range and its scale are subtracted and divided in float32."""
    low, high = value_range(x, keep)
    scale = np.maximum((high - low) / np.float32(255), np.finfo(np.float32).tiny)
    return Grid(scale, np.rint(-low / scale).astype(np.int32))


def _convolution(layer, x, codes, scales):
    images = row_grid(x, (0,))
    whole = convolve((images.codes(x) - images.zero_point).astype(np.int64), codes, layer.stride, layer.padding)
    scales, bias = scales[:, None, None], layer.bias[:, None, None]
    return activate(whole.astype(np.float32) * (images.scale * scales) + bias, layer.activation)[None]
