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
from shoal.networks.actors import real_entries

PerNetwork = Sequence[Sequence[Tensor]]
"""Per network its parameters, or tensors of their shapes: weight, bias, weight, bias, …"""


class Stacking:
    """The layout of all agents' networks in the engine's arrays, parameter by parameter."""

    def __init__(self, names: list[str], widths: list[Tensor], first_axis: int) -> None:
        """`widths` (C, I): which entries of each layer are real, from the inputs to the outputs."""
        self.names = names
        self.real: list[Tensor] = []  # (C, I, U) of a weight, (C, 1, U) of a bias
        for before, after in itertools.pairwise(widths):
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
    names = [name for k in range(len(hidden) + 1) for name in (f"weights.{k}", f"biases.{k}")]
    inputs = real_entries(spec.observation_sizes, spec.observation_size)  # (N, O)
    outputs = real_entries(spec.action_sizes, spec.action_size)  # (N, A)
    return Stacking(names, [inputs, *_full(spec.agents, hidden), outputs], first_axis=0)


def critic_stacking(spec: EnvSpec, hidden: Sequence[int], heads: int) -> Stacking:
    """`heads` critics per agent, all heads of the first agent first."""
    rest = [name for k in range(len(hidden)) for name in (f"rest.weights.{k}", f"rest.biases.{k}")]
    observations = real_entries(spec.observation_sizes, spec.observation_size).flatten()
    joint = torch.cat([observations, real_entries(spec.action_sizes, spec.action_size).flatten()])  # (J,)
    critics = spec.agents * heads
    inputs = joint.expand(critics, -1)
    return Stacking(["first", "first_bias", *rest], [inputs, *_full(critics, [*hidden, 1])], first_axis=1)


def _turned(parameter: Tensor) -> Tensor:
    """(out, in) to (in, out) and back; biases are unchanged."""
    return parameter.mT if parameter.dim() == 2 else parameter


def _full(networks: int, widths: Sequence[int]) -> list[Tensor]:
    return [torch.ones(networks, width, dtype=torch.bool) for width in widths]


def parameters(networks: Sequence[nn.Sequential]) -> list[list[Tensor]]:
    """Each network's parameters."""
    return [list(network.parameters()) for network in networks]
