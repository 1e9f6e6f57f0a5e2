"""A complete description of a policy without torch: what engines run and exported files hold.

A policy maps raw observations (B, N, O) to what the environment takes: choices (B, N) as integers, or boxes
(B, N, A) in the environment's units. In between: observations scaled, normalised or made one-hot; layers; the head.
Agents are stacked and padded at the tail with zeros, as in `shoal.networks`; those that share a network have one place
in the stack of each layer, (C, …).
Shape letters: B batch rows, N agents, C networks (of images: channels), O observation, A action, I inputs of a layer,
U its outputs.
"""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shoal.envs.base import AgentSizes, members
from shoal.errors import UserError, check_range, counted
from shoal.inference.grid import Grid
from shoal.inference.layers import (
    Array,
    Conv2d,
    ImageShape,
    Layer,
    Linear,
    check_layer,
    first_outputs,
    layer_of_agents,
    run_layer,
)  # fmt: skip

Actions = NDArray[Any]  # choices (B, N) int64, or boxes (B, N, A) float32
FORMAT = 1  # version of the metadata in an exported file
LOG_STD_LOW, LOG_STD_HIGH = -5.0, 2.0  # bounds of the log standard deviations of Shoal's own Gaussian policies
MASKED = -1e9  # a logit of padded choices, which no softmax sees: exp underflows to exactly zero


@dataclass(frozen=True, eq=False)
class Normaliser:
    """(observation - mean) / sqrt(var + epsilon), within ±clip."""

    mean: Array  # (N, O)
    var: Array  # (N, O)
    epsilon: float = 1e-8
    clip: float = 10.0

    @property
    def nbytes(self) -> int:
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
    image: ImageShape = None
    """(C, height, width) if the observation is an image, flattened in this order."""
    scale_image: bool = False
    """Divide observations by 255 first."""
    one_hot: int = 0
    """The observation is one integer below this, which the network takes one-hot; 0: it is a vector."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    exploration: Exploration | None = None
    """How it explores in training; None: unknown."""
    network_of: tuple[int, ...] = ()
    """Index of each agent's network in the layers, where agents share networks; empty: each agent has its own."""
    choices: tuple[tuple[int, ...], ...] = ()
    """Sizes of each agent's choices, where an agent has several or only some agents have boxes: see `EnvSpec`."""
    masked: bool = False
    """Observations begin with action masks: see `EnvSpec`."""

    @property
    def discrete(self) -> bool:
        return self.head.discrete

    @property
    def parameters(self) -> int:
        return sum(layer.weight.size + layer.bias.size for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes of all layers in float32."""
        return 4 * self.parameters

    @cached_property
    def mask(self) -> Array:
        """(N, A): 0 where an agent has the choice, a large negative number where it is padding."""
        return np.where(self.action_mask, np.float32(0), np.float32(MASKED))

    @cached_property
    def members(self) -> list[list[int]]:
        """The agents of each network."""
        return members(self.network_of or range(self.agents))

    @property
    def linear_only(self) -> bool:
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
        return replace(self, layers=(*self.layers[:-1], means), head=replace(self.head, kind="box"), exploration=None)

    def network(self) -> "Policy":
        """The network alone: from the world's observations, integers one-hot, to all of its outputs (B, N, U)."""
        seen = (self.one_hot,) * self.agents if self.one_hot else self.observation_sizes
        outputs = (self.layers[-1].outputs,) * self.agents
        return replace(self, head=Head("box"), observation_sizes=seen, action_sizes=outputs, one_hot=0, masked=False,
                       choices=())  # fmt: skip

    def unshared(self) -> "Policy":
        """The same policy with a network of its own for every agent."""
        layers = tuple(layer_of_agents(layer, self.network_of) for layer in self.layers)
        return replace(self, layers=layers, network_of=())

    def of_agent(self, agent: int) -> "Policy":
        """One agent's policy alone, without padding."""
        i, seen, act = slice(agent, agent + 1), self.observation_sizes[agent], self.action_sizes[agent]
        played = self.played()
        network = self.network_of[agent] if self.network_of else agent
        layers = [layer_of_agents(layer, [network]) for layer in played.layers]
        if not self.one_hot and not self.image and isinstance(first := layers[0], Linear):
            layers[0] = replace(first, weight=np.ascontiguousarray(first.weight[:, :seen]))
        layers[-1] = first_outputs(layers[-1], act)
        head, norm = played.head, played.normaliser
        if head.low is not None and head.high is not None:
            head = replace(head, low=head.low[i, :act], high=head.high[i, :act])
        if norm is not None:
            norm = replace(norm, mean=norm.mean[i, :seen], var=norm.var[i, :seen])
        return replace(played, layers=tuple(layers), head=head, observation_sizes=(seen,), action_sizes=(act,),
                       agent_names=(self.agent_names[agent],), normaliser=norm, network_of=())  # fmt: skip

    def check(self) -> "Policy":
        """The policy itself after validation; a `UserError` for the first invalid shape or value."""
        _check(self)
        return self

    def to_bytes(self) -> bytes:
        """The policy as bytes, to be sent or stored: no pickle, no code."""
        from shoal.inference.policy_bytes import written

        return written(self)

    @staticmethod
    def from_bytes(data: bytes) -> "Policy":
        """The policy that `to_bytes` wrote, validated; a `UserError` for any other bytes."""
        from shoal.inference.policy_bytes import read

        return read(data)

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
        """(B, N, U): the last layer's outputs, in plain numpy; with `quantized`, frozen layers round to their grids.

        Masked choices get the value of padding.
        """
        x = self.network_input(observation, dtype)
        for layer in self.unshared().layers:
            x = run_layer(layer, x, dtype, quantized, self.image)
        return self.apply_masks(x.transpose(1, 0, 2), observation)

    def apply_masks(self, outputs: NDArray[Any], observation: NDArray[np.floating[Any]]) -> NDArray[Any]:
        """Outputs (B, N, U) in which masked choices have the value of padding."""
        if not self.masked:
            return outputs
        forbidden = self.chosen & ~self.legal(observation)
        return np.where(
            np.pad(forbidden, ((0, 0), (0, 0), (0, outputs.shape[-1] - self.action_size))),
            outputs.dtype.type(MASKED),
            outputs,
        )

    def inputs_of_layers(self, observation: NDArray[np.floating[Any]], dtype: Any = np.float32) -> list[NDArray[Any]]:
        """The input of each layer, (N, B, …), for calibration."""
        x, seen = self.network_input(observation, dtype), []
        for layer in self.unshared().layers:
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


class Draws:
    """Noise for policies that sample their actions, where the caller passes none."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Uniform numbers in the open interval (0, 1)."""
        return np.clip(self._rng.random(shape, np.float32), np.float32(1e-7), np.float32(1 - 1e-7))

    def gumbel(self, shape: tuple[int, ...]) -> Array:
        return -np.log(-np.log(self.uniform(shape)))

    def normal(self, shape: tuple[int, ...]) -> Array:
        return self._rng.standard_normal(shape, np.float32)


def _check(policy: Policy) -> None:
    n, sizes = policy.agents, (len(policy.observation_sizes), len(policy.action_sizes))
    if n < 1 or sizes != (n, n) or not policy.layers:
        seen, acted = counted(sizes[0], "observation"), counted(sizes[1], "action")
        raise UserError(f"The policy has {counted(n, 'agent')}, but sizes of {seen} and {acted}.")
    networks = len(policy.members)
    if (of := policy.network_of) and (len(of) != n or set(of) != set(range(networks)) or networks == n):
        raise UserError(f"The policy has {counted(n, 'agent')}, but the numbers of their networks are {of}.")
    if min(*policy.observation_sizes, *policy.action_sizes) < 1:
        raise UserError("The policy has an agent without observation or action.")
    if policy.masked and any(map(operator.le, policy.observation_sizes, policy.action_sizes)):
        raise UserError("The policy's observations have no room for their action masks.")
    if policy.choices:
        negative = any(size < 1 for own in policy.choices for size in own)
        if negative or len(policy.choices) != n or any(map(operator.gt, map(sum, policy.choices), policy.action_sizes)):
            raise UserError("The policy's choices do not fit its actions.")
    if not isinstance(policy.layers[-1], Linear):
        raise UserError("The policy's last layer is a convolution, but must be linear.")
    if not policy.linear_only and (n != 1 or policy.image is None):
        raise UserError("A policy with convolutions needs an image and exactly one agent.")
    if policy.image and (min(policy.image) < 1 or math.prod(policy.image) != policy.observation_size):
        raise UserError(f"The policy's image is {policy.image}, but its observation has another size.")
    if policy.one_hot and policy.observation_size != 1:
        raise UserError("The policy takes one integer, but its observation is a vector.")
    for k, layer in enumerate(policy.layers, 1):
        check_layer(layer, f"Layer {k}", networks)
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
