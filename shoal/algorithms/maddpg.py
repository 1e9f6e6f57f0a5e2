"""MADDPG (Lowe et al. 2017): one actor and one centralised critic per agent; DDPG with one agent.

An update of all agents, in the papers' words: mini-batch sampling, target Q, Q loss, P loss, target update.
Choices are soft Gumbel samples at temperature 1 in rollouts, targets and the actors' loss; boxes are a squashed
mean, with Gaussian noise in rollouts only. Differences from openai/maddpg are in docs/algorithms.md.
Shape letters: N agents, B batch rows, A action.
"""

from copy import deepcopy

import torch
from torch import Tensor

from shoal.algorithms.base import Phase
from shoal.algorithms.config import LearnConfig
from shoal.algorithms.minibatch import Minibatch, every_observation, put_actions
from shoal.algorithms.team import Team
from shoal.envs.base import EnvSpec
from shoal.networks.critics import own_observations
from shoal.networks.layout import initial_random


class MADDPG(Team):
    """Stacked MADDPG: all agents' critics step, then all actors, then all targets move once."""

    losses: tuple[str, ...] = ("q", "p")

    def __init__(self, spec: EnvSpec, config: LearnConfig, seed: int, device: torch.device) -> None:
        super().__init__(spec, config, seed, device)
        random = initial_random(seed)
        self.actors = self.new_actors("categorical" if spec.discrete else "deterministic", random)
        self.critics = self.new_critics(self.heads, random)
        self.target_actors = deepcopy(self.actors).requires_grad_(False)
        self.target_critics = deepcopy(self.critics).requires_grad_(False)
        self.networks = {"actors": self.actors, "critics": self.critics}
        self.networks |= {"target_actors": self.target_actors, "target_critics": self.target_critics}
        self.targets = {"target_actors": "actors", "target_critics": "critics"}
        self.optimizers = {"actors": self.new_adam(self.actors), "critics": self.new_adam(self.critics)}

    def learn(self, batch: Minibatch, phase: Phase) -> dict[str, Tensor]:
        target = self.target_q(batch, phase)

        phase("Q loss")
        q = self.q_loss(batch, target)
        self.optimizers["critics"].step(q.sum())

        phase("P loss")
        p = self.p_loss(batch)
        self.optimizers["actors"].step(p.sum())

        phase("target update")
        self.move_targets()
        return {"q": q.detach(), "p": p.detach()}

    @torch.no_grad()
    def target_q(self, batch: Minibatch, phase: Phase) -> Tensor:
        """(N, B): r + gamma Q'(o', a') with a' of the target policies; a true end has no future, a time limit has."""
        phase("target Q: next action")
        head = self.target_actors(every_observation(batch.next_joint, self.spec))
        put_actions(batch.next_joint, self.target_actors.sample(head, self.noise), batch.next_alive)
        phase("target Q: target Q next")
        next_q = self.target_critics(batch.next_joint)[:, 0]  # (N, B)
        phase("target Q: target Q")
        return self.backed_up(next_q, batch)

    def backed_up(self, next_q: Tensor, batch: Minibatch) -> Tensor:
        """(N, B): what the critics' output for the next step is worth now."""
        return batch.reward + batch.bootstrap * next_q

    def q_loss(self, batch: Minibatch, target: Tensor) -> Tensor:
        """(N,): mean squared error of each agent's critics, summed over its heads."""
        error = self.critics(batch.joint) - target[:, None]  # (N, heads, B)
        return batch.mean(error.square().sum(1))

    def p_loss(self, batch: Minibatch) -> Tensor:
        """(N,): minus each fresh action's value to its agent's updated critic; others' actions are as played."""
        if self.config.others == "current":
            self.redraw_actions(batch)
        head = self.actors(own_observations(batch.joint, self.spec))
        own = self.actors.sample(head, self.noise)  # (N, B, A)
        q = self.value(self.critics.of_own_action(batch.joint, own, self.dense)[:, 0])  # (N, B)
        return batch.mean(self.config.logit_penalty * self.actors.penalty(head) - q)

    def value(self, q: Tensor) -> Tensor:
        """(N, B): the expected return that the critics' output stands for."""
        return q
