"""Layers of any torch module that can be quantized: finding them, and attaching quantizers, without editing the module.

Linear, Conv1d, Conv2d and our stacks. A layer knows which axes of its weights are networks (stacked ones are
quantized separately, as each agent could be deployed alone) and which are channels. A quantizer sits at one layer and
replaces the operands of its product. Shoal's own layers call theirs; the `forward` of a Linear or a convolution is
replaced.
Shape letters: C networks in a stack, I inputs, U outputs, J joint.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.errors import UserError, check_range
from shoal.inference.layers import Conv2d, Layer, Linear
from shoal.networks.critics import JointCritics
from shoal.networks.pooled import PooledCritics
from shoal.networks.stacked import LayerQuantizer, StackedMLP
from shoal.quantization.affine import check_finite
from shoal.quantization.quantizer import Quantizer

Stacked = StackedMLP | JointCritics | PooledCritics


@dataclass(frozen=True, eq=False)
class LayerSite:
    """One layer of a module: its weights and where they are."""

    name: str
    module: nn.Module
    weight: Tensor
    networks: tuple[int, ...]  # axes of the weights along which whole networks are stacked
    channels: tuple[int, ...]  # axes of networks and outputs
    number: int = 0  # index of the layer in a stack

    def kept(self, quantizer: Quantizer) -> tuple[int, ...]:
        """The axes of the weights along which each index has its own scale."""
        per_channel = quantizer.per_channel
        if per_channel is None:
            per_channel = isinstance(self.module, nn.Conv1d | nn.Conv2d)
        return self.channels if per_channel else self.networks

    def scales(self, quantizer: Quantizer) -> int:
        """Number of scales of the weights, or of shared exponents."""
        if quantizer.format is not None:
            return quantizer.shared(self.weight.shape)
        return math.prod(self.weight.shape[axis] for axis in self.kept(quantizer))

    @property
    def input_axes(self) -> tuple[int, ...]:
        """The axes of its input along which networks are stacked: (C, B, I) in a stack; none for a joint input."""
        return (0,) if isinstance(self.module, StackedMLP) else ()

    @property
    def of(self) -> Tensor | None:
        """(M,): which network each of its inputs is for, in a stack of which several agents share one."""
        return self.module.of if isinstance(self.module, StackedMLP) else None

    @property
    def bias(self) -> Tensor | None:
        """Its biases; None: it has none."""
        if isinstance(self.module, StackedMLP):
            return self.module.biases[self.number]
        bias = getattr(self.module, "bias", None)
        return bias if isinstance(bias, Tensor) else None

    @property
    def plain(self) -> bool:
        """Whether it is linear, or a convolution with only kernel, stride and zero padding."""
        part = self.module
        if not isinstance(part, nn.Conv1d | nn.Conv2d):
            return isinstance(part, nn.Linear)
        padded = part.padding_mode == "zeros" and not isinstance(part.padding, str)
        return padded and part.groups == 1 and set(part.dilation) == {1}

    def mask(self, option: str, networks: tuple[int, ...] | None) -> Tensor | None:
        """(C, 1, 1): which networks of its stack are meant; None: all. `option` named them, for messages."""
        if networks is None:
            return None
        if not isinstance(self.module, StackedMLP):
            raise UserError(
                f"Layer '{self.name}' is not that of a single agent: only stacks of actors can be quantized per agent."
            )
        mask = torch.zeros(len(self.weight), 1, 1, dtype=torch.bool, device=self.weight.device)
        for network in networks:
            check_range(option, network, 0, len(mask) - 1)
            mask[network] = True
        return mask

    def portable(self) -> Layer:
        """The layer without torch and without its activation."""
        part, weight = self.module, self.weight.detach().cpu()
        bias = torch.zeros(weight.shape[self.channels[-1]]) if self.bias is None else self.bias.detach().cpu()
        if isinstance(part, nn.Linear):
            return Linear(weight.T[None].contiguous().numpy(), bias[None].numpy())
        if isinstance(part, StackedMLP):
            return Linear(weight.numpy(), bias[:, 0].numpy())
        if not isinstance(part, nn.Conv1d | nn.Conv2d):
            raise UserError(f"Layer '{self.name}' cannot be corrected: several networks share its input.")
        if not self.plain:
            raise UserError(f"Layer '{self.name}' cannot be corrected: it is not a plain convolution.")
        stride, padding = tuple(part.stride), tuple(part.padding)
        if isinstance(part, nn.Conv1d):  # a signal is an image of height 1
            weight, stride, padding = weight.unsqueeze(2), (1, *stride), (0, *padding)
        return Conv2d(weight.numpy(), bias.numpy(), stride, padding)  # type: ignore[arg-type]

    def portable_input(self, x: Tensor) -> NDArray[np.float32]:
        """(N, B, …): an input of the layer as the layer without torch takes it."""
        array: NDArray[np.float32] = x.detach().cpu().numpy()
        if isinstance(self.module, StackedMLP):
            return array
        if isinstance(self.module, nn.Linear):
            return array.reshape(1, -1, array.shape[-1])
        sides = array.shape[-(self.weight.dim() - 1) :]
        return array.reshape((1, -1, sides[0], 1, sides[1]) if len(sides) == 2 else (1, -1, *sides))

    def from_portable(self, weight: NDArray[np.float32]) -> Tensor:
        """Weights of the layer without torch in the shape of this one's."""
        tensor = torch.from_numpy(weight)
        return tensor[0].T if isinstance(self.module, nn.Linear) else tensor.reshape(self.weight.shape)

    def row_axes(self, x: Tensor) -> tuple[int, ...]:
        """The batch axes of an input."""
        if isinstance(self.module, nn.Conv1d | nn.Conv2d):
            return tuple(range(x.dim() - len(self.weight.shape) + 1))
        return tuple(range(x.dim() - 1))


def find_layers(module: nn.Module) -> list[LayerSite]:
    """All layers of a module that can be quantized, in the order of its parts; shared layers are listed once."""
    layers: dict[int, LayerSite] = {}
    for name, part in module.named_modules():
        for layer in _layers_of(f"{name}." if name else "", part):
            if (other := layers.setdefault(id(layer.weight), layer)) is not layer:
                raise UserError(
                    f"Layers '{other.name}' and '{layer.name}' share one weight tensor: give each its own, "
                    "or use the same layer twice."
                )
    return list(layers.values())


def check_weights(module: nn.Module) -> None:
    """Refuse weights that hold NaN or infinity."""
    for name, parameter in module.named_parameters():
        check_finite(f"'{name}' of the model", parameter.detach())


def _layers_of(prefix: str, part: nn.Module) -> list[LayerSite]:
    if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d):
        if not isinstance(part.weight, nn.Parameter):
            raise UserError(
                f"Layer '{prefix.rstrip('.') or 'layer'}' recomputes its weights in every pass (weight_norm, "
                "spectral_norm): remove that before quantizing."
            )
        return [LayerSite(prefix.rstrip(".") or "layer", part, part.weight, (), (0,))]
    if isinstance(part, JointCritics):
        return [LayerSite(f"{prefix}first", part, part.first, (1,), (1, 2))]
    if isinstance(part, PooledCritics):
        return [LayerSite(f"{prefix}first", part, part.first, (0, 1), (0, 1, 3))]
    if isinstance(part, StackedMLP):
        return [LayerSite(f"{prefix}{k}", part, weight, (0,), (0, 2), k) for k, weight in enumerate(part.weights)]
    return []


class QuantizedForward:
    """Replaces the `forward` of a Linear or a convolution."""

    def __init__(self, part: nn.Module, quantizer: LayerQuantizer) -> None:
        self.part, self.quantizer = part, quantizer

    def __call__(self, x: Tensor) -> Tensor:
        part: Any = self.part
        x = self.quantizer.input(x, frozen=not torch.is_grad_enabled())
        weight = self.quantizer.weight(part.weight)
        if weight is part.weight:
            return type(part).forward(part, x)
        if isinstance(part, nn.Linear):
            return nn.functional.linear(x, weight, part.bias)
        return part._conv_forward(x, weight, part.bias)


def attach(layer: LayerSite, quantizer: LayerQuantizer) -> Callable[[], None]:
    """Attach a quantizer to a layer; returns a function that detaches it."""
    part = layer.module
    if isinstance(part, Stacked):
        part.quantizers = {**(part.quantizers or {}), layer.number: quantizer}
        return lambda: setattr(part, "quantizers", None)
    setattr(part, "forward", QuantizedForward(part, quantizer))  # noqa: B010
    return lambda: delattr(part, "forward")


def attached(layer: LayerSite) -> LayerQuantizer | None:
    """The quantizer attached to a layer, if any."""
    part = layer.module
    if isinstance(part, Stacked):
        return (part.quantizers or {}).get(layer.number)
    return getattr(part.__dict__.get("forward"), "quantizer", None)


def detach_all(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, Stacked):
            part.quantizers = None
        elif isinstance(part.__dict__.get("forward"), QuantizedForward):
            delattr(part, "forward")
