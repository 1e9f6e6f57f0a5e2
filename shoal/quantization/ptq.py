"""Post-training quantization of a copy of any torch module: weights, activations or both.

    ranges = calibrate(model, lambda model: model(states))
    model_quantizer = ModelQuantizer(weights=Quantizer(4), activations=Quantizer(8, symmetric=False))
    small = quantized(model, model_quantizer, ranges)
    small = quantized(model, model_quantizer, ranges, Correction(), lambda model: model(states))  # biases corrected

Quantization is simulated: every weight and every layer's input is quantized and dequantized, the products are float32.
The original is not modified.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.inference.correction import NOTHING, Correction, moved_bias, output_rounded
from shoal.inference.grid import Grid
from shoal.inference.layers import as_matrix
from shoal.networks.stacked import by_member
from shoal.quantization.affine import simulate, stored_bytes
from shoal.quantization.layers import LayerSite, attach, check_weights, detach_all, find_layers
from shoal.quantization.quantizer import Quantizer

Ranges = dict[str, tuple[Tensor, Tensor]]  # min(x, 0) and max(x, 0) of each layer's input, by the layer's name
Edge = Quantizer | Literal["full"] | None  # the quantizer of the first or last layer; full: full precision
Run = Callable[[Any], object]  # runs a module on representative states


@dataclass(frozen=True)
class ModelQuantizer:
    """What of a model is quantized, and how."""

    weights: Quantizer | None = None
    """None: full precision."""
    activations: Quantizer | None = None
    """The layers' inputs; None: full precision."""
    first: Edge = None
    """Another quantizer for the first layer; None: the same as everywhere."""
    last: Edge = None
    """The same for the last layer."""
    dynamic: bool = False
    """Dynamic quantization: take the range of activations from each row instead of from calibration."""
    networks: tuple[int, ...] | None = None
    """Networks of a stack (agents) that are quantized; None: all. Only for stacks of actors."""

    def of_layer(self, number: int, layers: int) -> tuple[Quantizer | None, Quantizer | None]:
        """The quantizers of a layer's weights and input; the first and last layers may have another width."""
        weights, inputs = self.weights, self.activations
        edge = (self.first if number == 0 else None) or (self.last if number == layers - 1 else None)
        if edge is None:
            return weights, inputs
        if edge == "full":
            return None, None
        return weights and edge, inputs and replace(edge, symmetric=inputs.symmetric, per_channel=inputs.per_channel)


Plan = ModelQuantizer  # its name in version 0.2.0


@dataclass(frozen=True, eq=False)
class _Part:
    """A layer, and how it is quantized."""

    layer: LayerSite
    weights: Quantizer | None
    inputs: Quantizer | None
    mask: Tensor | None  # (C, 1, 1): the networks of its stack that are quantized; None: all

    def chosen(self, narrow: Tensor, full: Tensor, of: Tensor | None = None) -> Tensor:
        """The quantized values of selected networks, the full-precision ones of the others; both (C, …).

        `of` (M,): the network of each of them, where they are (M, …).
        """
        return narrow if self.mask is None else torch.where(by_member(self.mask, of), narrow, full)


class _InputQuantizer:
    """Lets a function see and replace a layer's input; weights stay as they are."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def input(self, x: Tensor, frozen: bool) -> Tensor:
        return self.function(x)

    def weight(self, weight: Tensor) -> Tensor:
        return weight


def quantized(
    module: nn.Module,
    model_quantizer: ModelQuantizer,
    ranges: Ranges | None = None,
    correction: Correction = NOTHING,
    run: Run | None = None,
) -> nn.Module:
    """A copy of the module that computes with quantized values; `ranges` are those from `calibrate`.

    A correction takes the states that `run` runs a module on, all of them in one batch.
    """
    check_weights(module)
    original, module = module, _plain_copy(module)
    layers = _parts(module, model_quantizer)
    if not layers:
        raise UserError(
            "The model has no layer that can be quantized: Linear, Conv1d, Conv2d or one of Shoal's stacks."
        )
    for part in layers:
        layer, weights, inputs = part.layer, part.weights, part.inputs
        if weights is not None:
            with torch.no_grad():
                layer.weight.copy_(part.chosen(simulate(layer.weight, weights, layer.kept(weights)), layer.weight))
        if (
            inputs is not None
            and inputs.format is None
            and not model_quantizer.dynamic
            and layer.name not in (ranges or {})
        ):
            raise UserError(f"The range of layer '{layer.name}' is not known: calibrate the model first.")

    def rounded(part: _Part, x: Tensor) -> Tensor:
        """A layer's input as the quantized module sees it."""
        if part.inputs is None:
            return x
        layer, of = part.layer, part.layer.of
        if model_quantizer.dynamic or part.inputs.format is not None:
            return part.chosen(simulate(x, part.inputs, layer.row_axes(x)), x, of)
        assert ranges is not None
        low, high = (by_member(end, of) for end in ranges[layer.name])
        return part.chosen(simulate(x, part.inputs, ranges=(low, high)), x, of)

    if correction:
        if run is None:
            raise ValueError("a correction needs states")
        _correct(original, module, layers, correction, rounded, run)
    if any(part.inputs is not None for part in layers):
        for part in layers:
            attach(part.layer, _InputQuantizer(partial(rounded, part)))
    return module


def _correct(
    original: nn.Module,
    module: nn.Module,
    layers: list[_Part],
    correction: Correction,
    rounded: Callable[[_Part, Tensor], Tensor],
    run: Run,
) -> None:
    """Correct every layer of the quantized module when its input arrives, in one pass: those before it are done."""
    full = _plain_copy(original)
    originals = {layer.name: layer for layer in find_layers(full)}
    inputs: dict[str, Tensor] = {}  # in full precision

    def record(name: str, x: Tensor) -> Tensor:
        inputs.setdefault(name, x.detach().clone())
        return x

    def correct(part: _Part, x: Tensor) -> Tensor:
        layer, weights, x = part.layer, part.weights, rounded(part, x)
        before = inputs.pop(layer.name, None)
        if before is None or layer.bias is None:  # used a second time, or nothing to move
            return x
        wide, both = originals[layer.name].portable(), (layer.portable_input(before), layer.portable_input(x))
        of = () if layer.of is None else layer.of.tolist()
        if correction.rounding == "output-error" and weights is not None and weights.format is None:
            keep = (0, 2) if set(layer.kept(weights)) == set(layer.channels) else (0,)
            grid = Grid.of_numbers(as_matrix(wide.weight), weights.bits, weights.kind, keep)
            narrow = layer.from_portable(output_rounded(wide, grid, *both, correction.bias, of=of))
            layer.weight.copy_(part.chosen(narrow, layer.weight))
        if correction.bias:
            moved = moved_bias(wide, layer.portable().weight, *both, of=of)
            layer.bias.copy_(torch.from_numpy(moved).view_as(layer.bias))
        return x

    with torch.no_grad():
        for name, layer in originals.items():
            attach(layer, _InputQuantizer(partial(record, name)))
        run(full)
        for part in layers:
            attach(part.layer, _InputQuantizer(partial(correct, part)))
        run(module)
    detach_all(module)


def calibrate(module: nn.Module, run: Run) -> Ranges:
    """The range of every layer's input while `run` runs a copy of the module on representative states."""
    module = _plain_copy(module)
    ranges: Ranges = {}

    def observe(layer: LayerSite, x: Tensor) -> Tensor:
        low, high = layer.input_range(x.detach())
        if layer.name in ranges:
            before = ranges[layer.name]
            low, high = torch.minimum(low, before[0]), torch.maximum(high, before[1])
        ranges[layer.name] = low, high
        return x

    for layer in find_layers(module):
        attach(layer, _InputQuantizer(partial(observe, layer)))
    with torch.no_grad():
        run(module)
    return ranges


def model_bytes(module: nn.Module, model_quantizer: ModelQuantizer) -> int:
    """Bytes of all parameters when stored: packed codes with their scales, everything else in float32."""
    layers = _parts(module, model_quantizer)
    numbers = sum(parameter.numel() for parameter in module.parameters())
    total = 4 * (numbers - sum(part.layer.weight.numel() for part in layers))
    for part in layers:
        numbers, scales = part.layer.weight.numel(), part.layer.scales(part.weights) if part.weights else 0
        chosen, of = (1, 1) if part.mask is None else (int(part.mask.sum()), len(part.mask))
        total += stored_bytes(numbers * chosen // of, scales * chosen // of, part.weights)
        total += 4 * numbers * (of - chosen) // of
    return total


def _parts(module: nn.Module, model_quantizer: ModelQuantizer) -> list[_Part]:
    """The layers of a module, and how each is quantized."""
    layers = find_layers(module)
    return [
        _Part(layer, *model_quantizer.of_layer(number, len(layers)), layer.mask("networks", model_quantizer.networks))
        for number, layer in enumerate(layers)
    ]


def _plain_copy(module: nn.Module) -> nn.Module:
    """A copy without quantizers: a model trained with quantization is quantized again from its own weights."""
    module = copy.deepcopy(module)
    detach_all(module)
    return module
