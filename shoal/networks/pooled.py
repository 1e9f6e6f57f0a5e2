"""Pooled critics: each agent's observation and action are embedded, and the embeddings are averaged.

A critic of many agents has far fewer weights than one that reads the joint input side by side, and what it learns of
one agent holds for all others of its kind (deep sets; the idea of PIC, permutation-invariant critics, Liu et al. 2019).
Critic c of agent i gives

    rest([e_i, mean over all agents j of e_j])    with the embeddings    e_j = relu(x_j W[c, kind] + b[c, kind])

of x_j, agent j's observation and action; each kind of agent has its own W and b. Nothing but x_j identifies an agent.
Shape letters: N agents, M mini-batches (1 shared, or N), C = N * heads critics (critic i*heads + k is head k of agent
i), S critics in the stack (fewer than C where agents share them), K kinds of agents, B batch rows, I observation and
action of an agent, H hidden units.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from shoal.envs.base import EnvSpec, members
from shoal.networks.critics import own_actions, own_observations
from shoal.networks.layout import Random, initial_layers, network_numbers, pooled_widths
from shoal.networks.stacked import LayerQuantizer, StackedMLP, by_member, by_network, parameter


class PooledCritics(nn.Module):
    """One critic (or a pair) per agent over the embeddings of all agents."""

    quantizers: Mapping[int, LayerQuantizer] | None = None
    """What weights and input of the first layer, 0, go through; `rest` has its own for the others."""
    critic_of: Tensor
    """(C,): number in the stack of each agent's critics."""
    kind_of: Tensor
    """(C,): kind of the agent that each is the critic of."""

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        heads: int,
        random: Random,
        atoms: int | None = None,
        shared: bool = False,
    ) -> None:
        """`heads` critics per agent, each with one Q value or with a logit per atom.

        `shared`: agents of one kind have the same critics.
        """
        super().__init__()
        self.spec, self.agents, self.heads, self.atoms = spec, spec.agents, heads, atoms
        embedding, rest = pooled_widths(spec, hidden, heads, atoms or 1, shared)
        of = (network_numbers(spec, shared)[:, None] * heads + np.arange(heads)).ravel()
        first, bias = (array.reshape(len(rest[0]), -1, *array.shape[1:]) for array in initial_layers(embedding, random))
        self.first, self.first_bias = parameter(first), parameter(bias)  # (S, K, I, H), (S, K, 1, H)
        self.rest = StackedMLP(rest, random, of)
        kinds = torch.tensor(spec.kinds)
        self.members = members(spec.kinds)
        self.register_buffer("critic_of", torch.from_numpy(of), persistent=False)
        self.register_buffer("kind_of", kinds.repeat_interleave(heads), persistent=False)

    def forward(self, joint: Tensor) -> Tensor:
        """Q (N, heads, B), or a distribution's logits (N, heads, B, K), of the joint input: (B, J) for all agents
        alike, or (N, B, J), one mini-batch per agent."""
        return self._after_pooling(*self._pooled(joint, self._first_weights(), self.first_bias), frozen=False)

    def of_own_action(self, joint: Tensor, own: Tensor, dense: bool = False) -> Tensor:
        """Q (N, heads, B) where agent i's action in its own critics is own[i] (N, B, A), all else as in `joint`.

        Gradients reach `own` only. `dense` changes nothing here: embeddings are always computed in full.
        """
        with torch.no_grad():
            first, which = self._first_weights(), (self.critic_of, self.kind_of)
            played, mean = self._pooled(joint, first, self.first_bias)
        x = self._input(own_observations(joint, self.spec), own, frozen=True).repeat_interleave(self.heads, 0)
        fresh = torch.baddbmm(self.first_bias.detach()[which], x, first.detach()[which]).relu()  # (C, B, H)
        return self._after_pooling(fresh, mean + (fresh - played) / self.agents, frozen=True)

    def _pooled(self, joint: Tensor, first: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """(C, B, H) the embedding of each critic's own agent, and the mean of all agents'."""
        c = torch.arange(len(self.critic_of), device=joint.device)
        if joint.dim() == 2:
            e = self._embedded(joint, first, bias)  # (S, N, B, H)
            return e[self.critic_of, c // self.heads], by_member(e.mean(1), self.rest.of)
        each = self.critic_of.view(self.agents, self.heads)
        e = torch.cat([self._embedded(x, first[s], bias[s]) for x, s in zip(joint, each, strict=True)])  # (C, N, B, H)
        return e[c, c // self.heads], e.mean(1)

    def _embedded(self, joint: Tensor, first: Tensor, bias: Tensor) -> Tensor:
        """(S, N, B, H) of rows (B, J): what these critics make of every agent."""
        observations, actions = own_observations(joint, self.spec), own_actions(joint, self.spec)
        x = self._input(observations, actions, frozen=not torch.is_grad_enabled())  # (N, B, I)
        weight, bias = first.permute(1, 2, 0, 3).flatten(2), bias.transpose(0, 1).flatten(1)  # (K, I, S*H), (K, S*H)
        e = by_network(x, self.members, weight, bias).relu()  # (N, B, S*H)
        return e.unflatten(2, (len(first), -1)).movedim(2, 0)

    def _first_weights(self) -> Tensor:
        return self.first if self.quantizers is None else self.quantizers[0].weight(self.first)

    def _input(self, observation: Tensor, action: Tensor, frozen: bool) -> Tensor:
        x = torch.cat([observation, action], -1)
        return x if self.quantizers is None else self.quantizers[0].input(x, frozen)

    def _after_pooling(self, own: Tensor, mean: Tensor, frozen: bool) -> Tensor:
        q = self.rest(torch.cat([own, mean], -1), frozen)
        return q.view(self.agents, self.heads, -1) if self.atoms is None else q.unflatten(0, (self.agents, self.heads))

    @property
    def of(self) -> Tensor | None:
        """(C,): which of the S critics in the stack is each of an agent's; None: no two agents share any."""
        return self.rest.of

    def stacked_parameters(self) -> list[tuple[nn.Parameter, int]]:
        """Each parameter with the axis along which the critics are stacked."""
        return [(self.first, 0), (self.first_bias, 0), *self.rest.stacked_parameters()]
