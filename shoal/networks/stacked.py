"""Networks of all agents stacked: parameters are (C, in, out), and one batched product serves every one of them.

Shape letters: C networks in the stack (one per agent, or one per critic), B batch rows, I inputs, H hidden units.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.envs.base import members
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
        self.members = None if self.of is None else members(self.of.tolist())
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
                x = by_network(x, self.members, weight, bias)
        return x

    def stacked_parameters(self) -> list[tuple[nn.Parameter, int]]:
        """Each parameter with the axis along which the networks are stacked."""
        return [(parameter, 0) for parameter in self.flat]


def shared_numbers(of: NDArray[np.int64] | None, networks: int) -> Tensor | None:
    """(M,): which network each member has; None where each has its own."""
    return None if of is None or len(of) == networks else torch.from_numpy(of)


def by_network(x: Tensor, groups: Sequence[list[int]], weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(M, B, U) for x (M, B, I): one product per network (I, U), with all its members' rows; weights are not copied."""
    results = []
    for k, own in enumerate(groups):
        rows = (x if len(groups) == 1 else x[_in_place(own)]).flatten(0, 1)
        y = torch.mm(rows, weight[k]) if bias is None else torch.addmm(bias[k], rows, weight[k])
        results.append(y.view(len(own), -1, y.shape[1]))
    if len(groups) == 1:
        return results[0]
    order = list(chain.from_iterable(groups))
    together = torch.cat(results)
    if order == sorted(order):
        return together
    return together.index_select(0, torch.tensor(order, device=x.device).argsort())


def _in_place(numbers: list[int]) -> slice | list[int]:
    """These indices, as a slice where they are evenly spaced: a slice copies nothing."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    evenly = list(range(numbers[0], numbers[-1] + 1, step)) == numbers
    return slice(numbers[0], numbers[-1] + 1, step) if evenly else numbers


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
