"""A mini-batch as the update reads it: torch tensors on the learner's device.

Shape letters: N agents, B batch rows, J joint width, M mini-batches (1 shared, or N: one per agent).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.base import outcomes_of, own_columns
from shoal.envs.base import EnvSpec
from shoal.networks.critics import own_observations
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
    next_alive: Tensor | None  # (N, M*B, 1)  whether the agent still acts on the next observation

    def mean(self, values: Tensor) -> Tensor:
        """(N,) mean of values (N, B) over the rows each agent took part in."""
        return values.mean(-1) if self.weight is None else (values * self.weight).sum(-1)


def as_tensors(batch: Batch | Returns, spec: EnvSpec, discount: float, device: torch.device) -> Minibatch:
    """The gathered arrays, without a copy on the CPU."""
    joint, next_joint = torch.from_numpy(batch.joint).to(device), torch.from_numpy(batch.next_joint).to(device)
    outcomes: list[Any] = [
        torch.from_numpy(value).to(device, joint.dtype) if isinstance(value, np.ndarray) else value
        for value in outcomes_of(batch, spec, discount)
    ]
    if len(joint) == 1:
        joint, next_joint = joint[0], next_joint[0]
    return Minibatch(joint, next_joint, torch.from_numpy(own_columns(batch.reward)).to(device), *outcomes)


def every_observation(joint: Tensor, spec: EnvSpec) -> Tensor:
    """(N, M*B, O) view: each agent's observation in every row of every mini-batch."""
    return own_observations(joint.flatten(0, -2), spec)


def put_actions(joint: Tensor, actions: Tensor, alive: Tensor | None) -> None:
    """Write actions (N, M*B, A) into the action columns of `joint`; departed agents act zeros, as in the ring."""
    if alive is not None:
        actions = actions * alive
    width = actions.shape[0] * actions.shape[2]
    rows = joint.view(-1, joint.shape[-1])  # a view, or an error: what is written must arrive
    rows[:, rows.shape[1] - width :].unflatten(-1, (actions.shape[0], actions.shape[2])).copy_(actions.transpose(0, 1))
