"""A complete description of a policy without torch: what engines run and exported files hold.

A policy maps raw observations (B, N, O) to what the environment takes: choices (B, N) as integers, or boxes
(B, N, A) in the environment's units. In between: observations scaled, normalised or made one-hot; layers; the head.
Agents are stacked and padded at the tail with zeros, as in `shoal.networks`.
Shape letters: B batch rows, N agents, O observation, A action, I inputs of a layer, U its outputs, C channels.
"""

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from shoal.envs.base import AgentSizes
from shoal.errors import UserError, check_range, counted
from shoal.inference.grid import Grid
from shoal.inference.layers import Array, Conv2d, Layer, Linear, check_layer, first_outputs, layer_of_agent, run_layer

Actions = NDArray[Any]
"""Choices (B, N) int64, or boxes (B, N, A) float32."""
FORMAT = 1
"""Version of the metadata in an exported file."""
LOG_STD_LOW, LOG_STD_HIGH = -5.0, 2.0
"""Bounds of the log standard deviations of Shoal's own Gaussian policies."""
MASKED = -1e9
"""A logit of padded choices, which no softmax sees: exp underflows to exactly zero."""
MAGIC, BYTES_FORMAT = b"shoal policy", 1
HEADER = struct.Struct(f"<{len(MAGIC)}sI32s")
TYPES = {"F32": np.float32, "I32": np.int32}
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Normaliser:
    """(observation - mean) / sqrt(var + epsilon), within ±clip."""

    mean: Array  # (N, O)
    var: Array  # (N, O)
    epsilon: float = 1e-8
    clip: float = 10.0

    @property
    def nbytes(self) -> int:
        """Bytes of mean and variance."""
        return self.mean.nbytes + self.var.nbytes

    @property
    def deviation(self) -> NDArray[np.float64]:
        """(N, O): sqrt(var + epsilon)."""
        return np.asarray(np.sqrt(self.var.astype(np.float64) + self.epsilon))

    def apply(self, x: NDArray[Any], dtype: Any) -> NDArray[Any]:
        """Observations (N, B, O), or (B, O) of one agent, as the network sees them."""
        mean, var = self.mean.astype(dtype)[:, None], self.var.astype(dtype)[:, None]
        if x.ndim == 2:
            mean, var = mean[0], var[0]
        return np.clip((x - mean) / np.sqrt(var + dtype(self.epsilon)), -self.clip, self.clip)


@dataclass(frozen=True, eq=False)
class Head:
    """What the last layer's outputs mean.

    argmax: the choice with the largest output. categorical: a choice sampled by adding Gumbel noise -log(-log(u)) to
    the outputs, where the noise u (B, N, A) in (0, 1) is given. box: the squashed outputs; with squash tanh they span
    the box. gaussian: means, then log standard deviations, A each; the means are played like a box.
    """

    kind: Literal["argmax", "categorical", "box", "gaussian"]
    squash: Literal["tanh", "clip", "none"] = "none"
    low: Array | None = None  # (N, A), 0 in the padding
    high: Array | None = None

    @property
    def discrete(self) -> bool:
        """Whether actions are choices."""
        return self.kind in ("argmax", "categorical")


@dataclass(frozen=True)
class Exploration:
    """How one of Shoal's own policies explores in training, beyond what its head determines: see `explore`."""

    deviation: float = 0.0
    """Deterministic boxes: standard deviation of the noise, in half-widths of the box."""
    one_hot: bool = False
    """Choices are one-hot vectors; False: soft Gumbel vectors."""
    values: bool = False
    """Outputs are Q values: the choice of the largest one, or with probability `deviation` any choice."""


@dataclass(frozen=True, eq=False)
class Policy(AgentSizes):
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
    """Divide observations by 255 first."""
    one_hot: int = 0
    """The observation is one integer below this, which the network takes one-hot; 0: it is a vector."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    exploration: Exploration | None = None
    """How it explores in training; None: unknown."""

    @property
    def parameters(self) -> int:
        """Number of parameters of all layers."""
        return sum(layer.weight.size + layer.bias.size for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes of all layers in float32."""
        return 4 * self.parameters

    @cached_property
    def mask(self) -> Array:
        """(N, A): 0 where an agent has the choice, a large negative number where it is padding."""
        real = np.arange(self.action_size)[None, :] < np.array(self.action_sizes)[:, None]
        return np.where(real, np.float32(0), np.float32(MASKED))

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
        """The frozen grids of the layers' inputs."""
        return [layer.quantized.input for layer in self.layers if layer.quantized and layer.quantized.input]

    def played(self) -> "Policy":
        """The policy without outputs that acting does not need: a Gaussian's deviations."""
        if self.head.kind != "gaussian":
            return self
        means = first_outputs(self.layers[-1], self.action_size)
        head = replace(self.head, kind="box")
        return replace(self, layers=(*self.layers[:-1], means), head=head, exploration=None)

    def network(self) -> "Policy":
        """The network alone: from the world's observations, integers one-hot, to all of its outputs (B, N, U)."""
        seen = (self.one_hot,) * self.agents if self.one_hot else self.observation_sizes
        outputs = (self.layers[-1].outputs,) * self.agents
        return replace(self, head=Head("box"), observation_sizes=seen, action_sizes=outputs, one_hot=0)

    def of_agent(self, agent: int) -> "Policy":
        """One agent's policy alone, without padding."""
        i, seen, act = slice(agent, agent + 1), self.observation_sizes[agent], self.action_sizes[agent]
        played = self.played()
        layers = [layer_of_agent(layer, agent) for layer in played.layers]
        if not self.one_hot and not self.image and isinstance(first := layers[0], Linear):
            layers[0] = replace(first, weight=np.ascontiguousarray(first.weight[:, :seen]))
        layers[-1] = first_outputs(layers[-1], act)
        head, norm = played.head, played.normaliser
        if head.low is not None and head.high is not None:
            head = replace(head, low=head.low[i, :act], high=head.high[i, :act])
        if norm is not None:
            norm = replace(norm, mean=norm.mean[i, :seen], var=norm.var[i, :seen])
        names = (self.agent_names[agent],)
        return replace(played, layers=tuple(layers), head=head, observation_sizes=(seen,), action_sizes=(act,),
                       agent_names=names, normaliser=norm)  # fmt: skip

    def check(self) -> "Policy":
        """The policy itself after validation; a `UserError` for the first invalid shape or value."""
        _check(self)
        return self

    def to_bytes(self) -> bytes:
        """The policy as bytes, to be sent or stored: no pickle, no code.

        "shoal policy"   12 bytes
        format           4 bytes, little-endian
        SHA-256          32 bytes, of what follows; detects damage, not tampering
        safetensors      the arrays; the text "policy" in its metadata is the rest as JSON, with the arrays' names
        """
        arrays: Arrays = {}
        description = _taken_apart(self, "policy", arrays)
        try:
            text = json.dumps(description, default=_plain)
        except (TypeError, ValueError) as error:
            raise UserError(f"The policy's metadata cannot be written as JSON: {error}.") from None
        return sealed(safetensors.numpy.save(arrays, {"policy": text}))

    @staticmethod
    def from_bytes(data: bytes) -> "Policy":
        """The policy that `to_bytes` wrote, validated; a `UserError` for any other bytes.

        Reading never allocates more than these bytes justify: every size in the JSON is compared with the arrays.
        """
        content = _opened(bytes(data))
        try:
            description, arrays = _parsed(content)
            policy: Policy = _put_together(Policy, description, arrays)
            whole = not arrays
        except (safetensors.SafetensorError, ValueError, TypeError, KeyError, IndexError, RecursionError):
            whole = False
        if not whole:
            raise UserError("The policy's bytes are damaged: their header cannot be read.")
        return policy.check()

    def network_input(self, observation: NDArray[np.floating[Any]], dtype: Any = np.float64) -> NDArray[Any]:
        """(N, B, I): the input of the first layer."""
        x = np.asarray(observation, dtype).transpose(1, 0, 2)
        if self.one_hot:
            return (np.arange(self.one_hot) == np.rint(x)).astype(dtype)
        if self.scale_image:
            x = x / dtype(255)
        if (norm := self.normaliser) is not None:
            x = norm.apply(x, dtype)
        return x

    def outputs(
        self, observation: NDArray[np.floating[Any]], dtype: Any = np.float64, quantized: bool = True
    ) -> NDArray[Any]:
        """(B, N, U): the last layer's outputs, in plain numpy; with `quantized`, frozen layers round to their grids."""
        x = self.network_input(observation, dtype)
        for layer in self.layers:
            x = run_layer(layer, x, dtype, quantized, self.image)
        return x.transpose(1, 0, 2)

    def inputs_of_layers(self, observation: NDArray[np.floating[Any]], dtype: Any = np.float32) -> list[NDArray[Any]]:
        """The input of each layer, (N, B, …), for calibration."""
        x, seen = self.network_input(observation, dtype), []
        for layer in self.layers:
            seen.append(x)
            x = run_layer(layer, x, dtype, False, self.image)
        return seen

    def act_on(self, outputs: NDArray[Any], noise: NDArray[Any] | None = None) -> Actions:
        """The actions for the last layer's outputs (B, N, U)."""
        head, size = self.head, self.action_size
        outputs = outputs[..., :size]
        if head.discrete:
            logits = outputs + self.mask.astype(outputs.dtype)
            if head.kind == "categorical":
                if noise is None:
                    raise ValueError("a policy that samples its choices needs noise (B, N, A) in (0, 1)")
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
        """Actions for raw observations (B, N, O) in plain numpy: the reference for testing engines."""
        return self.act_on(self.outputs(observation, dtype, quantized), noise)

    def to_world(self, actions: Actions) -> Array:
        """Actions (B, N, A) as `env.step` takes them: choices one-hot, boxes unchanged."""
        if not self.head.discrete:
            return np.asarray(actions, np.float32)
        return (np.arange(self.action_size) == np.asarray(actions)[..., None]).astype(np.float32)


def _check(policy: Policy) -> None:
    n, sizes = policy.agents, (len(policy.observation_sizes), len(policy.action_sizes))
    if n < 1 or sizes != (n, n) or not policy.layers:
        seen, acted = counted(sizes[0], "observation"), counted(sizes[1], "action")
        raise UserError(f"The policy has {counted(n, 'agent')}, but sizes of {seen} and {acted}.")
    if min(*policy.observation_sizes, *policy.action_sizes) < 1:
        raise UserError("The policy has an agent without observation or action.")
    if not isinstance(policy.layers[-1], Linear):
        raise UserError("The policy's last layer is a convolution, but must be linear.")
    if not policy.linear_only and (n != 1 or policy.image is None):
        raise UserError("A policy with convolutions needs an image and exactly one agent.")
    if policy.image and (min(policy.image) < 1 or math.prod(policy.image) != policy.observation_size):
        raise UserError(f"The policy's image is {policy.image}, but its observation has another size.")
    if policy.one_hot and policy.observation_size != 1:
        raise UserError("The policy takes one integer, but its observation is a vector.")
    for k, layer in enumerate(policy.layers, 1):
        check_layer(layer, f"Layer {k}", n)
    outputs = policy.layers[-1].outputs
    needed = policy.action_size * (2 if policy.head.kind == "gaussian" else 1)
    if outputs != needed:
        raise UserError(f"The policy's last layer has {outputs} outputs, but its actions need {needed}.")
    _check_widths(policy)
    _check_box(policy)
    if policy.normaliser is not None:
        _check_normaliser(policy.normaliser, (n, policy.observation_size))
    if policy.exploration is not None:
        check_range("The deviation of the policy's exploration", policy.exploration.deviation, 0, 1e6)


def _check_box(policy: Policy) -> None:
    low, high, shape = policy.head.low, policy.head.high, (policy.agents, policy.action_size)
    bounded = not policy.head.discrete and policy.head.squash != "none"
    ends = [end for end in (low, high) if end is not None]
    if any(end.shape != shape for end in ends) or len(ends) < 2 * bounded:
        raise UserError(f"The policy's box needs lower and upper bounds of shape {shape}.")
    if bounded and not all(np.isfinite(end).all() for end in ends):
        raise UserError("The policy's box has a bound that is not finite.")


def _check_normaliser(norm: Normaliser, shape: tuple[int, int]) -> None:
    if norm.mean.shape != shape or norm.var.shape != shape:
        raise UserError(f"The policy's normaliser needs means and variances of shape {shape}.")
    if not (np.isfinite(norm.mean).all() and np.isfinite(norm.var).all()):
        raise UserError("The policy's normaliser holds NaN or infinity.")
    if not (norm.var.min() + norm.epsilon > 0 and norm.clip > 0):
        raise UserError("The policy's normaliser needs var + epsilon and clip above 0.")


def _check_widths(policy: Policy) -> None:
    """Check that each layer fits the output of the one before."""
    seen: tuple[int, ...] = (policy.one_hot or policy.observation_size,)
    for k, layer in enumerate(policy.layers, 1):
        if isinstance(layer, Conv2d):
            if k == 1 and policy.image is not None:
                seen = policy.image
            if len(seen) != 3 or layer.weight.shape[1] != seen[0]:
                raise UserError(
                    f"Layer {k} of the policy is a convolution of {layer.weight.shape}, but is given {seen}."
                )
            seen = (layer.outputs, *layer.places(seen[1:]))
            if min(seen) < 1:
                raise UserError(f"Layer {k} of the policy is a convolution that is larger than its image.")
        else:
            if layer.weight.shape[1] != math.prod(seen):
                taken = counted(layer.weight.shape[1], "number")
                raise UserError(f"Layer {k} of the policy takes {taken}, but is given {math.prod(seen)}.")
            seen = (layer.outputs,)


def sealed(content: bytes) -> bytes:
    """The content with magic number, format and checksum."""
    return HEADER.pack(MAGIC, BYTES_FORMAT, hashlib.sha256(content).digest()) + content


def _opened(data: bytes) -> bytes:
    """The content, if its checksum matches."""
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise UserError("The bytes are not a policy that Policy.to_bytes wrote.")
    _, number, digest = HEADER.unpack_from(data)
    if number != BYTES_FORMAT:
        raise UserError(
            f"The policy's bytes have format {number}, but this version of Shoal reads format {BYTES_FORMAT}."
        )
    content = data[HEADER.size :]
    if hashlib.sha256(content).digest() != digest:
        raise UserError("The policy's bytes are damaged (wrong checksum); fetch them again from their source.")
    return content


def _parsed(content: bytes) -> tuple[Any, Arrays]:
    """The policy's description, and its arrays."""
    size = int.from_bytes(content[:8], "little")
    description = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["policy"])
    arrays: Arrays = {}
    for name, view in safetensors.deserialize(content):  # safetensors checks every size against the bytes
        arrays[name] = np.frombuffer(view["data"], TYPES[view["dtype"]]).reshape(view["shape"]).copy()
    return description, arrays


def _taken_apart(value: Any, name: str, arrays: Arrays) -> Any:
    """A value as JSON; arrays are collected separately, named by their position."""
    if isinstance(value, np.ndarray):
        arrays[name] = np.ascontiguousarray(value, np.float32 if value.dtype.kind == "f" else np.int32)
        return name
    if is_dataclass(value):
        parts = [part.name for part in fields(value)]
        described = {part: _taken_apart(getattr(value, part), f"{name}.{part}", arrays) for part in parts}
        return {"type": type(value).__name__, **described}
    if isinstance(value, tuple):
        return [_taken_apart(element, f"{name}.{k}", arrays) for k, element in enumerate(value)]
    return dict(value) if isinstance(value, Mapping) else value


def _put_together(hint: Any, value: Any, arrays: Arrays) -> Any:
    """A value of the declared type; a ValueError, TypeError or KeyError if it is not one."""
    choices = [choice for choice in _choices(hint) if choice is not NoneType]
    if value is None and NoneType in _choices(hint):
        return None
    if is_dataclass(choices[0]):
        kind = {choice.__name__: choice for choice in choices}[value["type"]]
        hints = get_type_hints(kind)
        if value.keys() != {"type", *hints}:
            raise KeyError(kind.__name__)
        return kind(**{name: _put_together(hints[name], value[name], arrays) for name in hints})
    (hint,) = choices
    origin, inside = get_origin(hint), get_args(hint)
    if origin is np.ndarray and arrays[value].dtype != np.float32:
        raise TypeError(value)
    if hint is Any or origin is np.ndarray:  # a grid's arrays may have either dtype
        return arrays.pop(value)
    if origin is tuple and isinstance(value, list):
        each = inside[:1] * len(value) if inside[-1] is Ellipsis else inside
        return tuple(_put_together(kind, element, arrays) for kind, element in zip(each, value, strict=True))
    if origin is Literal and value in inside:
        return value
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is (dict if origin is Mapping else hint):
        return value
    raise TypeError(value)


def _choices(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _plain(value: Any) -> Any:
    """numpy scalars as JSON numbers."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"it holds a value of type '{type(value).__name__}'")
