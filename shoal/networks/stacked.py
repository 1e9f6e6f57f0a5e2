"""Networks of all agents stacked: parameters are (C, in, out), and one batched product serves every one of them.

Shape letters: C networks in the stack (one per agent, or one per critic), B batch rows, I inputs, H hidden units.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shoal.networks.layers import LayerQuantizer, QuantizedStack, Stack, forward_quantized, forward_stack


def xavier(real_in: Tensor, real_out: Tensor, generator: torch.Generator) -> Tensor:
    """(I, H) Xavier-uniform weights between the real inputs and outputs; zero where either is padding.

    Only the real block is drawn, with its own fans: padding changes neither scale nor random stream.
    """
    fan_in, fan_out = int(real_in.sum()), int(real_out.sum())
    bound = math.sqrt(6.0 / (fan_in + fan_out))
    block = torch.rand(fan_in, fan_out, generator=generator).mul_(2 * bound).sub_(bound)
    if block.shape == (len(real_in), len(real_out)):
        return block  # a mask would take eight times the memory of a large layer, and most of the time
    weight = torch.zeros(len(real_in), len(real_out))
    weight[real_in.nonzero(), real_out.nonzero().T] = block
    return weight


class StackedMLP(nn.Module):
    """C multilayer perceptrons with ReLU between their layers, run together."""

    quantizer: LayerQuantizer | None = None
    """What weights and inputs of the layers go through; None: they are taken as they are."""

    def __init__(self, real_in: Tensor, hidden: Sequence[int], real_out: Tensor, generator: torch.Generator) -> None:
        """`real_in` (C, I) and `real_out` (C, out) say which entries of each network are not padding."""
        super().__init__()
        stack = len(real_in)
        widths = [real_in, *(torch.ones(stack, width, dtype=torch.bool) for width in hidden), real_out]
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for before, after in itertools.pairwise(widths):
            weight = torch.stack([xavier(before[c], after[c], generator) for c in range(stack)])
            self.weights.append(nn.Parameter(weight))  # (C, in, out)
            self.biases.append(nn.Parameter(torch.zeros(stack, 1, after.shape[1])))  # (C, 1, out)
        self.flat = [parameter for pair in zip(self.weights, self.biases, strict=True) for parameter in pair]

    def forward(self, x: Tensor, frozen: bool = False) -> Tensor:
        """(C, B, I) to (C, B, out); `frozen` lets gradients through to x but not into the parameters."""
        learned = torch.is_grad_enabled()
        if self.quantizer is not None:
            if not learned:
                return forward_quantized(x, self.flat, self.quantizer, frozen=True)[0][-1]
            return QuantizedStack.apply(x, frozen, self.quantizer, *self.flat)
        if not learned:
            return forward_stack(x, self.flat)[-1]
        return Stack.apply(x, frozen, False, *self.flat)

    def stacked_parameters(self) -> list[tuple[nn.Parameter, int]]:
        """Each parameter with the axis along which the networks are stacked."""
        return [(parameter, 0) for parameter in self.flat]


class StackedNorm(nn.Module):
    """Layer normalisation of C networks: each row to mean 0 and variance 1, then a gain and an offset per unit."""

    def __init__(self, stack: int, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(stack, 1, width))
        self.offset = nn.Parameter(torch.zeros(stack, 1, width))

    def forward(self, x: Tensor, frozen: bool = False) -> Tensor:
        """(C, B, H) to (C, B, H); `frozen` lets gradients through to x but not into the parameters."""
        gain, offset = (self.gain.detach(), self.offset.detach()) if frozen else (self.gain, self.offset)
        return torch.addcmul(offset, nn.functional.layer_norm(x, x.shape[-1:]), gain)

    def stacked_parameters(self) -> list[tuple[nn.Parameter, int]]:
        """Each parameter with the axis along which the networks are stacked."""
        return [(self.gain, 0), (self.offset, 0)]
