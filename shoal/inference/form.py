"""The form of a policy in a graph (precision, single states or batches), and its weights in that form.

Shape letters: N agents, I inputs of a layer, U its outputs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.inference.codes import layer_codes, pack, safe_bits
from shoal.inference.layers import Conv2d, Layer, Linear
from shoal.inference.policy import Policy
from shoal.inference.precision import ExportPrecision

APART = 2**15  # weights per agent and layer above which each agent gets its own product, as only those are prepacked

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Form:
    """How a policy is laid out in a graph."""

    precision: ExportPrecision = "float32"
    bits: int = 8
    """Bits of the weights' codes, where the precision is quantized."""
    alone: bool = False
    """The graph is for one state at a time."""
    given: bool = False
    """Weights are inputs of the graph, not part of it (float32 only)."""


def apart(policy: Policy, form: Form) -> bool:
    """Whether each agent has its own matrix products instead of one batched product for all."""
    if policy.agents == 1 or form.precision == "static-int8":
        return True
    largest = max(layer.weight[0].size for layer in policy.layers)
    return form.precision == "int8" and largest >= APART


def weight_arrays(policy: Policy, form: Form) -> Arrays:
    """All arrays of the graph that depend on the weights, by name; they fill a template."""
    policy = policy.played()
    by_rows = not (form.alone and apart(policy, form))
    return named_arrays(policy, form, [layer_arrays(layer, form, by_rows) for layer in policy.layers])


def named_arrays(policy: Policy, form: Form, layers: list[Arrays]) -> Arrays:
    """The arrays of all layers under the names that they have in the graph."""
    agents: list[int | None] = [*range(policy.agents)] if apart(policy, form) else [None]
    arrays: Arrays = {}
    for k, (layer, whole) in enumerate(zip(policy.layers, layers, strict=True)):
        for agent in agents:
            for name, array in whole.items():
                arrays[key(k, name, agent)] = _of_agent(name, array, agent) if isinstance(layer, Linear) else array
    return arrays


def key(k: int, name: str, agent: int | None) -> str:
    """The name of an array of layer k, of one `agent` or of all."""
    return f"layer{k}.{name}" if agent is None else f"layer{k}.{name}.{agent}"


def _of_agent(name: str, array: NDArray[Any], agent: int | None) -> NDArray[Any]:
    """One agent's part of (N, …), or all of it with an axis for rows inserted."""
    if name.startswith("packed"):
        return array
    if agent is not None:
        return array[agent]
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
