"""DQN (Mnih et al. 2015), double by default (van Hasselt et al. 2016), with n-step returns; for choices only.

Every agent has a Q network over its own observation and learns independently of the others from the same rows. It plays
the choice of the largest Q value; in rollouts any choice with probability epsilon.
Shape letters: N agents, B batch rows, A action.
"""

from copy import deepcopy

import torch
from torch import Tensor

from shoal.algorithms.base import Phase
from shoal.algorithms.config import LearnConfig
from shoal.algorithms.minibatch import Minibatch
from shoal.algorithms.team import Team
from shoal.envs.base import EnvSpec
from shoal.networks.critics import own_actions, own_observations
from shoal.networks.layout import initial_random


class DQN(Team):
    """Stacked DQN: all agents' Q networks step, then all targets move."""

    losses: tuple[str, ...] = ("q",)
    heads = 0

    def __init__(self, spec: EnvSpec, config: LearnConfig, seed: int, device: torch.device) -> None:
        super().__init__(spec, config, seed, device)
        random = initial_random(seed)
        self.actors = self.new_actors("values", random)  # the Q networks: a choice is the largest of their outputs
        self.target_actors = deepcopy(self.actors).requires_grad_(False)
        self.networks = {"actors": self.actors, "target_actors": self.target_actors}
        self.targets = {"target_actors": "actors"}
        self.optimizers = {"actors": self.new_adam(self.actors)}

    @property
    def exploration(self) -> float:
        """Epsilon: fixed, or on its way down from 1."""
        decay, end = self.config.epsilon_decay, self.config.epsilon
        return end if self.samples >= decay else 1 + (end - 1) * self.samples / decay

    def learn(self, batch: Minibatch, phase: Phase) -> dict[str, Tensor]:
        target = self.target_q(batch, phase)

        phase("Q loss")
        q = self.q_loss(batch, target)
        self.optimizers["actors"].step(q.sum())

        phase("target update")
        self.move_targets()
        return {"q": q.detach()}

    @torch.no_grad()
    def target_q(self, batch: Minibatch, phase: Phase) -> Tensor:
        """(N, B): R + gamma^n Q'(o', a'), where a' is best by the online network (double) or by the target's own."""
        phase("target Q: next action")
        observations = own_observations(batch.next_joint, self.spec)
        values = self.target_actors.masked(self.target_actors(observations))  # (N, B, A)
        chooser = self.actors.masked(self.actors(observations)) if self.config.double else values
        phase("target Q: target Q")
        next_q = values.gather(-1, chooser.argmax(-1, keepdim=True))[..., 0]
        return batch.reward + batch.bootstrap * next_q

    def q_loss(self, batch: Minibatch, target: Tensor) -> Tensor:
        """(N,): Huber loss of the played choices' Q values."""
        values = self.actors(own_observations(batch.joint, self.spec))  # (N, B, A)
        q = (values * own_actions(batch.joint, self.spec)).sum(-1)  # (N, B)
        return batch.mean(torch.nn.functional.huber_loss(q, target, reduction="none"))
