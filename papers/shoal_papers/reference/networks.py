"""One agent's networks: plain multilayer perceptrons, and sampling and entropy of a policy's logits.

Shape letters: B batch rows, A action.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shoal.networks import NoiseSource
from shoal.networks.layout import Random, full, xavier


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise([inputs, *hidden, outputs]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@torch.no_grad()
def start(networks: Sequence[nn.Sequential], random: Random) -> None:
    """Xavier-uniform weights and zero biases, drawn layer by layer like the engine's: one seed, same weights."""
    for parameters in zip(*(network.parameters() for network in networks), strict=True):
        for parameter in parameters:
            if parameter.dim() == 1:
                parameter.zero_()
            else:
                real_out, real_in = (full(1, size)[0] for size in parameter.shape)
                parameter.copy_(torch.from_numpy(xavier(real_in, real_out, random)).T)


def gumbel(logits: Tensor, noise: NoiseSource) -> Tensor:
    """(B, A) a Gumbel-softmax sample, temperature 1."""
    return torch.softmax(logits + noise("gumbel", tuple(logits.shape)), -1)


def entropy(logits: Tensor) -> Tensor:
    """(B,) exact entropy of the categorical distribution."""
    log_probability = torch.log_softmax(logits, -1)
    return -(log_probability.exp() * log_probability).sum(-1)
