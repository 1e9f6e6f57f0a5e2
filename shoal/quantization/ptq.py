"""Post-training quantization of any torch module: weights, activations or both, in a copy of it.

    ranges = calibrate(model, lambda model: model(states))
    small = quantized(model, Plan(weights=Scheme(4), activations=Scheme(8, symmetric=False)), ranges)

The numbers are simulated: every weight and every layer's input is what comes back from its code, the products are
float32. The original is not touched.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shoal.errors import UserError, check_range
from shoal.inference.grid import value_range
from shoal.networks import StackedMLP
from shoal.quantization.affine import Scheme, simulate, stored_bytes
from shoal.quantization.attach import attach, detach_all
from shoal.quantization.layers import Layer, check_weights, find_layers

Ranges = dict[str, tuple[Tensor, Tensor]]
"""min(x, 0) and max(x, 0) of each layer's input, by the layer's name."""
Edge = Scheme | Literal["full"] | None
"""The scheme of a layer at an edge; full: in full precision."""
See = Callable[[Layer, Tensor], Tensor]
"""Sees what a layer is given, and says what it is given instead."""


@dataclass(frozen=True)
class Plan:
    """What is quantized, and how."""

    weights: Scheme | None = None
    """None: full precision."""
    activations: Scheme | None = None
    """The layers' inputs; None: full precision."""
    first: Edge = None
    """Another scheme for whatever is quantized in the first layer; None: the same as everywhere."""
    last: Edge = None
    """The same of the last layer."""
    dynamic: bool = False
    """Take the range of activations from each row as it comes, instead of from calibration."""
    networks: tuple[int, ...] | None = None
    """Which networks of a stack, that is which agents, are quantized; None: all. Only for stacks of actors."""

    def weight_scheme(self, number: int, layers: int) -> Scheme | None:
        """How the weights of this layer are quantized."""
        edge = self._edge(number, layers)
        if self.weights is None or edge is None:
            return self.weights
        return None if edge == "full" else edge

    def input_scheme(self, number: int, layers: int) -> Scheme | None:
        """How the input of this layer is quantized: at an edge in another width, but otherwise as everywhere."""
        if self.activations is None or (edge := self._edge(number, layers)) is None:
            return self.activations
        if edge == "full":
            return None
        return replace(edge, symmetric=self.activations.symmetric, per_channel=self.activations.per_channel)

    def _edge(self, number: int, layers: int) -> Edge:
        if number == 0 and self.first is not None:
            return self.first
        return self.last if number == layers - 1 else None


def quantized(module: nn.Module, plan: Plan, ranges: Ranges | None = None) -> nn.Module:
    """A copy of the module that computes with quantized numbers; `ranges` are what `calibrate` gave."""
    check_weights(module)
    module = _plain_copy(module)
    layers = find_layers(module)
    if not layers:
        raise UserError(
            "The model has no layer that can be quantized: Linear, Conv1d, Conv2d or one of Shoal's stacks."
        )
    masks = _masks(layers, plan.networks)
    schemes: dict[int, Scheme] = {}  # of inputs, by the identity of the layer's weight
    for number, layer in enumerate(layers):
        if (scheme := plan.weight_scheme(number, len(layers))) is not None:
            with torch.no_grad():
                narrow = simulate(layer.weight, scheme, layer.kept(scheme))
                layer.weight.copy_(_chosen(masks, layer, narrow, layer.weight))
        if (scheme := plan.input_scheme(number, len(layers))) is not None:
            if not plan.dynamic and scheme.format is None and layer.name not in (ranges or {}):
                raise UserError(f"The range of layer '{layer.name}' is not known: calibrate the model first.")
            schemes[id(layer.weight)] = scheme

    def tap(layer: Layer, x: Tensor) -> Tensor:
        scheme = schemes.get(id(layer.weight))
        if scheme is None:
            return x
        if plan.dynamic or scheme.format is not None:
            return _chosen(masks, layer, simulate(x, scheme, layer.row_axes(x)), x)
        assert ranges is not None
        return _chosen(masks, layer, simulate(x, scheme, ranges=ranges[layer.name]), x)

    if schemes:
        _tap(layers, tap)
    return module


def calibrate(module: nn.Module, run: Callable[[Any], object]) -> Ranges:
    """The range of every layer's input while `run` runs a copy of the module, on states that are typical of its use."""
    module = _plain_copy(module)
    ranges: Ranges = {}

    def tap(layer: Layer, x: Tensor) -> Tensor:
        low, high = value_range(x.detach(), layer.input_axes)
        if layer.name in ranges:
            before = ranges[layer.name]
            low, high = torch.minimum(low, before[0]), torch.maximum(high, before[1])
        ranges[layer.name] = low, high
        return x

    _tap(find_layers(module), tap)
    with torch.no_grad():
        run(module)
    return ranges


def model_bytes(module: nn.Module, plan: Plan) -> int:
    """Bytes of all parameters as they would be stored: packed codes with their scales, everything else in float32."""
    layers = find_layers(module)
    schemes = [plan.weight_scheme(number, len(layers)) for number in range(len(layers))]
    numbers = sum(parameter.numel() for parameter in module.parameters())
    total = 4 * (numbers - sum(layer.weight.numel() for layer in layers))
    masks = _masks(layers, plan.networks)
    for layer, scheme in zip(layers, schemes, strict=True):
        mask, numbers, scales = masks.get(id(layer.weight)), layer.weight.numel(), layer.scales(scheme) if scheme else 0
        chosen, of = (1, 1) if mask is None else (int(mask.sum()), len(mask))
        total += stored_bytes(numbers * chosen // of, scales * chosen // of, scheme) + 4 * numbers * (of - chosen) // of
    return total


def _masks(layers: list[Layer], networks: tuple[int, ...] | None) -> dict[int, Tensor]:
    """(C, 1, 1) for each layer, by the identity of its weight: which networks are quantized; nothing where all are."""
    if networks is None:
        return {}
    masks = {}
    for layer in layers:
        if not isinstance(layer.module, StackedMLP):
            raise UserError(
                f"Layer '{layer.name}' belongs to no single agent: only stacks of actors can be chosen from."
            )
        count = layer.weight.shape[0]
        for network in networks:
            check_range("networks", network, 0, count - 1)
        masks[id(layer.weight)] = torch.isin(torch.arange(count), torch.tensor(networks, dtype=torch.long)).view(
            -1, 1, 1
        )
    return masks


def _chosen(masks: dict[int, Tensor], layer: Layer, narrow: Tensor, full: Tensor) -> Tensor:
    """The quantized numbers of the networks that are quantized, the full ones of the others; (C, …) both."""
    mask = masks.get(id(layer.weight))
    return narrow if mask is None else torch.where(mask.to(full.device), narrow, full)


class _InputTap:
    """Lets a function see, and replace, what a layer is given; weights are quantized already."""

    gradient = None

    def __init__(self, layer: Layer, tap: See) -> None:
        self.layer, self.tap = layer, tap

    def input(self, x: Tensor, frozen: bool) -> Tensor:
        """What the function makes of it."""
        return self.tap(self.layer, x)

    def weight(self, weight: Tensor) -> Tensor:
        """As it is."""
        return weight


def _plain_copy(module: nn.Module) -> nn.Module:
    """A copy without quantizers: what was trained with some is quantized anew from its own weights."""
    module = copy.deepcopy(module)
    detach_all(module)
    return module


def _tap(layers: list[Layer], tap: See) -> None:
    """Let the tap see, and replace, what each layer is given."""
    for layer in layers:
        attach(layer, _InputTap(layer, tap))
