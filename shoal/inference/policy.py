"""A policy described completely and without torch: what every engine runs and every exported file holds.

A policy maps raw observations (B, N, O) to what the environment takes: choices (B, N) as whole numbers, or boxes
(B, N, A) in the environment's units. In between: observations scaled, normalised or made one-hot; layers; the head.
Agents are stacked and padded at the tail with zeros, as in `shoal.networks`.
Shape letters: B batch rows, N agents, O observation, A action, I inputs of a layer, U its units, C channels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UserError

Array = NDArray[np.float32]
Actions = NDArray[Any]
"""Choices (B, N) int64, or boxes (B, N, A) float32."""
Activation = Literal["relu", "tanh", "elu", "leaky-relu", "sigmoid", "none"]
ACTIVATIONS: tuple[Activation, ...] = ("relu", "tanh", "elu", "leaky-relu", "sigmoid", "none")
LEAK = 0.01
FORMAT = 1
"""Of what an exported file says about itself."""
MASKED = np.float32(-1e9)  # added to the logits of choices that an agent does not have

Floating = TypeVar("Floating", bound=np.floating[Any])


@dataclass(frozen=True, eq=False)
class Grid:
    """Whole numbers 0 to 2^bits - 1 for real ones: real = scale * (code - zero_point), one scale an agent."""

    scale: Array  # (N,)
    zero_point: NDArray[np.int32]  # (N,)
    bits: int = 8

    def round(self, x: NDArray[Floating]) -> NDArray[Floating]:
        """The values of the grid that are nearest to x (N, …), ties to the even code."""
        shape = (-1,) + (1,) * (x.ndim - 1)
        scale, zero = self.scale.astype(x.dtype).reshape(shape), self.zero_point.astype(x.dtype).reshape(shape)
        codes = np.clip(np.rint(x / scale) + zero, 0, 2**self.bits - 1)
        return (codes - zero) * scale


@dataclass(frozen=True, eq=False)
class Quantized:
    """What a layer's numbers were frozen to: by training with quantization, or by calibration.

    Weights are symmetric, weight_scale * code with |code| <= 2^(bits - 1) - 1, one scale a unit.
    """

    bits: int
    weight_scale: Array  # (N, U); (1, U) of a convolution
    input: Grid | None = None
    """The grid of the layer's input; None: as it comes."""

    def codes(self, weight: NDArray[np.floating[Any]], unit_axis: int) -> NDArray[Any]:
        """The weights (N, …) as whole numbers; `unit_axis` is that of the units."""
        most = 2 ** (self.bits - 1) - 1
        whole = np.int8 if self.bits <= 8 else np.int32
        return np.clip(np.rint(weight / self._spread(weight, unit_axis)), -most, most).astype(whole)

    def round(self, weight: NDArray[Floating], unit_axis: int) -> NDArray[Floating]:
        """The weights' nearest values on their grid."""
        return self.codes(weight, unit_axis).astype(weight.dtype) * self._spread(weight, unit_axis)

    def _spread(self, weight: NDArray[Floating], unit_axis: int) -> NDArray[Floating]:
        """The scales in the weights' shape and type, to be broadcast."""
        shape = [len(self.weight_scale), *[1] * (weight.ndim - 1)]
        shape[unit_axis] = self.weight_scale.shape[1]
        return self.weight_scale.astype(weight.dtype).reshape(shape)


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
        return self.weight if self.quantized is None else self.quantized.round(self.weight, 2)


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
        return self.weight if self.quantized is None else self.quantized.round(self.weight, 0)


Layer = Linear | Conv2d


@dataclass(frozen=True, eq=False)
class Normaliser:
    """(observation - mean) / sqrt(var + epsilon), within ±clip."""

    mean: Array  # (N, O)
    var: Array  # (N, O)
    epsilon: float = 1e-8
    clip: float = 10.0


@dataclass(frozen=True, eq=False)
class Head:
    """What the last layer's outputs mean.

    argmax: the choice with the largest output. categorical: a choice drawn by adding -log(-log(u)) of the noise u in
    (0, 1) to the outputs, where u (B, N, A) is given. box: the squashed outputs; with squash tanh they fill the box.
    gaussian: means and then logarithms of deviations, A each; the means are played like a box.
    """

    kind: Literal["argmax", "categorical", "box", "gaussian"]
    squash: Literal["tanh", "clip", "none"] = "none"
    low: Array | None = None  # (N, A), 0 in the padding
    high: Array | None = None

    @property
    def discrete(self) -> bool:
        """Whether actions are choices."""
        return self.kind in ("argmax", "categorical")


@dataclass(frozen=True, eq=False)
class Policy:
    """All agents' policies, from raw observation to the environment's action."""

    layers: tuple[Layer, ...]
    head: Head
    observation_sizes: tuple[int, ...]
    action_sizes: tuple[int, ...]
    agent_names: tuple[str, ...]
    normaliser: Normaliser | None = None
    image: tuple[int, int, int] | None = None
    """(C, height, width) if the observation is an image, flattened in this order."""
    scale_image: bool = False
    """Divide the observation by 255 first."""
    one_hot: int = 0
    """The observation is one whole number below this, and the network sees it one-hot; 0: it is a vector."""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def agents(self) -> int:
        """N."""
        return len(self.agent_names)

    @property
    def observation_size(self) -> int:
        """O, the longest observation."""
        return max(self.observation_sizes)

    @property
    def action_size(self) -> int:
        """A, the longest action vector."""
        return max(self.action_sizes)

    @property
    def parameters(self) -> int:
        """Numbers in all layers."""
        return sum(layer.weight.size + layer.bias.size for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes of all layers in float32."""
        return 4 * self.parameters

    @cached_property
    def mask(self) -> Array:
        """(N, A): 0 where an agent has the choice, a very small number where it has not."""
        real = np.arange(self.action_size)[None, :] < np.array(self.action_sizes)[:, None]
        return np.where(real, np.float32(0), MASKED)

    @property
    def padded(self) -> bool:
        """Whether any agent has padded actions."""
        return len(set(self.action_sizes)) > 1

    @property
    def linear_only(self) -> bool:
        """Whether all layers are linear."""
        return all(isinstance(layer, Linear) for layer in self.layers)

    @property
    def grids(self) -> list[Grid]:
        """The grids that inputs of layers were frozen to."""
        return [layer.quantized.input for layer in self.layers if layer.quantized and layer.quantized.input]

    def played(self) -> "Policy":
        """The same without the outputs that nobody plays: a Gaussian's deviations."""
        if self.head.kind != "gaussian":
            return self
        last = self.layers[-1]
        assert isinstance(last, Linear)
        size, quantized = self.action_size, last.quantized
        if quantized is not None:
            quantized = replace(quantized, weight_scale=quantized.weight_scale[:, :size])
        means = replace(last, weight=last.weight[:, :, :size], bias=last.bias[:, :size], quantized=quantized)
        return replace(self, layers=(*self.layers[:-1], means), head=replace(self.head, kind="box"))

    def of_agent(self, agent: int) -> "Policy":
        """One agent's policy alone, without padding."""
        i, seen, act = slice(agent, agent + 1), self.observation_sizes[agent], self.action_sizes[agent]
        played = self.played()
        layers = [_of_agent(layer, agent) for layer in played.layers]
        if not self.one_hot and not self.image and isinstance(first := layers[0], Linear):
            layers[0] = replace(first, weight=np.ascontiguousarray(first.weight[:, :seen]))
        last = layers[-1]
        assert isinstance(last, Linear)
        quantized = last.quantized and replace(last.quantized, weight_scale=last.quantized.weight_scale[:, :act])
        weight = np.ascontiguousarray(last.weight[:, :, :act])
        layers[-1] = replace(last, weight=weight, bias=last.bias[:, :act], quantized=quantized)
        head, norm = played.head, played.normaliser
        if head.low is not None and head.high is not None:
            head = replace(head, low=head.low[i, :act], high=head.high[i, :act])
        if norm is not None:
            norm = replace(norm, mean=norm.mean[i, :seen], var=norm.var[i, :seen])
        names = (self.agent_names[agent],)
        return replace(played, layers=tuple(layers), head=head, observation_sizes=(seen,), action_sizes=(act,),
                       agent_names=names, normaliser=norm)  # fmt: skip

    def check(self) -> "Policy":
        """Itself, once its shapes and numbers are found to be right; a `UserError` for the first that is not."""
        _check(self)
        return self

    def network_input(self, observation: NDArray[np.floating[Any]], dtype: Any = np.float64) -> NDArray[Any]:
        """(N, B, I): what the first layer sees."""
        x = np.asarray(observation, dtype).transpose(1, 0, 2)
        if self.one_hot:
            return (np.arange(self.one_hot) == np.rint(x)).astype(dtype)
        if self.scale_image:
            x = x / dtype(255)
        if (norm := self.normaliser) is not None:
            deviation = np.sqrt(norm.var.astype(dtype) + dtype(norm.epsilon))
            x = np.clip((x - norm.mean.astype(dtype)[:, None]) / deviation[:, None], -norm.clip, norm.clip)
        return x

    def outputs(
        self, observation: NDArray[np.floating[Any]], dtype: Any = np.float64, quantized: bool = True
    ) -> NDArray[Any]:
        """(B, N, U): the last layer's outputs, in plain numpy; what is frozen is rounded to its grid if `quantized`."""
        x = self.network_input(observation, dtype)
        for layer in self.layers:
            x = _layer(layer, x, dtype, quantized, self.image)
        return x.transpose(1, 0, 2)

    def inputs_of_layers(self, observation: NDArray[np.floating[Any]], dtype: Any = np.float32) -> list[NDArray[Any]]:
        """What each layer sees, (N, B, …): for calibration."""
        x, seen = self.network_input(observation, dtype), []
        for layer in self.layers:
            seen.append(x)
            x = _layer(layer, x, dtype, False, self.image)
        return seen

    def act_on(self, outputs: NDArray[Any], noise: NDArray[Any] | None = None) -> Actions:
        """The actions for the last layer's outputs (B, N, U)."""
        head, size = self.head, self.action_size
        outputs = outputs[..., :size]
        if head.discrete:
            logits = outputs + self.mask.astype(outputs.dtype)
            if head.kind == "categorical":
                if noise is None:
                    raise ValueError("a policy that draws its choices needs noise (B, N, A) in (0, 1)")
                logits = logits - np.log(-np.log(np.asarray(noise, outputs.dtype)))
            return np.asarray(logits.argmax(-1), np.int64)
        if head.squash == "none":
            return np.asarray(outputs, np.float32)
        assert head.low is not None and head.high is not None
        low, high = head.low.astype(outputs.dtype), head.high.astype(outputs.dtype)
        if head.squash == "clip":
            return np.clip(outputs, low, high).astype(np.float32)
        return np.asarray((high + low) / 2 + (high - low) / 2 * np.tanh(outputs), np.float32)

    def reference(
        self,
        observation: NDArray[np.floating[Any]],
        noise: NDArray[Any] | None = None,
        dtype: Any = np.float64,
        quantized: bool = True,
    ) -> Actions:
        """Actions for raw observations (B, N, O) in plain numpy: what every engine is tested against."""
        return self.act_on(self.outputs(observation, dtype, quantized), noise)

    def to_world(self, actions: Actions) -> Array:
        """Actions (B, N, A) as Shoal's worlds take them: choices one-hot, boxes as they are."""
        if not self.head.discrete:
            return np.asarray(actions, np.float32)
        return (np.arange(self.action_size) == np.asarray(actions)[..., None]).astype(np.float32)


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


def _layer(
    layer: Layer, x: NDArray[Any], dtype: Any, quantized: bool, image: tuple[int, int, int] | None
) -> NDArray[Any]:
    """One layer in plain numpy: (N, B, I) to (N, B, U); images are (N, B, C, height, width)."""
    weight, bias = layer.weight.astype(dtype), layer.bias.astype(dtype)
    if isinstance(layer, Conv2d) and x.ndim == 3:
        assert image is not None
        x = x.reshape(*x.shape[:2], *image)
    if quantized and layer.quantized is not None:
        weight = layer.quantized.round(weight, 2 if isinstance(layer, Linear) else 0)
        if layer.quantized.input is not None:
            x = layer.quantized.input.round(x)
    if isinstance(layer, Conv2d):
        return activate(_convolve(x[0], weight, layer.stride, layer.padding) + bias[:, None, None], layer.activation)[
            None
        ]
    x = x.reshape(*x.shape[:2], -1)
    return activate(x @ weight + bias[:, None], layer.activation)


def _convolve(x: NDArray[Any], weight: NDArray[Any], stride: tuple[int, int], padding: tuple[int, int]) -> NDArray[Any]:
    """(B, C, height, width) through (U, C, Kh, Kw), by windows."""
    (ph, pw), (sh, sw) = padding, stride
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], axis=(2, 3))[:, :, ::sh, ::sw]
    return np.einsum("bchwij,ucij->buhw", windows, weight, optimize=True)


def _of_agent(layer: Layer, agent: int) -> Layer:
    if isinstance(layer, Conv2d):
        return layer
    i, quantized = slice(agent, agent + 1), layer.quantized
    if quantized is not None:
        grid = quantized.input
        if grid is not None:
            grid = replace(grid, scale=grid.scale[i], zero_point=grid.zero_point[i])
        quantized = replace(quantized, weight_scale=quantized.weight_scale[i], input=grid)
    return replace(layer, weight=layer.weight[i], bias=layer.bias[i], quantized=quantized)


def _check(policy: Policy) -> None:
    n, sizes = policy.agents, (len(policy.observation_sizes), len(policy.action_sizes))
    if n < 1 or sizes != (n, n) or not policy.layers:
        raise UserError(f"The policy has {n} agents, but sizes of {sizes[0]} observations and {sizes[1]} actions.")
    if not policy.linear_only and (n != 1 or policy.image is None):
        raise UserError("A policy with convolutions needs an image and exactly one agent.")
    outputs = policy.layers[-1].units
    needed = policy.action_size * (2 if policy.head.kind == "gaussian" else 1)
    if outputs != needed:
        raise UserError(f"The policy's last layer has {outputs} outputs, but its actions need {needed}.")
    width = policy.one_hot or policy.observation_size
    for k, layer in enumerate(policy.layers, 1):
        _check_layer(layer, f"Layer {k}", n)
        if isinstance(layer, Linear):
            before = policy.layers[k - 2] if k > 1 else None
            if not isinstance(before, Conv2d) and layer.weight.shape[1] != width:
                raise UserError(f"Layer {k} of the policy takes {layer.weight.shape[1]} numbers, but is given {width}.")
            width = layer.units
    low, high = policy.head.low, policy.head.high
    if not policy.head.discrete and policy.head.squash != "none":
        shape = (n, policy.action_size)
        if low is None or high is None or low.shape != shape or high.shape != shape:
            raise UserError(f"The policy's box needs lower and upper ends of shape {shape}.")
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise UserError("The policy's box has an end that is not finite.")
    if (norm := policy.normaliser) is not None and not (np.isfinite(norm.mean).all() and np.isfinite(norm.var).all()):
        raise UserError("The policy's normaliser holds NaN or infinity.")


def _check_layer(layer: Layer, name: str, agents: int) -> None:
    if isinstance(layer, Linear):
        n, inputs, units = layer.weight.shape
        if n != agents or layer.bias.shape != (n, units) or not inputs * units:
            raise UserError(
                f"{name} of the policy has weights {layer.weight.shape} and biases {layer.bias.shape}, "
                f"but there are {agents} agents."
            )
    elif layer.weight.ndim != 4 or layer.bias.shape != layer.weight.shape[:1]:
        raise UserError(f"{name} of the policy has weights {layer.weight.shape} and biases {layer.bias.shape}.")
    if layer.activation not in ACTIVATIONS:
        raise UserError(f"{name} of the policy has the activation '{layer.activation}', which is not known.")
    for what, numbers in (("weights", layer.weight), ("biases", layer.bias)):
        with np.errstate(over="ignore", invalid="ignore"):
            total = numbers.sum()  # quicker to have, and finite only if all are
        if not np.isfinite(total) and not np.isfinite(numbers).all():
            raise UserError(f"{name} of the policy has NaN or infinity among its {what}: it cannot be played.")
