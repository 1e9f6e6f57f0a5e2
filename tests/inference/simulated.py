"""int8 by rows in plain numpy, in the order of float32 operations that ONNX Runtime has."""

import numpy as np

from shoal.inference.codes import layer_codes
from shoal.inference.layers import Conv2d, activate, convolve


def int8_outputs(policy, observation, bits):
    """(B, N, U) float32: what an int8 engine's last layer must give, to the last bit."""
    f = np.float32
    x = policy.network_input(observation, f)
    if policy.image:
        x = x.reshape(1, -1, *policy.image)
    for layer in policy.layers:
        codes, scales = layer_codes(layer, bits)
        if isinstance(layer, Conv2d):
            x = _convolution(layer, x[0], codes, scales[0])
            continue
        x = x.reshape(*x.shape[:2], -1)
        low = np.minimum(x.min(-1, keepdims=True), f(0))
        high = np.maximum(x.max(-1, keepdims=True), f(0))
        scale = np.maximum((high - low) / f(255), np.finfo(f).tiny)
        zero = np.rint(-low / scale)
        seen = (np.clip(np.rint(x / scale) + zero, 0, 255) - zero).astype(np.int64)
        whole = seen @ codes.astype(np.int64)
        x = activate(whole.astype(f) * (scale * scales[:, None]) + layer.bias[:, None], layer.activation)
    return x.transpose(1, 0, 2)


def _convolution(layer, x, codes, scales):
    f, images = np.float32, (-1, 1, 1, 1)
    low = np.minimum(x.min((1, 2, 3)), f(0)).reshape(images)
    high = np.maximum(x.max((1, 2, 3)), f(0)).reshape(images)
    scale = np.maximum((high - low) / f(255), np.finfo(f).tiny)
    zero = np.rint(-low / scale)
    seen = (np.clip(np.rint(x / scale) + zero, 0, 255) - zero).astype(np.int64)
    whole = convolve(seen, codes.astype(np.int64), layer.stride, layer.padding)
    scales, bias = scales[:, None, None], layer.bias[:, None, None]
    return activate(whole.astype(f) * (scale * scales) + bias, layer.activation)[None]
