"""One agent's part of an update: its own mini-batch, target Q, Q loss, P loss and target networks.

As in the code that the papers measured, the agent draws its own index list, gathers every agent's transitions for
it and its own once more, and calls every agent's target policy: N (N + 1) gathers and N² policy calls in a round.
Like the engine, and unlike that code, target networks start as copies.
Shape letters: N agents, B batch rows, O observation, A action.
"""

import itertools
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from shoal.algorithms.base import Phase
from shoal.algorithms.config import LearnConfig
from shoal.envs.base import EnvSpec
from shoal.networks.actors import NoiseSource
from shoal.networks.layout import Random, xavier
from shoal_papers.reference.replay import ListSampler, Replays


class AgentBatch(NamedTuple):
    """All agents' observations and actions, and the rewards of the agent that learns from them."""

    observations: list[Tensor]  # N of (B, O)
    actions: list[Tensor]  # N of (B, A)
    next_observations: list[Tensor]  # N of (B, O)
    reward: Tensor  # (B,)
    done: Tensor  # (B,)


class Agent:
    """An agent's networks and optimizers; subclasses define the target Q and the P loss."""

    critic_count: int
    losses: tuple[str, ...]
    """Names of the losses that `update` returns."""

    def __init__(self, number: int, spec: EnvSpec, config: LearnConfig, device: torch.device) -> None:
        self.number, self.config, self.device = number, config, device
        joint = sum(spec.observation_sizes) + sum(spec.action_sizes)
        self.actor = mlp(spec.observation_sizes[number], config.hidden, spec.action_sizes[number]).to(device)
        self.critics = [mlp(joint, config.hidden, 1).to(device) for _ in range(self.critic_count)]
        self.copy_targets()
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), config.learning_rate)
        self.critic_adams = [torch.optim.Adam(critic.parameters(), config.learning_rate) for critic in self.critics]

    def copy_targets(self) -> None:
        """Initialise the targets as copies of the online networks."""
        self.target_actor = deepcopy(self.actor).requires_grad_(False)
        self.target_critics = [deepcopy(critic).requires_grad_(False) for critic in self.critics]

    @property
    def uses_target_actor(self) -> bool:
        """Whether next actions come from a target policy."""
        return True

    @property
    def rollout_actor(self) -> nn.Sequential:
        """The policy that acts in rollouts."""
        return self.actor

    def update(
        self,
        agents: "Sequence[Agent]",
        replays: Replays,
        sampler: ListSampler,
        rng: np.random.Generator,
        noise: NoiseSource,
        phase: Phase,
    ) -> dict[str, Tensor]:
        """Update this agent once; returns its losses."""
        batch = self.sample_minibatch(replays, sampler, rng, phase)
        losses = self.update_critics(agents, batch, noise, phase)
        losses |= self.update_actor(batch, noise, phase)
        self.update_targets(phase)
        return losses

    def sample_minibatch(
        self, replays: Replays, sampler: ListSampler, rng: np.random.Generator, phase: Phase
    ) -> AgentBatch:
        """Draw an index list and gather every agent's transitions for it, then this agent's again."""
        phase("mini-batch sampling")
        indices = sampler.indices(replays, self.config.batch, rng)
        parts = [sampler.gather(buffer, indices) for buffer in replays.agents]
        own = sampler.gather(replays.agents[self.number], indices)  # as in the measured code, for reward and done only
        return AgentBatch(
            [self._tensor(part.obs_t) for part in parts],
            [self._tensor(part.actions) for part in parts],
            [self._tensor(part.obs_tp1) for part in parts],
            self._tensor(own.rewards),
            self._tensor(own.dones),
        )

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def update_critics(
        self, agents: "Sequence[Agent]", batch: AgentBatch, noise: NoiseSource, phase: Phase
    ) -> dict[str, Tensor]:
        """One step of each critic towards the target Q; the loss is the sum of their mean squared errors."""
        with torch.no_grad():
            target = self.target_q(agents, batch, noise, phase)  # (B,)
        phase("Q loss")
        joint = torch.cat([*batch.observations, *batch.actions], 1)
        total = torch.zeros((), device=self.device)
        for critic, adam in zip(self.critics, self.critic_adams, strict=True):
            loss = (critic(joint)[:, 0] - target).square().mean()
            self.descend(loss, critic, adam)
            total += loss.detach()
        return {"q": total}

    def target_q(self, agents: "Sequence[Agent]", batch: AgentBatch, noise: NoiseSource, phase: Phase) -> Tensor:
        """(B,) the target of the critics; reports its three phases to the clock."""
        raise NotImplementedError

    def update_actor(self, batch: AgentBatch, noise: NoiseSource, phase: Phase) -> dict[str, Tensor]:
        """One gradient step of the actor on its own, already updated critic."""
        phase("P loss")
        loss, more = self.p_loss(batch, noise)
        self.descend(loss, self.actor, self.actor_adam)
        return {"p": loss.detach(), **more}

    def p_loss(self, batch: AgentBatch, noise: NoiseSource) -> tuple[Tensor, dict[str, Tensor]]:
        """The actor's loss, and other values to log."""
        raise NotImplementedError

    def with_own_action(self, batch: AgentBatch, own: Tensor) -> Tensor:
        """(B, J) the joint input with a new action of this agent; the other agents' come from the replay buffer."""
        actions = [own if j == self.number else played for j, played in enumerate(batch.actions)]
        return torch.cat([*batch.observations, *actions], 1)

    def descend(self, loss: Tensor, network: nn.Sequential, adam: torch.optim.Adam) -> None:
        """One optimizer step with clipped gradients."""
        parameters = list(network.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        if self.config.clip > 0:
            groups = [[gradient] for gradient in gradients] if self.config.clip_by == "variable" else [gradients]
            for group in groups:
                clip(group, self.config.clip)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        adam.step()

    def update_targets(self, phase: Phase) -> None:
        """Soft update of the target networks."""
        phase("target update")
        if self.uses_target_actor:
            follow(self.target_actor, self.actor, self.config.tau)
        for target, critic in zip(self.target_critics, self.critics, strict=True):
            follow(target, critic, self.config.tau)


def clip(gradients: Iterable[Tensor], limit: float) -> None:
    """Clip the joint norm of the gradients to `limit`."""
    gradients = list(gradients)
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    for gradient in gradients:
        gradient.mul_(limit / norm.clamp_min(limit))


@torch.no_grad()
def follow(target: nn.Sequential, online: nn.Sequential, tau: float) -> None:
    """target <- (1 - tau) target + tau online."""
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.lerp_(fast, tau)


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise([inputs, *hidden, outputs]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@torch.no_grad()
def start(networks: Sequence[nn.Sequential], random: Random) -> None:
    """Xavier-uniform weights and zero biases, drawn layer by layer like the engine's: one seed, same weights."""
    for parameters in zip(*(network.parameters() for network in networks), strict=True):
        for parameter in parameters:
            if parameter.dim() == 1:
                parameter.zero_()
            else:
                real_out, real_in = (np.ones(size, bool) for size in parameter.shape)
                parameter.copy_(torch.from_numpy(xavier(real_in, real_out, random)).T)


def gumbel(logits: Tensor, noise: NoiseSource) -> Tensor:
    """(B, A) a Gumbel-softmax sample, temperature 1."""
    return torch.softmax(logits + noise("gumbel", tuple(logits.shape)), -1)


def entropy(logits: Tensor) -> Tensor:
    """(B,) exact entropy of the categorical distribution."""
    log_probability = torch.log_softmax(logits, -1)
    return -(log_probability.exp() * log_probability).sum(-1)
