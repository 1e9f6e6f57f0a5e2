"""MADDPG and MASAC, one agent after the other: each has one actor, and critics over all observations and actions."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shoal.algorithms.base import Phase
from shoal.networks.actors import NoiseSource
from shoal_papers.reference.agent import Agent, AgentBatch, entropy, gumbel


class MADDPGAgent(Agent):
    """Target policies choose the next actions; the actor maximises its critic, with a penalty on its logits."""

    critic_count = 1
    losses = ("q", "p")

    def target_q(self, agents: Sequence[Agent], batch: AgentBatch, noise: NoiseSource, phase: Phase) -> Tensor:
        """(B,): r + gamma Q'(o', a') with a' from every agent's target policy, sampled again for this agent."""
        phase("target Q: next action")
        next_actions = [
            gumbel(agent.target_actor(observation), noise)
            for agent, observation in zip(agents, batch.next_observations, strict=True)
        ]
        phase("target Q: target Q next")
        next_q = self.target_critics[0](torch.cat([*batch.next_observations, *next_actions], 1))[:, 0]
        phase("target Q: target Q")
        return batch.reward + self.config.discount * (1 - batch.done) * next_q

    def p_loss(self, batch: AgentBatch, noise: NoiseSource) -> tuple[Tensor, dict[str, Tensor]]:
        """Minus Q of a newly sampled own action, plus the logit penalty."""
        logits = self.actor(batch.observations[self.number])
        q = self.critics[0](self.with_own_action(batch, gumbel(logits, noise)))
        return self.config.logit_penalty * logits.square().mean() - q.mean(), {}


class MASACAgent(Agent):
    """Twin critics, of which the smaller counts, and an entropy bonus with a fixed temperature.

    `variant="tf2"` follows the public TF2 code that the papers' settings match: target policies choose the next actions
    and act, the entropy in the target is the batch's mean, and the actor maximises the first critic only.
    """

    critic_count = 2
    losses = ("q", "p", "entropy")

    @property
    def tf2(self) -> bool:
        """Whether to follow the public TF2 code."""
        return self.config.variant == "tf2"

    @property
    def uses_target_actor(self) -> bool:
        """Only in the TF2 variant."""
        return self.tf2

    @property
    def rollout_actor(self) -> nn.Sequential:
        """The policy that acts in rollouts and chooses next actions."""
        return self.target_actor if self.tf2 else self.actor

    def target_q(self, agents: Sequence[Agent], batch: AgentBatch, noise: NoiseSource, phase: Phase) -> Tensor:
        """(B,): r + gamma (min of both Q'(o', a') + temperature * entropy of the agent's online policy at o')."""
        phase("target Q: next action")
        next_actions = [
            gumbel(agent.rollout_actor(observation), noise)
            for agent, observation in zip(agents, batch.next_observations, strict=True)
        ]
        phase("target Q: target Q next")
        joint = torch.cat([*batch.next_observations, *next_actions], 1)
        next_q = torch.minimum(*(critic(joint)[:, 0] for critic in self.target_critics))
        phase("target Q: target Q")
        undecided = entropy(self.actor(batch.next_observations[self.number]))  # (B,)
        bonus = self.config.entropy * (undecided.mean() if self.tf2 else undecided)
        return batch.reward + self.config.discount * (1 - batch.done) * (next_q + bonus)

    def p_loss(self, batch: AgentBatch, noise: NoiseSource) -> tuple[Tensor, dict[str, Tensor]]:
        """Minus Q of a newly sampled own action, minus the entropy bonus."""
        logits = self.actor(batch.observations[self.number])
        joint = self.with_own_action(batch, gumbel(logits, noise))
        first = self.critics[0](joint)[:, 0]
        q = first if self.tf2 else torch.minimum(first, self.critics[1](joint)[:, 0])
        undecided = entropy(logits).mean()
        return -q.mean() - self.config.entropy * undecided, {"entropy": undecided.detach()}
