"""The form of a policy in an ONNX graph: its precision and bits, its inputs and output, and its weights in that form.

Callers use observations (B, N, O), noise (B, N, A), choices (B, N) and boxes (B, N, A). The graph of a single agent has
no agent axis, and a graph for images takes (B, C, height, width).
Shape letters: B batch rows, N agents, O observation, A action, I inputs of a layer, U its outputs.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UserError, check_range
from shoal.inference.grid import pack, safe_bits
from shoal.inference.layers import Array, Conv2d, Layer, Linear, layer_codes
from shoal.inference.options import ExportPrecision, check_bits
from shoal.inference.policy import Actions, Policy

OBSERVATION, NOISE, ACTION = "observation", "noise", "action"
APART = 2**15  # weights per agent and layer above which each agent gets its own product, as only those are prepacked

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Form:
    """How a policy is laid out in a graph."""

    precision: ExportPrecision = "float32"
    bits: int = 8  # bits of the weights' codes, where the precision is quantized
    alone: bool = False  # the graph is for one state at a time
    given: bool = False  # weights are inputs of the graph, not part of it (float32 only)

    @property
    def stored_bits(self) -> int:
        return {"float32": 32, "float16": 16}.get(self.precision, self.bits)


def apart(policy: Policy, form: Form) -> bool:
    """Whether each network has its own matrix products instead of one batched product for all."""
    if policy.agents == 1 or policy.network_of or form.precision == "static-int8":
        return True
    return form.precision == "int8" and max(layer.weight[0].size for layer in policy.layers) >= APART


def single_rows(policy: Policy, form: Form) -> bool:
    """Whether every matrix product has one row."""
    return form.alone and apart(policy, form) and not policy.network_of


def weight_arrays(policy: Policy, form: Form) -> Arrays:
    """All arrays of the graph that depend on the weights, by name; they fill a template."""
    policy = policy.played()
    by_rows = not single_rows(policy, form)
    return named_arrays(policy, form, [layer_arrays(layer, form, by_rows) for layer in policy.layers])


def named_arrays(policy: Policy, form: Form, layers: list[Arrays]) -> Arrays:
    """The arrays of all layers under the names that they have in the graph."""
    networks: list[int | None] = [*range(len(policy.members))] if apart(policy, form) else [None]
    arrays: Arrays = {}
    for k, (layer, whole) in enumerate(zip(policy.layers, layers, strict=True)):
        for network, name in product(networks, whole):
            number = None if name.startswith("packed") and together(layer) else network
            part = _of_network(name, whole[name], network) if isinstance(layer, Linear) else whole[name]
            arrays[key(k, name, number)] = part
    return arrays


def together(layer: Layer) -> bool:
    """Whether the codes of several networks are packed into one array."""
    return isinstance(layer, Linear) and len(layer.weight) > 1


def key(k: int, name: str, network: int | None) -> str:
    """The name of an array of layer k, of one `network` or of all."""
    return f"layer{k}.{name}" if network is None else f"layer{k}.{name}.{network}"


def _of_network(name: str, array: NDArray[Any], network: int | None) -> NDArray[Any]:
    """One network's part of (N, …), or all of it with an axis for rows inserted."""
    if name.startswith("packed"):
        return array
    if network is not None:
        return array[network]
    return array if name == "weight" else array[:, None]


def weight_bytes(policy: Policy, form: Form) -> int:
    """Bytes of weights, scales, biases and normaliser in this form; a file also has its graph, sums and metadata."""
    named = [(name, array) for layer in policy.layers for name, array in layer_arrays(layer, form, False).items()]
    normaliser = 0 if policy.normaliser is None else policy.normaliser.nbytes
    return normaliser + sum(array.nbytes for name, array in named if name not in ("sums", "zero"))


def layer_arrays(layer: Layer, form: Form, by_rows: bool) -> Arrays:
    """weight (N, I, U), bias, scale and, where int8 is per row, sums (N, U); without N for a convolution."""
    if form.precision == "float32":
        return {"weight": layer.played_weight, "bias": layer.bias}
    if form.precision == "float16":
        with np.errstate(over="ignore"):
            return {"weight": layer.played_weight.astype(np.float16), "bias": layer.bias}
    bits = form.bits
    codes, grid = layer_codes(layer, bits)
    scale = grid.scale.ravel() if isinstance(layer, Conv2d) else grid.scale[:, 0]
    arrays: Arrays = {"weight": codes, "bias": layer.bias, "scale": scale}
    if form.precision == "packed":
        del arrays["weight"]
        arrays |= {f"packed{i}": part for i, part in enumerate(pack(codes, bits))}
    if form.precision == "int8" and isinstance(layer, Conv2d):
        arrays["sums"] = codes.sum((1, 2, 3), dtype=np.int32)  # (U,)
    elif form.precision == "int8" and by_rows:
        arrays["sums"] = codes.sum(1, dtype=np.int32)  # (N, U)
    if form.precision == "static-int8":
        if isinstance(layer, Conv2d):  # ONNX Runtime rounds the bias to multiples of both scales: make them finer
            finer, bits = 2 ** (8 - bits), 8
            codes, scale = codes * np.int8(finer), scale / np.float32(finer)
            arrays |= {"weight": codes, "scale": scale}
        unsigned = bits == 8 and safe_bits() < 8  # products of such codes are accumulated in 32 bits
        if unsigned:
            arrays["weight"] = (codes.astype(np.int16) + 128).astype(np.uint8)
        arrays["zero"] = np.full(scale.shape, 128 if unsigned else 0, arrays["weight"].dtype)
    return arrays


@dataclass(frozen=True)
class Ports:
    """The inputs and the output of a policy's graph, for any batch."""

    agents: int
    observation_size: int
    action_size: int
    discrete: bool
    draws: bool  # whether it takes noise to sample its choices
    image: tuple[int, ...] = ()

    @classmethod
    def of(cls, policy: Policy) -> "Ports":
        head = policy.head
        sizes = policy.agents, policy.observation_size, policy.action_size
        return cls(*sizes, head.discrete, head.kind == "categorical", tuple(policy.image or ()))

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every input, without the batch."""
        seen = {OBSERVATION: (*self._team, *(self.image or (self.observation_size,)))}
        return seen | ({NOISE: (*self._team, self.action_size)} if self.draws else {})

    @property
    def output(self) -> tuple[int, ...]:
        """The shape of the action, without the batch."""
        return self._team if self.discrete else (*self._team, self.action_size)

    @property
    def _team(self) -> tuple[int, ...]:
        return () if self.agents == 1 else (self.agents,)

    def feed(self, observation: Array, noise: Array | None = None) -> dict[str, NDArray[Any]]:
        """The inputs of a session: observations (B, N, O) and, for a sampling policy, noise (B, N, A)."""
        given = {OBSERVATION: observation} | ({NOISE: noise} if noise is not None else {})
        return {
            name: np.ascontiguousarray(given[name], np.float32).reshape(len(observation), *shape)
            for name, shape in self.inputs.items()
        }

    def actions(self, output: NDArray[Any]) -> Actions:
        """Choices (B, N), or boxes (B, N, A), of a session's output."""
        return output.reshape(len(output), *self.action_shape)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """(N,) of choices, (N, A) of boxes."""
        return (self.agents,) if self.discrete else (self.agents, self.action_size)


def make_form(policy: Policy, precision: ExportPrecision, bits: int | None, single: bool = False) -> Form:
    """The form of a file; checks that the precision allows these bits."""
    check_bits(precision, bits)
    trained = max((layer.quantized.bits for layer in policy.layers if layer.quantized), default=0)
    if precision in ("float32", "float16"):
        return Form(precision, alone=single)
    if precision == "packed":
        if bits is None:
            bits = trained if 2 <= trained <= 7 else 4
        return Form(precision, bits, alone=single)
    if precision == "static-int8" and trained:
        if bits not in (None, trained):
            raise UserError(f"`bits` is {bits}, but the policy was trained for {trained}; leave it out.")
        bits = trained
        check_range("The policy's bits", bits, 2, 8)
    return Form(precision, bits or safe_bits(), alone=single)
