"""A whole policy in one compiled call, for networks so small that call overhead dominates.

All constants lie in one array of floats and one of integers; a call allocates nothing.
Shape letters: B batch rows, N agents, O observation, A action, I inputs of a layer, U its outputs.
"""

import numpy as np
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.errors import UserError
from shoal.inference.activation_kernels import SQUASHES, activate, choose, library_tanh, to_box
from shoal.inference.engine import CompiledEngine, fitting, frame_of, refuse_grids
from shoal.inference.layers import ACTIVATIONS, Array, Linear
from shoal.inference.policy import Policy

# positions in the array of integers
AGENTS, SEEN, ACTION, LAYERS, ONE_HOT, NORMALISED, SQUASH, FRAME, STRIDE, FIRST = range(10)


@njit(inline="always")
def _affine(x, y, weights, at, inputs, outputs):  # type: ignore[no-untyped-def]
    """y = x W + b with the weights (I, U) and then the biases starting at `at`; four inputs at a time."""
    bias = weights[at + inputs * outputs : at + (inputs + 1) * outputs]
    for u in range(outputs):
        y[u] = bias[u]
    whole = inputs // 4 * 4
    for i in range(0, whole, 4):
        begin = at + i * outputs
        w0, w1 = weights[begin : begin + outputs], weights[begin + outputs : begin + 2 * outputs]
        w2, w3 = weights[begin + 2 * outputs : begin + 3 * outputs], weights[begin + 3 * outputs : begin + 4 * outputs]
        x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
        for u in range(outputs):
            y[u] += x0 * w0[u] + x1 * w1[u] + x2 * w2[u] + x3 * w3[u]
    for i in range(whole, inputs):
        row, xi = weights[at + i * outputs : at + (i + 1) * outputs], x[i]
        for u in range(outputs):
            y[u] += xi * row[u]


@njit(inline="always")
def _forward(seen, n, whole, numbers, scratch):  # type: ignore[no-untyped-def]
    """The last layer's outputs for one agent's observation (O,): the row of `scratch` that holds them."""
    agents, size, layers = whole[AGENTS], whole[SEEN], whole[LAYERS]
    at = n * whole[FRAME]
    x, y = scratch[0], scratch[1]
    if whole[ONE_HOT]:
        for i in range(whole[ONE_HOT]):
            x[i] = 1 if i == np.rint(seen[0]) else 0
    elif whole[NORMALISED]:
        clip = numbers[at + 2 * size]
        for i in range(size):
            x[i] = min(max((seen[i] - numbers[at + i]) / numbers[at + size + i], -clip), clip)
    else:
        for i in range(size):
            x[i] = seen[i]
    at = agents * whole[FRAME] + whole[FIRST + 3 * layers + agents + n] * whole[STRIDE]
    for k in range(layers):
        inputs, outputs, activation = whole[FIRST + 3 * k], whole[FIRST + 3 * k + 1], whole[FIRST + 3 * k + 2]
        _affine(x, y, numbers, at, inputs, outputs)
        activate(y[:outputs], activation, library_tanh)
        at += (inputs + 1) * outputs
        x, y = y, x
    return x


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _play(observation, whole, numbers, scratch, noise, choices, boxes, masked):  # type: ignore[no-untyped-def]
    """Choices (B, N), or boxes (B, N, A), for observations (B, N, O); noise (B, N, A), or empty without sampling."""
    size, sizes = whole[ACTION], whole[FIRST + 3 * whole[LAYERS] :]
    for b in range(observation.shape[0]):
        for n in range(whole[AGENTS]):
            x = _forward(observation[b, n], n, whole, numbers, scratch)
            if choices.size:
                drawn = noise[b, n] if noise.size else noise[:, 0].ravel()
                choices[b, n] = choose(x[: sizes[n]], drawn, observation[b, n], masked)
            else:
                at = (n + 1) * whole[FRAME]
                low, high = numbers[at - 2 * size : at - size], numbers[at - size : at]
                to_box(x, whole[SQUASH], low, high, library_tanh, boxes[b, n])


class NumbaEngine(CompiledEngine):
    """float32 in a compiled loop over rows, agents and layers."""

    name, precision = "numba", "float32"

    def __init__(self, policy: Policy) -> None:
        """`policy` must have linear layers only."""
        if not policy.linear_only:
            raise UserError("The numba engine runs linear layers only, but the policy has convolutions; use onnx.")
        refuse_grids(policy, self.name)
        policy = policy.played()
        super().__init__(policy)
        widest = max(policy.observation_size, policy.one_hot, *(layer.outputs for layer in policy.layers))
        self._scratch = np.zeros((2, widest), np.float32)
        frames, networks = _numbers(policy)
        self._whole = _whole(policy, frames.shape[1], networks.shape[1])
        self._flat = np.concatenate([frames.ravel(), networks.ravel()])

    @property
    def nbytes(self) -> int:
        return self._flat.nbytes

    def play(self, observation: Array, noise: Array, choices: NDArray[np.int64], boxes: Array) -> None:
        _play(observation, self._whole, self._flat, self._scratch, noise, choices, boxes, self.policy.masked)

    def load(self, policy: Policy) -> None:
        refuse_grids(policy, self.name)
        policy = fitting(self.policy, policy)
        frames, networks = _numbers(policy)
        self._flat[: frames.size], self._flat[frames.size :] = frames.ravel(), networks.ravel()
        self._whole = _whole(policy, frames.shape[1], networks.shape[1])
        self.policy = policy


def _whole(policy: Policy, frame: int, stride: int) -> NDArray[np.int64]:
    """Sizes and flags from AGENTS to STRIDE; inputs, outputs and activation per layer; number of choices per agent;
    index of the network per agent."""
    layers = [layer for layer in policy.layers if isinstance(layer, Linear)]
    shapes = [number for layer in layers for number in (*layer.weight.shape[1:], ACTIVATIONS.index(layer.activation))]
    head = [policy.agents, policy.observation_size, policy.action_size, len(layers), policy.one_hot]
    prepared = policy.normaliser is not None or policy.scale_image
    head += [int(prepared), SQUASHES.index(policy.head.squash), frame, stride]
    return np.array([*head, *shapes, *policy.action_sizes, *(policy.network_of or range(policy.agents))], np.int64)


def _numbers(policy: Policy) -> tuple[Array, Array]:
    """(N, …): per agent mean, deviation and clip, lower and upper action bounds; (C, …): per network its layers."""
    mean, deviation, clip, low, high = frame_of(policy)
    if policy.scale_image:
        mean, deviation = 255 * mean, 255 * deviation
    frames = np.concatenate([mean, deviation, np.full((policy.agents, 1), clip), low, high], axis=1, dtype=np.float32)
    weights = [part for layer in policy.layers for part in (layer.played_weight, layer.bias)]
    return frames, np.concatenate([part.reshape(len(part), -1) for part in weights], axis=1, dtype=np.float32)
