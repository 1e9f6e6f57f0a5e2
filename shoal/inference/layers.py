"""One layer of all agents' policies without torch: its weights, what they were frozen to, and what it computes.

Agents are stacked and padded at the tail with zeros, as in `shoal.networks`.
Shape letters: B batch rows, N agents, I inputs of a layer, U its units, C channels.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UserError, check_range, counted
from shoal.inference.grid import Grid, Kind

Array = NDArray[np.float32]
Activation = Literal["relu", "tanh", "elu", "leaky-relu", "sigmoid", "none"]
ACTIVATIONS: tuple[Activation, ...] = ("relu", "tanh", "elu", "leaky-relu", "sigmoid", "none")
LEAK = 0.01

Floating = TypeVar("Floating", bound=np.floating[Any])


@dataclass(frozen=True, eq=False)
class Quantized:
    """What a layer's numbers were frozen to: by training with quantization, or by calibration."""

    weight: Grid
    """Symmetric, one scale per unit: (N, 1, U), or (U, 1, 1, 1) of a convolution."""
    input: Grid | None = None
    """Asymmetric, one scale per agent: (N, 1, 1); None: the layer's input is not rounded."""

    @property
    def bits(self) -> int:
        """Of the weights."""
        return self.weight.bits


@dataclass(frozen=True, eq=False)
class Linear:
    """activation(x W + b) of all agents."""

    weight: Array  # (N, I, U)
    bias: Array  # (N, U)
    activation: Activation = "none"
    quantized: Quantized | None = None

    @property
    def units(self) -> int:
        """U."""
        return self.weight.shape[2]

    @property
    def played_weight(self) -> Array:
        """The weights, rounded if they were frozen to a grid."""
        return _played(self)


@dataclass(frozen=True, eq=False)
class Conv2d:
    """activation(conv(x, W) + b) of one agent's image; the first linear layer behind it sees it flat."""

    weight: Array  # (U, C, Kh, Kw)
    bias: Array  # (U,)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    activation: Activation = "relu"
    quantized: Quantized | None = None

    @property
    def units(self) -> int:
        """U."""
        return self.weight.shape[0]

    @property
    def played_weight(self) -> Array:
        """The weights, rounded if they were frozen to a grid."""
        return _played(self)

    def places(self, image: tuple[int, ...]) -> tuple[int, ...]:
        """Height and width of what it makes of an image of this height and width."""
        kernel = self.weight.shape[2:]
        parts = zip(image, kernel, self.stride, self.padding, strict=True)
        return tuple((size + 2 * pad - side) // step + 1 for size, side, step, pad in parts)


Layer = Linear | Conv2d


def _played(layer: Layer) -> Array:
    return layer.weight if layer.quantized is None else layer.quantized.weight.round(layer.weight)


def activate(x: NDArray[Floating], activation: Activation) -> NDArray[Floating]:
    """The activation function, element by element."""
    if activation == "relu":
        return np.maximum(x, 0)
    if activation == "tanh":
        return np.tanh(x)
    if activation == "elu":
        return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
    if activation == "leaky-relu":
        return np.where(x > 0, x, x * x.dtype.type(LEAK))
    if activation == "sigmoid":
        return np.asarray(1 / (1 + np.exp(-x)), x.dtype)
    return x


def run_layer(
    layer: Layer, x: NDArray[Any], dtype: Any, quantized: bool, image: tuple[int, int, int] | None
) -> NDArray[Any]:
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
        return activate(convolve(x[0], weight, layer.stride, layer.padding) + bias[:, None, None], layer.activation)[
            None
        ]
    x = x.reshape(*x.shape[:2], -1)
    return activate(x @ weight + bias[:, None], layer.activation)


def convolve(x: NDArray[Any], weight: NDArray[Any], stride: tuple[int, int], padding: tuple[int, int]) -> NDArray[Any]:
    """(B, C, height, width) through (U, C, Kh, Kw), by windows."""
    (ph, pw), (sh, sw) = padding, stride
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], axis=(2, 3))[:, :, ::sh, ::sw]
    return np.einsum("bchwij,ucij->buhw", windows, weight, optimize=True)


def layer_of_agent(layer: Layer, agent: int) -> Layer:
    """The layer of one agent alone."""
    if isinstance(layer, Conv2d):
        return layer
    i, quantized = slice(agent, agent + 1), layer.quantized
    if quantized is not None:
        quantized = Quantized(quantized.weight.part(i), quantized.input and quantized.input.part(i))
    return replace(layer, weight=layer.weight[i], bias=layer.bias[i], quantized=quantized)


def check_layer(layer: Layer, name: str, agents: int) -> None:
    """Raise a `UserError` for shapes and numbers that cannot be played."""
    if isinstance(layer, Linear):
        shape = layer.weight.shape
        if len(shape) != 3 or shape[0] != agents or layer.bias.shape != (agents, shape[2]) or not layer.weight.size:
            raise UserError(
                f"{name} of the policy has weights {layer.weight.shape} and biases {layer.bias.shape}, "
                f"but is for {counted(agents, 'agent')}."
            )
    elif layer.weight.ndim != 4 or layer.bias.shape != layer.weight.shape[:1] or not layer.weight.size:
        raise UserError(f"{name} of the policy has weights {layer.weight.shape} and biases {layer.bias.shape}.")
    elif min(layer.stride) < 1 or min(layer.padding) < 0 or not np.less(layer.padding, layer.weight.shape[2:]).all():
        raise UserError(f"{name} of the policy has the stride {layer.stride} and the padding {layer.padding}.")
    if layer.activation not in ACTIVATIONS:
        raise UserError(f"{name} of the policy has the activation '{layer.activation}', which is not known.")
    for what, numbers in (("weights", layer.weight), ("biases", layer.bias)):
        with np.errstate(over="ignore", invalid="ignore"):
            total = numbers.sum()  # quicker to have, and finite only if all are
        if not np.isfinite(total) and not np.isfinite(numbers).all():
            raise UserError(f"{name} of the policy has NaN or infinity among its {what}: it cannot be played.")
    if layer.quantized is not None:
        units = layer.units
        shape = (units, 1, 1, 1) if isinstance(layer, Conv2d) else (agents, 1, units)
        _check_grid(layer.quantized.weight, f"{name} of the policy has weights", "symmetric", shape)
        if layer.quantized.input is not None:
            _check_grid(layer.quantized.input, f"{name} of the policy has inputs", "asymmetric", (agents, 1, 1))


def _check_grid(grid: Grid, what: str, kind: Kind, shape: tuple[int, ...]) -> None:
    """Raise a `UserError` unless this is such a grid."""
    check_range(f"{what} on a grid whose number of bits", grid.bits, 2, 16)
    scale, zero = grid.scale, grid.zero_point
    if (
        grid.kind != kind
        or scale.shape != shape
        or zero.shape != shape
        or (scale.dtype.kind, zero.dtype.kind) != ("f", "i")
    ):
        raise UserError(f"{what} on a grid that is not {kind} with scales of shape {shape}.")
    if not (np.isfinite(scale) & (scale > 0)).all() or not ((zero >= 0) & (zero <= grid.highest)).all():
        raise UserError(f"{what} on a grid with a scale or a zero point that cannot be.")
    if kind == "symmetric" and zero.any():
        raise UserError(f"{what} on a symmetric grid whose zero point is not 0.")
