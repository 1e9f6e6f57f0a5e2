"""Attach quantizers to the layers of any torch module, and detach them, without editing the module.

A `Tap` sits at one layer and sees the operands of its product: the input and the weights.
Shoal's own layers call their stack's quantizer; the `forward` of a Linear or a convolution is replaced.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from shoal.networks import JointCritics, StackedMLP
from shoal.quantization.layers import LayerSite


class Tap(Protocol):
    """Transforms the operands of one layer's products."""

    def input(self, x: Tensor, frozen: bool) -> Tensor:
        """Transform the layer's input; `frozen`: the network does not learn from this pass."""
        ...

    def weight(self, weight: Tensor) -> Tensor:
        """Transform the layer's weights."""
        ...


class StackTaps:
    """The quantizer of a stacked network: one tap per layer."""

    def __init__(self) -> None:
        self.taps: dict[int, Tap] = {}

    def input(self, layer: int, x: Tensor, frozen: bool) -> Tensor:
        """Transform this layer's input."""
        return self.taps[layer].input(x, frozen)

    def weight(self, layer: int, weight: Tensor) -> Tensor:
        """Transform this layer's weights."""
        return self.taps[layer].weight(weight)


class TappedForward:
    """Replaces the `forward` of a Linear or a convolution."""

    def __init__(self, part: nn.Module, tap: Tap) -> None:
        self.part, self.tap = part, tap

    def __call__(self, x: Tensor) -> Tensor:
        part: Any = self.part
        x = self.tap.input(x, frozen=not torch.is_grad_enabled())
        weight = self.tap.weight(part.weight)
        if weight is part.weight:
            y: Tensor = type(part).forward(part, x)
        elif isinstance(part, nn.Linear):
            y = nn.functional.linear(x, weight, part.bias)
        else:
            y = part._conv_forward(x, weight, part.bias)
        return y


def attach(layer: LayerSite, tap: Tap) -> Callable[[], None]:
    """Attach a tap to a layer; returns a function that detaches it."""
    part = layer.module
    if isinstance(part, StackedMLP | JointCritics):
        taps = part.quantizer if isinstance(part.quantizer, StackTaps) else StackTaps()
        taps.taps[layer.number] = tap
        part.quantizer = taps
        return lambda: setattr(part, "quantizer", None)
    setattr(part, "forward", TappedForward(part, tap))  # noqa: B010
    return lambda: delattr(part, "forward")


def attached(layer: LayerSite) -> Tap | None:
    """The tap attached to a layer, if any."""
    part = layer.module
    if isinstance(part, StackedMLP | JointCritics):
        return part.quantizer.taps.get(layer.number) if isinstance(part.quantizer, StackTaps) else None
    return getattr(part.__dict__.get("forward"), "tap", None)


def detach_all(module: nn.Module) -> None:
    """Detach all taps from a module."""
    for part in module.modules():
        if isinstance(part, StackedMLP | JointCritics):
            part.quantizer = None
        elif isinstance(part.__dict__.get("forward"), TappedForward):
            delattr(part, "forward")
