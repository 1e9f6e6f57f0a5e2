"""Converts one network per agent to the engine's stacked arrays and back, so that both share one checkpoint format.

The engine pads unequal observations and actions with zeros and keeps weights as (networks, in, out), its critics' first
layer as (in, networks, out); `nn.Linear` keeps (out, in). Padding is zero there and does not exist here.
Shape letters: C networks, I inputs, U outputs, N agents, O observation, A action, J joint.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shoal.envs.base import EnvSpec
from shoal.networks.layout import Widths, actor_names, actor_widths, critic_names, critic_widths

PerNetwork = Sequence[Sequence[Tensor]]
"""Per network its parameters, or tensors of their shapes: weight, bias, weight, bias, …"""


class Stacking:
    """The layout of all agents' networks in the engine's arrays, parameter by parameter."""

    def __init__(self, names: list[str], widths: Widths, first_axis: int) -> None:
        self.names = names
        self.real: list[Tensor] = []  # (C, I, U) of a weight, (C, 1, U) of a bias
        for before, after in itertools.pairwise(map(torch.from_numpy, widths)):
            self.real += [before[:, :, None] & after[:, None, :], after[:, None, :]]
        self.axes = [first_axis] + [0] * (len(names) - 1)  # the axis along which networks are stacked

    def pack(self, tensors: PerNetwork) -> list[Tensor]:
        """One stacked array per parameter."""
        packed = []
        for real, axis, values in zip(self.real, self.axes, zip(*tensors, strict=True), strict=True):
            stacked = torch.zeros(real.shape)
            stacked[real] = torch.cat([_turned(value.detach().cpu()).flatten() for value in values])
            packed.append(stacked.movedim(0, axis).contiguous())
        return packed

    def unpack(self, packed: Sequence[Tensor], like: PerNetwork) -> list[list[Tensor]]:
        """The tensors of each network, shaped as in `like`."""
        return [
            [
                _turned(stacked.movedim(axis, 0)[c][real[c]].view(tuple(reversed(own.shape))))
                for stacked, axis, real, own in zip(packed, self.axes, self.real, network, strict=True)
            ]
            for c, network in enumerate(like)
        ]


def actor_stacking(spec: EnvSpec, hidden: Sequence[int]) -> Stacking:
    """One actor per agent."""
    return Stacking(actor_names(len(hidden) + 1), actor_widths(spec, hidden), first_axis=0)


def critic_stacking(spec: EnvSpec, hidden: Sequence[int], heads: int) -> Stacking:
    """`heads` critics per agent, all heads of the first agent first."""
    return Stacking(critic_names(len(hidden) + 1), critic_widths(spec, hidden, heads), first_axis=1)


def _turned(parameter: Tensor) -> Tensor:
    """(out, in) to (in, out) and back; biases are unchanged."""
    return parameter.mT if parameter.dim() == 2 else parameter


def parameters(networks: Sequence[nn.Sequential]) -> list[list[Tensor]]:
    """Each network's parameters."""
    return [list(network.parameters()) for network in networks]
