"""MADDPG, one agent after the other: each has one actor, and one critic over all observations and actions."""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.algorithms.base import Phase
from shoal.networks import NoiseSource
from shoal_papers.reference.agent import Agent, AgentBatch
from shoal_papers.reference.networks import gumbel


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
