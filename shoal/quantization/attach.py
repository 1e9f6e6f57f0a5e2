"""Quantizers on the layers of any torch module, put there and taken off again without editing it.

A `Tap` sits at one layer and sees what goes into its products: the input, the weights, and the gradient of the output.
A layer of ours asks its stack's quantizer; a Linear or a convolution gets another `forward`.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from shoal.networks import JointCritics, StackedMLP
from shoal.networks.layers import Change, change_gradient
from shoal.quantization.layers import Layer


class Tap(Protocol):
    """What one layer's numbers go through before its products."""

    def input(self, x: Tensor, frozen: bool) -> Tensor:
        """What the layer is given; `frozen`: the network learns nothing from it."""
        ...

    def weight(self, weight: Tensor) -> Tensor:
        """The layer's weights."""
        ...

    @property
    def gradient(self) -> Change | None:
        """What the gradient of the layer's output goes through; None: it stays as it is."""
        ...


class StackTaps:
    """The quantizer of one of our stacks: a tap for each of its layers."""

    def __init__(self) -> None:
        self.taps: dict[int, Tap] = {}

    def input(self, layer: int, x: Tensor, frozen: bool) -> Tensor:
        """What this layer is given."""
        return self.taps[layer].input(x, frozen)

    def weight(self, layer: int, weight: Tensor) -> Tensor:
        """This layer's weights."""
        return self.taps[layer].weight(weight)

    def gradient(self, layer: int) -> Change | None:
        """What the gradient of this layer's output goes through."""
        return self.taps[layer].gradient


class TappedForward:
    """What a Linear or a convolution does in place of its own `forward`."""

    def __init__(self, part: nn.Module, tap: Tap) -> None:
        self.part, self.tap = part, tap

    def __call__(self, x: Tensor) -> Tensor:
        part: Any = self.part
        x = self.tap.input(x, frozen=not torch.is_grad_enabled())
        weight = self.tap.weight(part.weight)
        if weight is part.weight:
            y = type(part).forward(part, x)
        elif isinstance(part, nn.Linear):
            y = nn.functional.linear(x, weight, part.bias)
        else:
            y = part._conv_forward(x, weight, part.bias)
        return change_gradient(y, self.tap.gradient)


def attach(layer: Layer, tap: Tap) -> Callable[[], None]:
    """Put a tap on a layer; the function that is returned takes it off."""
    part = layer.module
    if isinstance(part, StackedMLP | JointCritics):
        taps = part.quantizer if isinstance(part.quantizer, StackTaps) else StackTaps()
        taps.taps[layer.number] = tap
        part.quantizer = taps
        return lambda: setattr(part, "quantizer", None)
    setattr(part, "forward", TappedForward(part, tap))  # noqa: B010
    return lambda: delattr(part, "forward")


def attached(layer: Layer) -> Tap | None:
    """The tap on a layer, if there is one."""
    part = layer.module
    if isinstance(part, StackedMLP | JointCritics):
        return part.quantizer.taps.get(layer.number) if isinstance(part.quantizer, StackTaps) else None
    return getattr(part.__dict__.get("forward"), "tap", None)


def detach_all(module: nn.Module) -> None:
    """Take every tap off a module."""
    for part in module.modules():
        if isinstance(part, StackedMLP | JointCritics):
            part.quantizer = None
        elif isinstance(part.__dict__.get("forward"), TappedForward):
            delattr(part, "forward")
