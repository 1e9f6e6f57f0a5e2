"""Find the layers of any torch module that can be quantized, without editing it.

Linear, Conv1d, Conv2d and our stacks. A layer knows which axes of its weights are networks (stacked ones are
quantized separately, as each agent could be deployed alone) and which are channels.
Shape letters: C networks in a stack, I inputs, U outputs, J joint.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.inference.layers import Conv2d, Layer, Linear
from shoal.networks import JointCritics, StackedMLP
from shoal.quantization.affine import Scheme, check_finite

KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d)


@dataclass(frozen=True, eq=False)
class LayerSite:
    """One layer of a module: its weights and where they are."""

    name: str
    module: nn.Module
    weight: Tensor
    networks: tuple[int, ...]
    """Axes of the weights along which whole networks are stacked."""
    channels: tuple[int, ...]
    """Axes of networks and outputs."""
    number: int = 0
    """Index of the layer in a stack."""

    def kept(self, scheme: Scheme) -> tuple[int, ...]:
        """The axes of the weights along which each index has its own scale."""
        per_channel = scheme.per_channel
        if per_channel is None:
            per_channel = isinstance(self.module, nn.Conv1d | nn.Conv2d)
        return self.channels if per_channel else self.networks

    def scales(self, scheme: Scheme) -> int:
        """Number of scales of the weights, or of shared exponents."""
        if scheme.format is not None:
            return scheme.shared(self.weight.shape)
        count = 1
        for axis in self.kept(scheme):
            count *= self.weight.shape[axis]
        return count

    @property
    def input_axes(self) -> tuple[int, ...]:
        """The axes of its input along which networks are stacked: (C, B, I) in a stack; none for a joint input."""
        return (0,) if isinstance(self.module, StackedMLP) else ()

    @property
    def bias(self) -> Tensor | None:
        """Its biases; None: it has none."""
        if isinstance(self.module, StackedMLP):
            return self.module.biases[self.number]
        bias = getattr(self.module, "bias", None)
        return bias if isinstance(bias, Tensor) else None

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
        plain = part.groups == 1 and set(part.dilation) == {1} and part.padding_mode == "zeros"
        if not plain or isinstance(part.padding, str):
            raise UserError(f"Layer '{self.name}' cannot be corrected: it is not a plain convolution.")
        stride, padding = tuple(part.stride), tuple(part.padding)
        if isinstance(part, nn.Conv1d):  # a signal is an image of height 1
            weight, stride, padding = weight.unsqueeze(2), (1, *stride), (0, *padding)
        return Conv2d(weight.numpy(), bias.numpy(), stride, padding)  # type: ignore[arg-type]

    def portable_input(self, x: Tensor) -> NDArray[np.float32]:
        """(N, B, …): an input of the layer as the layer without torch takes it."""
        found: NDArray[np.float32] = x.detach().cpu().numpy()
        if isinstance(self.module, StackedMLP):
            return found
        if isinstance(self.module, nn.Linear):
            return found.reshape(1, -1, found.shape[-1])
        sides = found.shape[-(self.weight.dim() - 1) :]
        shape = (1, -1, sides[0], 1, sides[1]) if len(sides) == 2 else (1, -1, *sides)
        return found.reshape(shape)

    def from_portable(self, weight: NDArray[np.float32]) -> Tensor:
        """Weights of the layer without torch in the shape of this one's."""
        found = torch.from_numpy(weight)
        return found[0].T if isinstance(self.module, nn.Linear) else found.reshape(self.weight.shape)

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
    if isinstance(part, KINDS):
        if not isinstance(part.weight, nn.Parameter):
            raise UserError(
                f"Layer '{prefix.rstrip('.') or 'layer'}' recomputes its weights in every pass (weight_norm, "
                "spectral_norm): remove that before quantizing."
            )
        return [LayerSite(prefix.rstrip(".") or "layer", part, part.weight, (), (0,))]
    if isinstance(part, JointCritics):
        return [LayerSite(f"{prefix}first", part, part.first, (1,), (1, 2))]
    if isinstance(part, StackedMLP):
        return [LayerSite(f"{prefix}{k}", part, weight, (0,), (0, 2), k) for k, weight in enumerate(part.weights)]
    return []
