"""How a policy is written down in a graph, and its weights in that form.

Shape letters: N agents, I inputs of a layer, U its units.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shoal.inference.codes import layer_codes, pack, safe_bits
from shoal.inference.layers import Conv2d, Layer, Linear
from shoal.inference.policy import Policy

Precision = Literal["float32", "float16", "int8", "static-int8", "packed"]
PRECISIONS: tuple[Precision, ...] = ("float32", "float16", "int8", "static-int8", "packed")
APART = 2**15  # weights of one agent's layer from which agents are worth a product each: only those are packed once

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Form:
    """How a policy is written down."""

    precision: Precision = "float32"
    bits: int = 8
    """Of the weights' codes, where the precision has some."""
    alone: bool = False
    """For one state at a time."""
    given: bool = False
    """Weights are inputs of the graph, not part of it (float32 only)."""


def apart(policy: Policy, form: Form) -> bool:
    """Whether every agent has products of its own rather than all one."""
    if policy.agents == 1 or form.precision == "static-int8":
        return True
    largest = max(layer.weight[0].size for layer in policy.layers)
    return form.precision == "int8" and largest >= APART


def weight_arrays(policy: Policy, form: Form) -> Arrays:
    """Every array of the graph that depends on the weights, by name: what a template's are replaced with."""
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
    """The name of an array of layer k; `agent`: whose it is, if it is not all agents'."""
    return f"layer{k}.{name}" if agent is None else f"layer{k}.{name}.{agent}"


def _of_agent(name: str, array: NDArray[Any], agent: int | None) -> NDArray[Any]:
    """An agent's part of (N, …), or all of it with an axis of rows where there is none."""
    if name.startswith("packed"):
        return array
    if agent is not None:
        return array[agent]
    return array if name == "weight" else array[:, None]


def layer_arrays(layer: Layer, form: Form, by_rows: bool) -> Arrays:
    """weight (N, I, U), bias, scale and, where int8 is by rows, sums (N, U); of a convolution without the agents."""
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
        if isinstance(layer, Conv2d):  # ONNX Runtime rounds its bias to multiples of both scales: make them finer
            finer, bits = 2 ** (8 - bits), 8
            codes, scale = codes * np.int8(finer), scale / np.float32(finer)
            arrays |= {"weight": codes, "scale": scale}
        unsigned = bits == 8 and safe_bits() < 8  # products of such codes are added in 32 bits
        if unsigned:
            arrays["weight"] = (codes.astype(np.int16) + 128).astype(np.uint8)
        arrays["zero"] = np.full(scale.shape, 128 if unsigned else 0, arrays["weight"].dtype)
    return arrays
