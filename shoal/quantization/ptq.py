"""Post-training quantization of a copy of any torch module: weights, activations or both.

    ranges = calibrate(model, lambda model: model(states))
    small = quantized(model, Plan(weights=Scheme(4), activations=Scheme(8, symmetric=False)), ranges)
    small = quantized(model, plan, ranges, Correction(), lambda model: model(states))       # with its biases corrected

Quantization is simulated: every weight and every layer's input is quantized and dequantized, the products are float32.
The original is not modified.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shoal.errors import UserError, check_range
from shoal.inference.correction import NOTHING, Correction, moved_bias, output_rounded
from shoal.inference.grid import Grid, value_range
from shoal.inference.layers import as_matrix
from shoal.networks import StackedMLP
from shoal.quantization.affine import Scheme, simulate, stored_bytes
from shoal.quantization.attach import attach, detach_all
from shoal.quantization.layers import LayerSite, check_weights, find_layers

Ranges = dict[str, tuple[Tensor, Tensor]]
"""min(x, 0) and max(x, 0) of each layer's input, by the layer's name."""
Edge = Scheme | Literal["full"] | None
"""The scheme of the first or last layer; full: full precision."""
Run = Callable[[Any], object]
"""Runs a module on representative states."""
See = Callable[[LayerSite, Tensor], Tensor]
"""Sees a layer's input, and returns what to use instead."""


@dataclass(frozen=True)
class Plan:
    """What is quantized, and how."""

    weights: Scheme | None = None
    """None: full precision."""
    activations: Scheme | None = None
    """The layers' inputs; None: full precision."""
    first: Edge = None
    """Another scheme for the first layer; None: the same as everywhere."""
    last: Edge = None
    """The same for the last layer."""
    dynamic: bool = False
    """Dynamic quantization: take the range of activations from each row instead of from calibration."""
    networks: tuple[int, ...] | None = None
    """Networks of a stack (agents) that are quantized; None: all. Only for stacks of actors."""

    def weight_scheme(self, number: int, layers: int) -> Scheme | None:
        """How the weights of this layer are quantized."""
        edge = self._edge(number, layers)
        if self.weights is None or edge is None:
            return self.weights
        return None if edge == "full" else edge

    def input_scheme(self, number: int, layers: int) -> Scheme | None:
        """How the input of this layer is quantized; the first and last layers may have another width."""
        if self.activations is None or (edge := self._edge(number, layers)) is None:
            return self.activations
        if edge == "full":
            return None
        return replace(edge, symmetric=self.activations.symmetric, per_channel=self.activations.per_channel)

    def _edge(self, number: int, layers: int) -> Edge:
        if number == 0 and self.first is not None:
            return self.first
        return self.last if number == layers - 1 else None


def quantized(
    module: nn.Module,
    plan: Plan,
    ranges: Ranges | None = None,
    correction: Correction = NOTHING,
    run: Run | None = None,
) -> nn.Module:
    """A copy of the module that computes with quantized values.

    Args:
        module: In full precision; it is not modified.
        plan: What is quantized, and how.
        ranges: Those from `calibrate`.
        correction: What is corrected on the states that `run` runs a module on, all of them in one batch.
        run: Only for a correction.

    """
    check_weights(module)
    original, module = module, _plain_copy(module)
    layers = find_layers(module)
    if not layers:
        raise UserError(
            "The model has no layer that can be quantized: Linear, Conv1d, Conv2d or one of Shoal's stacks."
        )
    masks = _masks(layers, plan.networks)
    schemes: dict[int, Scheme] = {}  # of inputs, keyed by the identity of the layer's weight
    for number, layer in enumerate(layers):
        if (scheme := plan.weight_scheme(number, len(layers))) is not None:
            with torch.no_grad():
                narrow = simulate(layer.weight, scheme, layer.kept(scheme))
                layer.weight.copy_(_chosen(masks, layer, narrow, layer.weight))
        if (scheme := plan.input_scheme(number, len(layers))) is not None:
            if not plan.dynamic and scheme.format is None and layer.name not in (ranges or {}):
                raise UserError(f"The range of layer '{layer.name}' is not known: calibrate the model first.")
            schemes[id(layer.weight)] = scheme

    def tap(layer: LayerSite, x: Tensor) -> Tensor:
        scheme = schemes.get(id(layer.weight))
        if scheme is None:
            return x
        if plan.dynamic or scheme.format is not None:
            return _chosen(masks, layer, simulate(x, scheme, layer.row_axes(x)), x)
        assert ranges is not None
        return _chosen(masks, layer, simulate(x, scheme, ranges=ranges[layer.name]), x)

    if correction:
        if run is None:
            raise ValueError("a correction needs states")
        _correct(original, module, plan, correction, masks, tap, run)
    if schemes:
        _tap(layers, tap)
    return module


def _correct(
    original: nn.Module,
    module: nn.Module,
    plan: Plan,
    correction: Correction,
    masks: dict[int, Tensor],
    rounded: See,
    run: Run,
) -> None:
    """Correct every layer of the quantized module when its input arrives, in one pass: those before it are done."""
    seen: dict[str, Tensor] = {}
    full = _plain_copy(original)
    layers = find_layers(module)
    originals = {layer.name: layer for layer in find_layers(full)}
    numbers = {layer.name: number for number, layer in enumerate(layers)}

    def record(layer: LayerSite, x: Tensor) -> Tensor:
        seen.setdefault(layer.name, x.detach().clone())
        return x

    def correct(layer: LayerSite, x: Tensor) -> Tensor:
        x = rounded(layer, x)
        before = seen.pop(layer.name, None)
        if before is None or layer.bias is None:  # used a second time, or nothing to move
            return x
        own, inputs = originals[layer.name].portable(), (layer.portable_input(before), layer.portable_input(x))
        scheme = plan.weight_scheme(numbers[layer.name], len(layers))
        if correction.rounding == "output-error" and scheme is not None and scheme.format is None:
            keep = (0, 2) if set(layer.kept(scheme)) == set(layer.channels) else (0,)
            grid = Grid.of_numbers(as_matrix(own.weight), scheme.bits, scheme.kind, keep)
            narrow = layer.from_portable(output_rounded(own, grid, *inputs, correction.bias))
            layer.weight.copy_(_chosen(masks, layer, narrow, layer.weight))
        if correction.bias:
            moved = moved_bias(own, layer.portable().weight, *inputs)
            layer.bias.copy_(torch.from_numpy(moved).view_as(layer.bias))
        return x

    with torch.no_grad():
        for part, tap in ((full, record), (module, correct)):
            _tap(find_layers(part), tap)
            run(part)
    detach_all(module)


def calibrate(module: nn.Module, run: Run) -> Ranges:
    """The range of every layer's input while `run` runs a copy of the module on representative states."""
    module = _plain_copy(module)
    ranges: Ranges = {}

    def tap(layer: LayerSite, x: Tensor) -> Tensor:
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
    """Bytes of all parameters when stored: packed codes with their scales, everything else in float32."""
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


def _masks(layers: list[LayerSite], networks: tuple[int, ...] | None) -> dict[int, Tensor]:
    """(C, 1, 1) per layer, keyed by the identity of its weight: which networks are quantized; empty if all are."""
    if networks is None:
        return {}
    masks = {}
    for layer in layers:
        if not isinstance(layer.module, StackedMLP):
            raise UserError(
                f"Layer '{layer.name}' is not that of a single agent: only stacks of actors can be quantized per agent."
            )
        count = layer.weight.shape[0]
        for network in networks:
            check_range("networks", network, 0, count - 1)
        masks[id(layer.weight)] = torch.isin(torch.arange(count), torch.tensor(networks, dtype=torch.long)).view(
            -1, 1, 1
        )
    return masks


def _chosen(masks: dict[int, Tensor], layer: LayerSite, narrow: Tensor, full: Tensor) -> Tensor:
    """The quantized values of selected networks, the full-precision ones of the others; both (C, …)."""
    mask = masks.get(id(layer.weight))
    return narrow if mask is None else torch.where(mask.to(full.device), narrow, full)


class _InputTap:
    """Lets a function see and replace a layer's input; the weights are already quantized."""

    def __init__(self, layer: LayerSite, tap: See) -> None:
        self.layer, self.tap = layer, tap

    def input(self, x: Tensor, frozen: bool) -> Tensor:
        """The function's result."""
        return self.tap(self.layer, x)

    def weight(self, weight: Tensor) -> Tensor:
        """Unchanged."""
        return weight


def _plain_copy(module: nn.Module) -> nn.Module:
    """A copy without quantizers: a model trained with quantization is quantized again from its own weights."""
    module = copy.deepcopy(module)
    detach_all(module)
    return module


def _tap(layers: list[LayerSite], tap: See) -> None:
    """Let the tap see and replace each layer's input."""
    for layer in layers:
        attach(layer, _InputTap(layer, tap))
