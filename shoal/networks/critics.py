"""The agents' critics, stacked: each sees all observations and all actions.

The joint input of width J is all observations in agent order, then all actions in agent order.
Twin critics are two heads per agent; a critic of a return distribution has a logit per atom in place of one Q value.
The first layer is kept as (J, S, H), so that with one mini-batch
for all agents it is a single (B, J) x (J, S*H) product, and with one per agent a batched product over views.
Shape letters: N agents, C = N * heads critics (critic i*heads + k is head k of agent i), S critics in the stack (fewer
than C where agents share them), B batch rows, H hidden units, K atoms.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from shoal.envs.base import EnvSpec, members
from shoal.errors import UserError
from shoal.networks.layout import Random, critic_widths, initial_layers, network_numbers
from shoal.networks.stacked import LayerQuantizer, StackedMLP, StackedNorm, by_member, by_network, parameter
from shoal.numerics.emulation.roles import emulating


class JointCritics(nn.Module):
    """One critic (or a pair) per agent over the joint observations and actions."""

    quantizers: Mapping[int, LayerQuantizer] | None = None
    """What weights and input of the first layer, 0, go through; `rest` has its own for the others."""
    owner: Tensor
    """(N,): number of each agent's critics, where agents of a kind share theirs the same."""

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        heads: int,
        random: Random,
        atoms: int | None = None,
        layer_norm: bool = False,
        shared: bool = False,
    ) -> None:
        """`heads` critics per agent, each with one Q value or with a logit per atom.

        `layer_norm` normalises the first hidden layer and squashes it by tanh, in place of a ReLU.
        `shared`: critics of agents of one kind share all but their first biases, which tell the agents apart.
        """
        super().__init__()
        self.spec, self.agents, self.heads, self.atoms = spec, spec.agents, heads, atoms
        widths = critic_widths(spec, hidden, heads, atoms or 1, shared)
        number = network_numbers(spec, shared)
        of = (number[:, None] * heads + np.arange(heads)).ravel()
        self.register_buffer("owner", torch.from_numpy(number), persistent=False)
        first, _ = initial_layers(widths[:2], random)
        self.first = parameter(first.swapaxes(0, 1).copy())  # (J, S, H)
        self.first_bias = parameter(np.zeros((len(of), 1, hidden[0]), np.float32))  # (C, 1, H)
        self.rest = StackedMLP(widths[1:], random, of)
        self.norm = StackedNorm(len(widths[0]), hidden[0], of) if layer_norm else None

    def forward(self, joint: Tensor) -> Tensor:
        """Q (N, heads, B), or a distribution's logits (N, heads, B, K), of the joint input: (B, J) for all agents
        alike, or (N, B, J), one mini-batch per agent."""
        return self._forward(joint, frozen=not torch.is_grad_enabled())

    def of_own_action(self, joint: Tensor, own: Tensor, dense: bool = False) -> Tensor:
        """Q (N, heads, B) where agent i's action in its own critics is own[i] (N, B, A), all else as in `joint`.

        Gradients reach `own` only. Agent i's input differs from the joint one in its own action alone, so the
        first layer is computed once and corrected by (own - played) @ W_own[i]. `dense` builds every agent's
        whole input instead: the same numbers up to rounding, and the same bits as a product that is emulated.
        """
        if dense:
            return self._forward(self._replaced(joint, own), frozen=True)
        if emulating():
            raise UserError(
                "Critics that use their first layer again do not give an emulated product's bits; "
                "set first_layer to 'dense'."
            )
        first: Tensor = self.first.detach()
        if self.quantizers is not None:  # number by number: quantized inputs differ in the own action alone, too
            joint, own = self.quantizers[0].input(joint, True), self.quantizers[0].input(own, True)
            first = self.quantizers[0].weight(first)
        z = self._first_layer(joint, first, self.first_bias.detach())  # (C, B, H)
        change = own - own_actions(joint, self.spec)  # (N, B, A)
        if self.heads > 1:
            change = change.repeat_interleave(self.heads, 0)  # (C, B, A)
        return self._after_first(torch.baddbmm(z, change, self._own_weights(first)), frozen=True)

    def _forward(self, joint: Tensor, frozen: bool) -> Tensor:
        """Q of shared rows (B, J), or of rows of each agent's own (N, B, J)."""
        first, bias = (self.first.detach(), self.first_bias.detach()) if frozen else (self.first, self.first_bias)
        if self.quantizers is not None:
            joint, first = self.quantizers[0].input(joint, frozen), self.quantizers[0].weight(first)
        return self._after_first(self._first_layer(joint, first, bias), frozen)

    def _first_layer(self, joint: Tensor, first: Tensor, bias: Tensor) -> Tensor:
        """(C, B, H), before the ReLU."""
        if joint.dim() == 2:
            if self.of is None:
                z = torch.addmm(bias.view(-1), joint, first.flatten(1))  # (B, C*H)
                return z.unflatten(1, first.shape[1:]).transpose(0, 1)
            z = (joint @ first.flatten(1)).unflatten(1, first.shape[1:])  # (B, S, H)
            return by_member(z.transpose(0, 1), self.of) + bias
        by_kind = first.unflatten(1, (-1, self.heads)).flatten(2).transpose(0, 1)  # (S/heads, J, heads*H)
        own = bias.view(self.agents, 1, -1)
        if self.of is None:
            z = torch.baddbmm(own, joint, by_kind)  # (N, B, heads*H)
        else:
            z = own + by_network(joint, members(self.owner.tolist()), by_kind)
        return z.unflatten(2, (self.heads, -1)).transpose(1, 2).flatten(0, 1)

    def _after_first(self, z: Tensor, frozen: bool) -> Tensor:
        """Q of the first layer's product (C, B, H): (N, heads, B), or (N, heads, B, K)."""
        q = self.rest(z.relu() if self.norm is None else self.norm(z, frozen).tanh(), frozen)
        return q.view(self.agents, self.heads, -1) if self.atoms is None else q.unflatten(0, (self.agents, self.heads))

    def _own_weights(self, first: Tensor) -> Tensor:
        """(C, A, H): the first-layer rows that multiply the critic's own agent's action.

        Behind the observations, the rows of `first` are the agents' actions and its columns the agents' critics. Of 3
        agents with 2 choices each, row 2 + 1 is agent 1's second choice, and the blocks that multiply a critic's own
        agent's action are the diagonal ones:

                       critic of 0   critic of 1   critic of 2
            action 0     OWN           other         other        2 rows
            action 1     other         OWN           other        2 rows
            action 2     other         other         OWN          2 rows

        Seen as (agent of the row, A, agent of the critic, heads, H) they are the diagonal of the two agent axes, or
        where a kind of agents shares its critics, each agent's rows of the column of its kind.
        """
        n, actions = self.agents, self.spec.action_size
        blocks = first[n * self.spec.observation_size :].unflatten(0, (n, actions)).unflatten(2, (-1, self.heads))
        own = blocks[torch.arange(n, device=first.device), :, self.owner]  # (N, A, heads, H)
        return own.transpose(1, 2).reshape(n * self.heads, actions, -1)

    def _replaced(self, joint: Tensor, own: Tensor) -> Tensor:
        """(N, B, J): a whole input per agent, with its own action in place of the played one."""
        n, rows = self.agents, joint.shape[-2]
        whole = joint.expand(n, *joint.shape[-2:])
        observations, actions = whole.split([n * self.spec.observation_size, n * self.spec.action_size], -1)
        played = actions.reshape(n, rows, n, -1)
        is_own = torch.eye(n, dtype=torch.bool, device=joint.device)[:, None, :, None]  # (N, 1, N, 1)
        replaced = torch.where(is_own, own[:, :, None, :], played)  # (N, B, N, A)
        return torch.cat([observations, replaced.flatten(2)], -1)

    @property
    def of(self) -> Tensor | None:
        """(C,): which of the S critics in the stack is each of an agent's; None: no two agents share any."""
        return self.rest.of

    def stacked_parameters(self) -> list[tuple[nn.Parameter, int]]:
        """Each parameter with the axis along which the critics are stacked."""
        norm = [] if self.norm is None else self.norm.stacked_parameters()
        return [(self.first, 1), (self.first_bias, 0), *self.rest.stacked_parameters(), *norm]


def own_observations(joint: Tensor, spec: EnvSpec) -> Tensor:
    """(N, B, O) view: what each agent saw, in the shared mini-batch (B, J) or in its own one of (N, B, J)."""
    return _own(joint[..., : spec.agents * spec.observation_size], spec.agents)


def own_actions(joint: Tensor, spec: EnvSpec) -> Tensor:
    """(N, B, A) view: what each agent played, in the shared mini-batch (B, J) or in its own one of (N, B, J)."""
    return _own(joint[..., spec.agents * spec.observation_size :], spec.agents)


def _own(columns: Tensor, agents: int) -> Tensor:
    blocks = columns.unflatten(-1, (agents, -1))
    return blocks.transpose(0, 1) if columns.dim() == 2 else blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
