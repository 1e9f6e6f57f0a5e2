"""One layer of all agents' policies without torch: its weights, their frozen grids, and its forward pass.

Agents are stacked and padded at the tail with zeros, as in `shoal.networks`. Where agents share networks, a layer's N
is the number of networks.
Shape letters: B batch rows, N agents, I inputs of a layer, U its outputs, C channels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UserError, check_range, counted
from shoal.inference.grid import Grid, GridKind, encode

Array = NDArray[np.float32]
ImageShape = tuple[int, int, int] | None
Activation = Literal[
    "relu", "tanh", "elu", "leaky-relu", "sigmoid", "none", "mish", "silu", "gelu", "gelu-tanh", "clip-2"
]
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
"""Packed codes and engines store positions in this list: new ones go to its end."""
LEAK, BOUND = 0.01, 2.0
"""Slope of leaky-relu below 0; bound of clip-2, which limits the means of Stable-Baselines3's SAC with gSDE."""

Floating = TypeVar("Floating", bound=np.floating[Any])


@dataclass(frozen=True, eq=False)
class Quantized:
    """The grids that a layer is frozen to, by quantization-aware training or by calibration."""

    weight: Grid  # symmetric, one scale per output channel: (N, 1, U), or (U, 1, 1, 1) for a convolution
    input: Grid | None = None  # asymmetric, one scale per agent: (N, 1, 1); None: the layer's input is not rounded

    @property
    def bits(self) -> int:
        return self.weight.bits


class _Layer:
    """What both kinds of layers have."""

    weight: Array
    bias: Array
    quantized: Quantized | None

    @property
    def outputs(self) -> int:
        """U."""
        return self.bias.shape[-1]

    @property
    def played_weight(self) -> Array:
        """The weights, rounded if they were frozen to a grid."""
        return self.weight if self.quantized is None else self.quantized.weight.round(self.weight)


@dataclass(frozen=True, eq=False)
class Linear(_Layer):
    """activation(x W + b) of all agents."""

    weight: Array  # (N, I, U)
    bias: Array  # (N, U)
    activation: Activation = "none"
    quantized: Quantized | None = None


@dataclass(frozen=True, eq=False)
class Conv2d(_Layer):
    """activation(conv(x, W) + b) of one agent's image; the first linear layer after it takes it flattened."""

    weight: Array  # (U, C, Kh, Kw)
    bias: Array  # (U,)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    activation: Activation = "relu"
    quantized: Quantized | None = None

    def places(self, image: tuple[int, ...]) -> tuple[int, ...]:
        """Height and width of its output for an image of this height and width."""
        parts = zip(image, self.weight.shape[2:], self.stride, self.padding, strict=True)
        return tuple((size + 2 * pad - side) // step + 1 for size, side, step, pad in parts)


Layer = Linear | Conv2d


def activate(x: NDArray[Floating], activation: Activation) -> NDArray[Floating]:
    if activation == "relu":
        return np.maximum(x, 0)
    if activation == "tanh":
        return np.tanh(x)
    if activation == "elu":
        return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
    if activation == "leaky-relu":
        return np.where(x > 0, x, x * x.dtype.type(LEAK))
    if activation == "sigmoid":
        with np.errstate(over="ignore"):  # 1 / infinity is the right 0
            return np.asarray(1 / (1 + np.exp(-x)), x.dtype)
    if activation == "clip-2":
        return np.clip(x, -BOUND, BOUND)
    return x if activation == "none" else np.asarray(x * _gate(x.astype(np.float64), activation), x.dtype)


def _gate(x: NDArray[np.float64], activation: Activation) -> NDArray[np.float64]:
    """The factor from 0 to 1 that mish, silu and both forms of gelu multiply their input by."""
    if activation == "mish":
        return np.tanh(np.logaddexp(0, x))
    if activation == "gelu":
        return 0.5 * np.asarray(_erfc(-math.sqrt(0.5) * x), np.float64)
    z = x if activation == "silu" else 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 + 0.5 * np.tanh(0.5 * z)


_erfc = np.frompyfunc(math.erfc, 1, 1)  # numpy has none


def run_layer(layer: Layer, x: NDArray[Any], dtype: Any, quantized: bool, image: ImageShape) -> NDArray[Any]:
    """One layer in plain numpy: (N, B, I) to (N, B, U); images are (N, B, C, height, width)."""
    weight, bias = layer.weight.astype(dtype), layer.bias.astype(dtype)
    if isinstance(layer, Conv2d) and x.ndim == 3:
        assert image is not None
        x = x.reshape(*x.shape[:2], *image)
    if quantized and layer.quantized is not None:
        weight = layer.quantized.weight.round(weight)
        if layer.quantized.input is not None:
            x = layer.quantized.input.round(x)
    if isinstance(layer, Conv2d):
        y = convolve(x[0], weight, layer.stride, layer.padding) + bias[:, None, None]
        return activate(y, layer.activation)[None]
    x = x.reshape(*x.shape[:2], -1)
    return activate(x @ weight + bias[:, None], layer.activation)


def convolve(x: NDArray[Any], weight: NDArray[Any], stride: tuple[int, int], padding: tuple[int, int]) -> NDArray[Any]:
    """(B, C, height, width) through (U, C, Kh, Kw), by sliding windows."""
    return np.einsum("bchwij,ucij->buhw", windows(x, weight.shape[2:], stride, padding), weight, optimize=True)


def windows(
    x: NDArray[Any], kernel: tuple[int, ...], stride: tuple[int, int], padding: tuple[int, int]
) -> NDArray[Any]:
    """(B, C, places high, places wide, Kh, Kw): what a kernel of this size sees at each place of the images."""
    (ph, pw), (sh, sw) = padding, stride
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    return np.lib.stride_tricks.sliding_window_view(x, kernel, axis=(2, 3))[:, :, ::sh, ::sw]


def layer_rows(layer: Layer, x: NDArray[Any], image: ImageShape) -> NDArray[Any]:
    """(N, R, I): the rows that a layer's weights are multiplied with, for its input (N, B, …); one place, one row."""
    if isinstance(layer, Linear):
        return x.reshape(*x.shape[:2], -1)
    if x.ndim == 3:
        assert image is not None
        x = x.reshape(*x.shape[:2], *image)
    seen = windows(x[0], layer.weight.shape[2:], layer.stride, layer.padding)
    return seen.transpose(0, 2, 3, 1, 4, 5).reshape(1, -1, layer.weight[0].size)


def as_matrix(weight: Array) -> Array:
    """(N, I, U): the weights of a linear layer, or those (U, C, Kh, Kw) of a convolution for its rows."""
    return weight if weight.ndim == 3 else weight.reshape(len(weight), -1).T[None]


def layer_codes(layer: Layer, bits: int) -> tuple[NDArray[np.int8], Grid]:
    """A layer's codes and their grid: the frozen ones if they take no more bits than this, else new ones."""
    frozen = layer.quantized
    if frozen is not None and frozen.bits <= bits:
        return frozen.weight.encode(layer.weight), frozen.weight
    if isinstance(layer, Linear):
        return encode(layer.weight, bits)
    codes, grid = encode(as_matrix(layer.weight), bits)
    codes = np.ascontiguousarray(codes[0].T).reshape(layer.weight.shape)
    return codes, Grid.symmetric(grid.scale.reshape(-1, 1, 1, 1), bits)


def layer_of_agents(layer: Layer, network_of: Sequence[int]) -> Layer:
    """The layer with one network per agent, given the index of each agent's network; empty: it is so already."""
    if isinstance(layer, Conv2d) or not network_of:
        return layer
    networks, quantized = list(network_of), layer.quantized
    if quantized is not None:
        quantized = Quantized(quantized.weight.part(networks), quantized.input and quantized.input.part(networks))
    return replace(layer, weight=layer.weight[networks], bias=layer.bias[networks], quantized=quantized)


def first_outputs(layer: Layer, size: int) -> Linear:
    assert isinstance(layer, Linear)
    quantized = layer.quantized
    if quantized is not None:
        quantized = replace(quantized, weight=quantized.weight.part(slice(None), slice(None), slice(size)))
    weight = np.ascontiguousarray(layer.weight[:, :, :size])
    return replace(layer, weight=weight, bias=layer.bias[:, :size], quantized=quantized)


def check_layer(layer: Layer, name: str, networks: int) -> None:
    """Raise a `UserError` for invalid shapes or values."""
    if isinstance(layer, Linear):
        shape = layer.weight.shape
        if len(shape) != 3 or shape[0] != networks or layer.bias.shape != (networks, shape[2]) or not layer.weight.size:
            raise UserError(
                f"{name} of the policy has weights {layer.weight.shape} and biases {layer.bias.shape}, "
                f"but the policy has {counted(networks, 'network')}."
            )
    elif layer.weight.ndim != 4 or layer.bias.shape != layer.weight.shape[:1] or not layer.weight.size:
        raise UserError(f"{name} of the policy has weights {layer.weight.shape} and biases {layer.bias.shape}.")
    elif min(layer.stride) < 1 or min(layer.padding) < 0 or not np.less(layer.padding, layer.weight.shape[2:]).all():
        raise UserError(f"{name} of the policy has the stride {layer.stride} and the padding {layer.padding}.")
    if layer.activation not in ACTIVATIONS:
        raise UserError(f"{name} of the policy has the activation '{layer.activation}', which is not known.")
    for what, numbers in (("weights", layer.weight), ("biases", layer.bias)):
        with np.errstate(over="ignore", invalid="ignore"):
            total = numbers.sum()  # cheaper, and finite only if all are
        if not np.isfinite(total) and not np.isfinite(numbers).all():
            raise UserError(f"{name} of the policy has NaN or infinity among its {what}: it cannot be run.")
    if layer.quantized is not None:
        shape = (layer.outputs, 1, 1, 1) if isinstance(layer, Conv2d) else (networks, 1, layer.outputs)
        _check_grid(layer.quantized.weight, f"{name} of the policy has weights", "symmetric", shape)
        if layer.quantized.input is not None:
            _check_grid(layer.quantized.input, f"{name} of the policy has inputs", "asymmetric", (networks, 1, 1))


def _check_grid(grid: Grid, what: str, kind: GridKind, shape: tuple[int, ...]) -> None:
    """Raise a `UserError` unless the grid has this kind and shape."""
    check_range(f"{what} on a grid whose number of bits", grid.bits, 2, 16)
    scale, zero = grid.scale, grid.zero_point
    kinds = grid.kind, scale.dtype.kind, zero.dtype.kind
    if kinds != (kind, "f", "i") or scale.shape != shape or zero.shape != shape:
        raise UserError(f"{what} on a grid that is not {kind} with scales of shape {shape}.")
    if not (np.isfinite(scale) & (scale > 0)).all() or not ((zero >= 0) & (zero <= grid.highest)).all():
        raise UserError(f"{what} on a grid with an invalid scale or zero point.")
    if kind == "symmetric" and zero.any():
        raise UserError(f"{what} on a symmetric grid whose zero point is not 0.")
