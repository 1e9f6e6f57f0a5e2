"""MASAC: soft actor-critic with centralised twin critics; SAC where there is one agent.

Choices are soft Gumbel samples with the exact entropy of the categorical policy; boxes are squashed Gaussians whose
entropy is estimated by minus the log-probability of the sample. The temperature is fixed or learned, one per agent.
`variant="tf2"` follows the public TF2 code that the papers' settings match (docs/algorithms.md).
Shape letters: N agents, B batch rows, A action.
"""

import math
from copy import deepcopy

import torch
from torch import Tensor, nn

from shoal.algorithms.adam import StackedAdam
from shoal.algorithms.base import Phase, target_entropies
from shoal.algorithms.config import LearnConfig
from shoal.algorithms.minibatch import Minibatch, every_observation, put_actions
from shoal.algorithms.team import Team, q_loss
from shoal.envs.base import EnvSpec
from shoal.networks import Actors, own_observations
from shoal.networks.layout import initial_random


class Temperature(nn.Module):
    """Each agent's weight of the entropy, as its logarithm."""

    def __init__(self, agents: int, value: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.full((agents, 1), math.log(max(value, 1e-8))))


class MASAC(Team):
    """Stacked MASAC: all agents' critics step, then all actors, then all targets move once."""

    losses: tuple[str, ...] = ("q", "p", "entropy")

    def __init__(self, spec: EnvSpec, config: LearnConfig, seed: int, device: torch.device) -> None:
        super().__init__(spec, config, seed, device)
        self.tf2 = config.variant == "tf2"
        random = initial_random(seed)
        self.actors = self.new_actors("categorical" if spec.discrete else "gaussian", random)
        self.critics = self.new_critics(2, random)
        self.target_critics = deepcopy(self.critics).requires_grad_(False)
        self.networks = {"actors": self.actors, "critics": self.critics, "target_critics": self.target_critics}
        self.targets = {"target_critics": "critics"}
        self.optimizers = {"actors": self.new_adam(self.actors), "critics": self.new_adam(self.critics)}
        if self.tf2:
            self.target_actors = deepcopy(self.actors).requires_grad_(False)
            self.networks["target_actors"] = self.target_actors
            self.targets["target_actors"] = "actors"
        if config.learn_entropy:
            self.temperature = Temperature(spec.agents, config.entropy).to(device)
            self.networks["temperature"] = self.temperature
            self.optimizers["temperature"] = StackedAdam(
                [(self.temperature.log, 0)], config.learning_rate, 0, "variable"
            )
            self.target_entropy = torch.tensor(target_entropies(spec, config))[:, None]
            self.target_entropy = self.target_entropy.to(device)

    @property
    def rollout_actors(self) -> Actors:
        """The policies that play: the targets in the TF2 variant."""
        return self.target_actors if self.tf2 else self.actors

    def learn(self, batch: Minibatch, phase: Phase) -> dict[str, Tensor]:
        """Update all agents once on this mini-batch; returns each agent's losses (N,)."""
        target = self.target_q(batch, phase)

        phase("Q loss")
        q = q_loss(self.critics, batch, target)
        self.optimizers["critics"].step(q.sum())

        phase("P loss")
        p, entropy = self.p_loss(batch)
        self.optimizers["actors"].step(p.sum())
        if self.config.learn_entropy:
            excess = batch.mean(entropy - self.target_entropy)[:, None]  # 0 of an agent that is in no row
            self.optimizers["temperature"].step((self.temperature.log * excess).sum())

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
            own = own_observations(batch.next_joint, self.spec.agents, self.spec.observation_size)
            entropy = batch.mean(self._online_entropy(own))[:, None]  # (N, 1)
        else:
            actions, entropy = self.actors.sample_with_entropy(self.actors(observations), self.noise)
            entropy = self._own_rows(entropy, batch)  # (N, B)
        put_actions(batch.next_joint, actions, batch.next_alive)
        phase("target Q: target Q next")
        next_q = self.target_critics(batch.next_joint).amin(1)  # (N, B)
        phase("target Q: target Q")
        return batch.reward + batch.bootstrap * (next_q + self._alpha() * entropy)

    def p_loss(self, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """(N,) losses and (N, B) entropies: minus the value to its critics and the weighted entropy."""
        if self.config.others == "current":
            self.redraw_actions(batch)
        head = self.actors(own_observations(batch.joint, self.spec.agents, self.spec.observation_size))
        own, entropy = self.actors.sample_with_entropy(head, self.noise)  # (N, B, A), (N, B)
        q = self.critics.of_own_action(batch.joint, own, self.dense)  # (N, 2, B)
        q = q[:, 0] if self.tf2 else q.amin(1)
        return batch.mean(-q - self._alpha() * entropy), entropy.detach()

    def _alpha(self) -> Tensor | float:
        return self.temperature.log.detach().exp() if self.config.learn_entropy else self.config.entropy

    def _online_entropy(self, observation: Tensor) -> Tensor:
        """(N, B): exact for choices, which need no sample; boxes need one."""
        head = self.actors(observation)
        if self.spec.discrete:
            return self.actors.entropy(head)
        return self.actors.sample_with_entropy(head, self.noise)[1]

    def _own_rows(self, values: Tensor, batch: Minibatch) -> Tensor:
        """(N, B) of values (N, M*B): agent i's in the shared mini-batch or in its own."""
        if batch.joint.dim() == 2:
            return values
        return values.unflatten(1, batch.joint.shape[:2]).diagonal(dim1=0, dim2=1).T
