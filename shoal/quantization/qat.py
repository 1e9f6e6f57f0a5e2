"""Quantization-aware training: the forward pass sees quantized values, gradients pass straight through.

Weights are quantized symmetrically, one scale per output channel of each network; layer inputs asymmetrically, one
range per network. Input ranges are observed from the start, in every pass that the network learns from: running
averages of the mini-batches' minima and maxima. Quantization starts after the fraction `delay` of the training; an
input whose range has not been observed yet passes unchanged. Target networks share their online network's ranges.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from shoal.errors import UserError, check_range
from shoal.inference.grid import Grid
from shoal.inference.layers import Quantized
from shoal.numerics.emulation.roles import mark_weight
from shoal.quantization.layers import LayerSite, attach, attached, find_layers

MOMENTUM = 0.01  # weight of a new mini-batch in the running range
LEAST_QAT_BITS, MOST_QAT_BITS = 2, 8


class _StraightThrough(Function):
    """`Grid.round` with a straight-through gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, grid: Grid) -> Tensor:
        return cast(Tensor, grid.round(x))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, None


class FakeLayer:
    """The quantizer of one layer: its input's running range, and the current scales of its weights."""

    def __init__(self, layer: LayerSite, bits: int, on: Tensor, only: int | None = None) -> None:
        """`only`: the one network of a stack that is quantized; None: all."""
        check_range("bits", bits, LEAST_QAT_BITS, MOST_QAT_BITS)
        self.bits, self.channels, self.networks, self.on = bits, layer.channels, layer.input_axes, on
        self.only, self.chosen = only, layer.mask("qat_agent", None if only is None else (only,))
        count = layer.weight.shape[0] if self.networks else 1
        self.of, self.input_range = layer.of, layer.input_range
        self.low, self.high = (layer.weight.detach().new_zeros(count, 1, 1) for _ in range(2))
        self.seen = torch.zeros(1)  # mini-batches so far
        self.observing = True
        self._grid: tuple[tuple[int, int, int], Grid] | None = None
        self._kept: dict[tuple[int, int], Tensor] | None = None  # quantized weights by identity

    def input(self, x: Tensor, frozen: bool) -> Tensor:
        """A layer's input: observed unless the network does not learn from this pass, quantized once that is on."""
        if self.observing and not frozen:
            self._observe(x.detach())
        if not self.on or not self.seen:
            return x
        grid, of, chosen = self.grid(), self.of, self.chosen
        if of is not None:
            grid = replace(grid, scale=grid.scale[of], zero_point=grid.zero_point[of])
            chosen = None if chosen is None else chosen[of]
        return self._quantized(x, grid, chosen)

    def weight(self, weight: Tensor) -> Tensor:
        """The layer's weights, quantized once that is on."""
        if not self.on:
            return weight
        kept = {} if self._kept is None or torch.is_grad_enabled() else self._kept
        of = weight.data_ptr(), weight._version
        if of not in kept:
            kept[of] = mark_weight(self._quantized(weight, self.weight_grid(weight), self.chosen))
        return kept[of]

    def keep_weights(self, yes: bool) -> None:
        """Cache the quantized weights for passes without learning, until this is called again."""
        self._kept = {} if yes else None

    def grid(self) -> Grid:
        """The grid of the input, with one scale per network: (C, 1, 1), or one number."""
        of = id(self.low), self.low._version, self.high._version  # changes with every in-place write
        if self._grid is None or self._grid[0] != of:
            shape = self.low.shape if self.networks else ()
            self._grid = of, Grid.of_range(self.low.view(shape), self.high.view(shape), self.bits)
        return self._grid[1]

    def weight_grid(self, weight: Tensor) -> Grid:
        """The grid of the weights, with one scale per output channel of each network."""
        return Grid.of_numbers(weight.detach(), self.bits, "symmetric", self.channels)

    def frozen(self, weight: Tensor) -> Quantized:
        """The layer's current grids, for an inference engine."""
        convolution, networks = weight.dim() == 4, weight.shape[0] if self.networks else 1
        weights = _in_numpy(self.weight_grid(weight), (-1, 1, 1, 1) if convolution else (networks, 1, -1))
        return Quantized(weights, _in_numpy(self.grid(), (-1, 1, 1)) if self.seen else None)

    def set_range(self, low: float, high: float) -> None:
        self.low.fill_(low)
        self.high.fill_(high)
        self.seen.fill_(1)

    def _quantized(self, x: Tensor, grid: Grid, chosen: Tensor | None) -> Tensor:
        """Quantize the selected networks only."""
        narrow: Tensor = _StraightThrough.apply(x, grid) if torch.is_grad_enabled() else grid.round(x)
        return narrow if chosen is None else torch.where(chosen, narrow, x)

    def _observe(self, x: Tensor) -> None:
        low, high = (end.reshape(self.low.shape) for end in self.input_range(x))
        share = MOMENTUM if self.seen else 1.0
        self.low.lerp_(low, share)
        self.high.lerp_(high, share)
        self.seen += 1


def _in_numpy(grid: Grid, shape: tuple[int, ...]) -> Grid:
    """The grid in numpy, for an inference engine."""
    scale, zero = (part.reshape(shape).cpu().numpy() for part in (grid.scale.float(), grid.zero_point))
    return replace(grid, scale=scale, zero_point=zero)


class Qat:
    """Quantization-aware training of some networks, by name; targets use the ranges of their online networks."""

    def __init__(
        self,
        networks: Mapping[str, nn.Module],
        bits: int,
        delay: float = 0.5,
        only: int | None = None,
        wanted: Callable[[str], bool] = lambda name: True,
        targets: Mapping[str, str] | None = None,
    ) -> None:
        """`only`: the one network of every stack (the one agent) to quantize; None: all.

        `wanted`: whether to quantize the layer of this full name.
        `targets`: full names of target networks or their parts, each with that of its online counterpart.
        """
        check_range("quant_delay", delay, 0, 1)
        self.bits, self.delay = bits, delay
        self.on = torch.tensor([float(delay == 0)])
        self.layers: dict[str, FakeLayer] = {}
        self._undo: list[Callable[[], None]] = []
        layers = {f"{name}.{layer.name}": layer for name, part in networks.items() for layer in find_layers(part)}
        online = {name: online_name(name, targets or {}) for name in layers if wanted(name)}
        for name in sorted(online, key=lambda name: online[name] != name):  # online ones first: they are observed
            if online[name] not in self.layers:
                self.layers[online[name]] = FakeLayer(layers[name], bits, self.on, only)
            self._undo.append(attach(layers[name], self.layers[online[name]]))

    def progress(self, done: float) -> None:
        """Report which share of the training is done."""
        if done >= self.delay:
            self.on.fill_(1)

    def state(self) -> dict[str, Tensor]:
        """Its state as tensors by name (not copies)."""
        state = {"on": self.on}
        for name, layer in self.layers.items():
            state |= {f"{name}.low": layer.low, f"{name}.high": layer.high, f"{name}.seen": layer.seen}
        return state

    def keep_weights(self, yes: bool) -> None:
        """Declare that the weights will not change, so they are quantized only once; or that they may change again."""
        for layer in self.layers.values():
            layer.keep_weights(yes)

    def freeze(self) -> None:
        """Stop observing: ranges stay fixed."""
        for layer in self.layers.values():
            layer.observing = False

    def detach(self) -> None:
        for undo in self._undo:
            undo()
        self._undo = []


def online_name(name: str, targets: Mapping[str, str]) -> str:
    """The full name of a layer, or of its online counterpart."""
    for target, online in targets.items():
        if name.startswith(f"{target}."):
            return online + name.removeprefix(target)
    return name


def frozen_layers(network: nn.Module, one_agent: bool = False) -> list[Quantized] | None:
    """The grids that each layer of a network was trained with; None for full precision.

    A team of which only one agent was trained with quantization is refused unless the caller passes it as `one_agent`.
    """
    frozen = []
    for layer in find_layers(network):
        fake = attached(layer)
        if not isinstance(fake, FakeLayer) or not fake.on:
            return None
        if fake.only is not None and not one_agent:
            raise UserError(
                "Only one agent of the team was trained with quantization, which needs one file per agent: pass "
                "`each=True`."
            )
        frozen.append(fake.frozen(layer.weight.detach()))
    return frozen
