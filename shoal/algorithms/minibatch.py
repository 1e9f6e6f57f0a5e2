"""A mini-batch as the update reads it: torch tensors on the learner's device.

Shape letters: N agents, B batch rows, J joint width, M mini-batches (1 shared, or N: one per agent).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.envs.base import EnvSpec
from shoal.networks import own_observations
from shoal.replay import Batch, Returns


@dataclass(frozen=True)
class Minibatch:
    """What the agents saw and did, and what came of it after one step or several.

    The update writes next and redrawn actions into it.
    `joint` and `next_joint` are (B, J) where all agents share one mini-batch, (N, B, J) where each has its own.
    """

    joint: Tensor  # all observations, then all actions as played
    next_joint: Tensor  # all next observations, then room for the next actions
    reward: Tensor  # (N, B)  agent i's own reward, in its own mini-batch
    bootstrap: Tensor | float  # (N, B)  gamma^steps, or 0 where the agent reached a true end; (1, B) if none can
    weight: Tensor | None  # (N, B)  for means over the rows an agent took part in; None: it took part in all
    alive: Tensor | None  # (N, M*B, 1)  who was there, in every mini-batch; None: always everyone
    next_alive: Tensor | None  # (N, M*B, 1)  who is there to act on the next observation

    def mean(self, values: Tensor) -> Tensor:
        """(N,) mean of values (N, B) over the rows each agent took part in."""
        return values.mean(-1) if self.weight is None else (values * self.weight).sum(-1)


def as_tensors(batch: Batch | Returns, spec: EnvSpec, discount: float, device: torch.device) -> Minibatch:
    """The gathered arrays, without a copy on the CPU."""
    joint, next_joint = torch.from_numpy(batch.joint).to(device), torch.from_numpy(batch.next_joint).to(device)
    bootstrap: Tensor | float = discount
    if isinstance(batch, Returns):
        bootstrap = torch.from_numpy(discount**batch.steps).to(device, joint.dtype)  # (M, B)
    weight = alive = next_alive = None
    if not spec.fixed_length:  # somebody may have ended or left early
        there, ended = torch.from_numpy(batch.alive).to(device), torch.from_numpy(batch.terminated).to(device)
        bootstrap = bootstrap * (~_own_column(ended)).to(joint.dtype)
        weight = _own_column(there).to(joint.dtype)
        weight = weight / weight.sum(-1, keepdim=True).clamp_min(1)
        alive = there.flatten(0, 1).T[..., None].to(joint.dtype)
        stays = torch.from_numpy(batch.next_alive).to(device) if isinstance(batch, Returns) else there & ~ended
        next_alive = stays.flatten(0, 1).T[..., None].to(joint.dtype)
    reward = _own_column(torch.from_numpy(batch.reward).to(device))
    if len(joint) == 1:
        joint, next_joint = joint[0], next_joint[0]
    return Minibatch(joint, next_joint, reward, bootstrap, weight, alive, next_alive)


def every_observation(joint: Tensor, spec: EnvSpec) -> Tensor:
    """(N, M*B, O) view: each agent's observation in every row of every mini-batch."""
    return own_observations(joint.flatten(0, -2), spec.agents, spec.observation_size)


def put_actions(joint: Tensor, actions: Tensor, alive: Tensor | None) -> None:
    """Write actions (N, M*B, A) into the action columns of `joint`; who is not there plays zeros, as in the ring."""
    if alive is not None:
        actions = actions * alive
    width = actions.shape[0] * actions.shape[2]
    rows = joint.view(-1, joint.shape[-1])  # a view, or an error: what is written must arrive
    rows[:, rows.shape[1] - width :].unflatten(-1, (actions.shape[0], actions.shape[2])).copy_(actions.transpose(0, 1))


def _own_column(columns: Tensor) -> Tensor:
    """(N, B) of (M, B, N): agent i's own column, in the shared mini-batch or in its own."""
    return columns[0].T if len(columns) == 1 else columns.diagonal(dim1=0, dim2=2).T
