"""MASAC: soft actor-critic with centralised twin critics; SAC where there is one agent.

Choices are soft Gumbel samples with the exact entropy of the categorical policy; boxes are squashed Gaussians whose
entropy is estimated by minus the log-probability of the sample. The temperature is fixed or learned, one per agent.
`variant="tf2"` follows the public TF2 code that the papers' settings match (docs/algorithms.md).
Shape letters: N agents, B batch rows, A action, M mini-batches.
"""

import math
from copy import deepcopy

import torch
from torch import Tensor, nn

from shoal.algorithms.adam import StackedAdam
from shoal.algorithms.base import Phase, target_entropies
from shoal.algorithms.config import LearnConfig
from shoal.algorithms.minibatch import Minibatch, every_observation, put_actions
from shoal.algorithms.team import Team
from shoal.envs.base import EnvSpec
from shoal.networks.actors import Actors
from shoal.networks.critics import own_observations
from shoal.networks.layout import initial_random


class MASAC(Team):
    """Stacked MASAC: all agents' critics step, then all actors, then all targets move once."""

    losses: tuple[str, ...] = ("q", "p", "entropy")
    heads = 2

    def __init__(self, spec: EnvSpec, config: LearnConfig, seed: int, device: torch.device) -> None:
        super().__init__(spec, config, seed, device)
        self.tf2 = config.variant == "tf2"
        random = initial_random(seed)
        self.actors = self.new_actors("categorical" if spec.discrete else "gaussian", random)
        self.critics = self.new_critics(self.heads, random)
        self.target_critics = deepcopy(self.critics).requires_grad_(False)
        self.networks = {"actors": self.actors, "critics": self.critics, "target_critics": self.target_critics}
        self.targets = {"target_critics": "critics"}
        self.optimizers = {"actors": self.new_adam(self.actors), "critics": self.new_adam(self.critics)}
        if self.tf2:
            self.target_actors = deepcopy(self.actors).requires_grad_(False)
            self.networks["target_actors"] = self.target_actors
            self.targets["target_actors"] = "actors"
        if config.learn_entropy:
            start = math.log(max(config.entropy, 1e-8))
            self.log_temperature = nn.Parameter(torch.full((spec.agents, 1), start, device=device))
            self.networks["temperature"] = nn.ParameterDict({"log": self.log_temperature})
            adam = StackedAdam([(self.log_temperature, 0)], config.learning_rate, clip=0, clip_by="variable")
            self.optimizers["temperature"] = adam
            self.target_entropy = torch.tensor(target_entropies(spec, config), device=device)[:, None]  # (N, 1)

    @property
    def rollout_actors(self) -> Actors:
        """The policies that play: the targets in the TF2 variant."""
        return self.target_actors if self.tf2 else self.actors

    def learn(self, batch: Minibatch, phase: Phase) -> dict[str, Tensor]:
        target = self.target_q(batch, phase)

        phase("Q loss")
        q = self.q_loss(batch, target)
        self.optimizers["critics"].step(q.sum())

        phase("P loss")
        p, entropy = self.p_loss(batch)
        self.optimizers["actors"].step(p.sum())
        if self.config.learn_entropy:
            excess = batch.mean(entropy - self.target_entropy)[:, None]  # 0 of an agent that is in no row
            self.optimizers["temperature"].step((self.log_temperature * excess).sum())

        phase("target update")
        self.move_targets()
        return {"q": q.detach(), "p": p.detach(), "entropy": batch.mean(entropy)}

    @torch.no_grad()
    def target_q(self, batch: Minibatch, phase: Phase) -> Tensor:
        """(N, B): r + gamma (min of both Q'(o', a') + temperature * entropy of the agent's own policy at o')."""
        phase("target Q: next action")
        observations = every_observation(batch.next_joint, self.spec)
        if self.tf2:  # the online policy's entropy, and by a broadcast slip its mean over the batch
            actions = self.target_actors.sample(self.target_actors(observations), self.noise)
            head = self.actors(own_observations(batch.next_joint, self.spec))
            exact = self.spec.discrete  # and needs no sample
            entropy = self.actors.entropy(head) if exact else self.actors.sample_with_entropy(head, self.noise)[1]
            entropy = batch.mean(entropy)[:, None]  # (N, 1)
        else:
            actions, entropy = self.actors.sample_with_entropy(self.actors(observations), self.noise)  # (N, M*B)
            if batch.joint.dim() == 3:  # with a mini-batch of its own, an agent's entropy is that of its rows there
                entropy = entropy.unflatten(1, batch.joint.shape[:2]).diagonal(dim1=0, dim2=1).T  # (N, B)
        put_actions(batch.next_joint, actions, batch.next_alive)
        phase("target Q: target Q next")
        next_q = self.target_critics(batch.next_joint).amin(1)  # (N, B)
        phase("target Q: target Q")
        return batch.reward + batch.bootstrap * (next_q + self.temperature * entropy)

    def q_loss(self, batch: Minibatch, target: Tensor) -> Tensor:
        """(N,): mean squared errors of each agent's two critics, added."""
        error = self.critics(batch.joint) - target[:, None]  # (N, 2, B)
        return batch.mean(error.square().sum(1))

    def p_loss(self, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """(N,) losses and (N, B) entropies: minus the value to its critics and the weighted entropy."""
        if self.config.others == "current":
            self.redraw_actions(batch)
        head = self.actors(own_observations(batch.joint, self.spec))
        own, entropy = self.actors.sample_with_entropy(head, self.noise)  # (N, B, A), (N, B)
        q = self.critics.of_own_action(batch.joint, own, self.dense)  # (N, 2, B)
        q = q[:, 0] if self.tf2 else q.amin(1)
        return batch.mean(-q - self.temperature * entropy), entropy.detach()

    @property
    def temperature(self) -> Tensor | float:
        """The weight of the entropy: (N, 1) if it is learned."""
        return self.log_temperature.detach().exp() if self.config.learn_entropy else self.config.entropy
