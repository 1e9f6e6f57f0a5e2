"""D4PG (Barth-Maron et al. 2018): MADDPG whose critics give a distribution of returns, with n-step targets.

With several agents and joint critics it is MAD4PG; D4PG where there is one. A critic's K atoms are evenly spaced
returns from `v_min` to `v_max`, and its outputs are their logits. Choices are MADDPG's Gumbel samples; boxes are a
squashed mean, with Gaussian noise in rollouts only. Differences from the paper are in docs/algorithms.md.
Shape letters: N agents, B batch rows, A action, K atoms.
"""

from copy import deepcopy

import torch
from torch import Tensor

from shoal.algorithms.config import LearnConfig
from shoal.algorithms.minibatch import Minibatch, every_observation, put_actions
from shoal.algorithms.projection import make_atoms, project
from shoal.algorithms.team import Phase, Team
from shoal.envs.base import EnvSpec
from shoal.networks import own_observations
from shoal.seeding import stream_seed


class D4PG(Team):
    """Stacked D4PG: all agents' critics step, then all actors, then all targets move."""

    losses: tuple[str, ...] = ("q", "p")

    def __init__(self, spec: EnvSpec, config: LearnConfig, seed: int, device: torch.device) -> None:
        super().__init__(spec, config, seed, device)
        generator = torch.Generator().manual_seed(stream_seed(seed, "initial weights"))
        self.actors = self.new_actors("categorical" if spec.discrete else "deterministic", generator)
        self.critics = self.new_critics(1, generator)
        self.atoms = make_atoms(config.v_min, config.v_max, config.atoms, device)  # (K,)
        self.target_actors = deepcopy(self.actors).requires_grad_(False)
        self.target_critics = deepcopy(self.critics).requires_grad_(False)
        self.networks = {
            "actors": self.actors,
            "critics": self.critics,
            "target_actors": self.target_actors,
            "target_critics": self.target_critics,
        }
        self.targets = {"target_actors": "actors", "target_critics": "critics"}
        self.descents = {"actors": self.descent(self.actors), "critics": self.descent(self.critics)}

    def learn(self, batch: Minibatch, phase: Phase) -> dict[str, Tensor]:
        """Update all agents once on this mini-batch; returns each agent's losses (N,)."""
        target = self.target_distribution(batch, phase)

        phase("Q loss")
        q = self.q_loss(batch, target)
        self.descents["critics"].step(q.sum())

        phase("P loss")
        p = self.p_loss(batch)
        self.descents["actors"].step(p.sum())

        phase("target update")
        self.move_targets()
        return {"q": q.detach(), "p": p.detach()}

    @torch.no_grad()
    def target_distribution(self, batch: Minibatch, phase: Phase) -> Tensor:
        """(N, B, K): the distribution of R + gamma^n Z'(o', a') on the atoms, with a' of the target policies."""
        phase("target Q: next action")
        head = self.target_actors(every_observation(batch.next_joint, self.spec))
        put_actions(batch.next_joint, self.target_actors.sample(head, self.noise), batch.next_alive)
        phase("target Q: target Q next")
        probability = self.target_critics(batch.next_joint)[:, 0].softmax(-1)  # (N, B, K)
        phase("target Q: target Q")
        return project(probability, batch.reward, batch.bootstrap, self.config.v_min, self.config.v_max)

    def q_loss(self, batch: Minibatch, target: Tensor) -> Tensor:
        """(N,): cross entropy of the critics' distributions to their targets (N, B, K)."""
        log_probability = self.critics(batch.joint)[:, 0].log_softmax(-1)
        return batch.mean(-(target * log_probability).sum(-1))

    def p_loss(self, batch: Minibatch) -> Tensor:
        """(N,): each agent climbs the mean of its own, already updated critic; others' actions are as played."""
        if self.config.others == "current":
            self.redraw_actions(batch)
        head = self.actors(own_observations(batch.joint, self.spec.agents, self.spec.observation_size))
        own = self.actors.sample(head, self.noise)  # (N, B, A)
        probability = self.critics.of_own_action(batch.joint, own, self.dense)[:, 0].softmax(-1)  # (N, B, K)
        q = (probability * self.atoms).sum(-1)  # (N, B)
        return batch.mean(self.config.logit_penalty * self.actors.penalty(head) - q)
