"""int8 by rows in plain numpy, in the order of float32 operations that ONNX Runtime has."""

import numpy as np

from shoal.inference.codes import encode
from shoal.inference.policy import activate


def int8_outputs(policy, observation, bits):
    """(B, N, U) float32: what an int8 engine's last layer must give, to the last bit."""
    f = np.float32
    x = policy.network_input(observation, f)
    for layer in policy.layers:
        codes, scales = encode(layer.weight, bits)
        low = np.minimum(x.min(-1, keepdims=True), f(0))
        high = np.maximum(x.max(-1, keepdims=True), f(0))
        scale = np.maximum((high - low) / f(255), np.finfo(f).tiny)
        zero = np.rint(-low / scale)
        seen = (np.clip(np.rint(x / scale) + zero, 0, 255) - zero).astype(np.int64)
        whole = seen @ codes.astype(np.int64)
        x = activate(whole.astype(f) * (scale * scales[:, None]) + layer.bias[:, None], layer.activation)
    return x.transpose(1, 0, 2)
