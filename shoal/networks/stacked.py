"""Networks of all agents stacked: parameters are (C, in, out), and one batched product serves every one of them.

Shape letters: C networks in the stack (one per agent, or one per critic), B batch rows, I inputs, H hidden units.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.networks.layout import Random, Widths, initial_layers


class LayerQuantizer(Protocol):
    """What a layer's numbers go through before its products; gradients go straight past weights and inputs."""

    def input(self, x: Tensor, frozen: bool) -> Tensor:
        """The layer's input, quantized; `frozen`: the network learns nothing from this pass."""
        ...

    def weight(self, weight: Tensor) -> Tensor:
        """The layer's weights, quantized."""
        ...


def parameter(array: NDArray) -> nn.Parameter:
    """Learnable numbers, in torch's default precision."""
    return nn.Parameter(torch.from_numpy(array).to(torch.get_default_dtype()))


class StackedMLP(nn.Module):
    """C multilayer perceptrons with ReLU between their layers, run together."""

    of: Tensor | None
    """(M,): which network each of M members has, where several share one; None: every network has one member."""

    quantizers: Mapping[int, LayerQuantizer] | None = None
    """What weights and inputs of the layers, counted from 0, go through; None: they are taken as they are."""

    def __init__(self, widths: Widths, random: Random, of: NDArray[np.int64] | None = None) -> None:
        """`of` (M,): which network each member has; None: each its own."""
        super().__init__()
        self.register_buffer("of", shared_numbers(of, len(widths[0])), persistent=False)
        self.members = None if self.of is None else members_of(self.of)
        self.flat = [parameter(array) for array in initial_layers(widths, random)]
        self.weights = nn.ParameterList(self.flat[::2])  # (C, in, out)
        self.biases = nn.ParameterList(self.flat[1::2])  # (C, 1, out)

    def forward(self, x: Tensor, frozen: bool = False) -> Tensor:
        """(M, B, I) to (M, B, out); `frozen` lets gradients through to x but not into the parameters."""
        quantizers, frozen = self.quantizers, frozen or not torch.is_grad_enabled()
        parameters = [parameter.detach() for parameter in self.flat] if frozen else self.flat
        for k, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
            if k:
                x = x.relu_()
            if quantizers is not None:
                x, weight = quantizers[k].input(x, frozen), quantizers[k].weight(weight)
            if self.members is None:
                x = torch.baddbmm(bias, x, weight)
            else:
                layer = zip(bias, weight, strict=True)
                x = by_network(x, self.members, [partial(affine, *network) for network in layer])
        return x

    def unshare(self) -> None:
        """Give every member a network of its own, with the numbers of the one that it shared."""
        if self.of is not None:
            self.flat = [nn.Parameter(parameter.detach()[self.of], parameter.requires_grad) for parameter in self.flat]
            self.weights, self.biases = nn.ParameterList(self.flat[::2]), nn.ParameterList(self.flat[1::2])
            self.of = self.members = None

    def stacked_parameters(self) -> list[tuple[nn.Parameter, int]]:
        """Each parameter with the axis along which the networks are stacked."""
        return [(parameter, 0) for parameter in self.flat]


def shared_numbers(of: NDArray[np.int64] | None, networks: int) -> Tensor | None:
    """(M,): which network each member has; None where each has its own."""
    return None if of is None or len(of) == networks else torch.from_numpy(of)


def members_of(of: Tensor) -> list[Tensor]:
    """The members of each network."""
    return [torch.nonzero(of == network).flatten() for network in range(int(of.max()) + 1)]


def by_network(x: Tensor, members: list[Tensor], products: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """(M, B, U) for x (M, B, I): each network's product of all its members' rows, whose weights are not copied."""
    if len(members) == 1:
        return products[0](x.flatten(0, 1)).unflatten(0, x.shape[:2])
    results = [
        product(x[own].flatten(0, 1)).unflatten(0, (len(own), -1))
        for product, own in zip(products, members, strict=True)
    ]
    return torch.cat(results)[torch.cat(members).argsort()]


def affine(bias: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    """bias + x weight."""
    return torch.addmm(bias, x, weight)


def by_member(array: Tensor, of: Tensor | None, axis: int = 0) -> Tensor:
    """What is stacked by networks along this axis, stacked by members."""
    return array if of is None else array.index_select(axis, of)


class StackedNorm(nn.Module):
    """Layer normalisation of C networks: each row to mean 0 and variance 1, then a gain and an offset per unit."""

    of: Tensor | None

    def __init__(self, stack: int, width: int, of: NDArray[np.int64] | None = None) -> None:
        """`of` (M,): which network each member has; None: each its own."""
        super().__init__()
        self.register_buffer("of", shared_numbers(of, stack), persistent=False)
        self.gain = nn.Parameter(torch.ones(stack, 1, width))
        self.offset = nn.Parameter(torch.zeros(stack, 1, width))

    def forward(self, x: Tensor, frozen: bool = False) -> Tensor:
        """(M, B, H) to (M, B, H); `frozen` lets gradients through to x but not into the parameters."""
        gain, offset = (self.gain.detach(), self.offset.detach()) if frozen else (self.gain, self.offset)
        normal = nn.functional.layer_norm(x, x.shape[-1:])
        return torch.addcmul(by_member(offset, self.of), normal, by_member(gain, self.of))

    def stacked_parameters(self) -> list[tuple[nn.Parameter, int]]:
        """Each parameter with the axis along which the networks are stacked."""
        return [(self.gain, 0), (self.offset, 0)]


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray]:
    """Tensors as numpy arrays on the CPU: views of those that are there."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def to_tensors(arrays: Mapping[str, NDArray]) -> dict[str, Tensor]:
    """Arrays as tensors with their own memory."""
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
