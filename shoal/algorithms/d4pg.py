"""D4PG (Barth-Maron et al. 2018): MADDPG whose critics give a distribution of returns, with n-step targets.

With several agents and joint critics it is MAD4PG; D4PG where there is one. A critic's K atoms are evenly spaced
returns from `v_min` to `v_max`, and its outputs are their logits. An update is MADDPG's; what differs is how an output
is discounted, how far it is from its target, and what it is worth. Differences from the paper are in
docs/algorithms.md.
Shape letters: N agents, B batch rows, K atoms.
"""

import torch
from torch import Tensor

from shoal.algorithms.config import LearnConfig
from shoal.algorithms.maddpg import MADDPG
from shoal.algorithms.minibatch import Minibatch
from shoal.envs.base import EnvSpec


class D4PG(MADDPG):
    """Stacked D4PG: all agents' critics step, then all actors, then all targets move."""

    def __init__(self, spec: EnvSpec, config: LearnConfig, seed: int, device: torch.device) -> None:
        super().__init__(spec, config, seed, device)
        self.atoms = torch.linspace(config.v_min, config.v_max, config.atoms, device=device)  # (K,)

    def backed_up(self, next_q: Tensor, batch: Minibatch) -> Tensor:
        """(N, B, K): the distribution of R + gamma^n Z' on the atoms, given the logits of Z'."""
        return project(next_q.softmax(-1), batch.reward, batch.bootstrap, self.config.v_min, self.config.v_max)

    def q_loss(self, batch: Minibatch, target: Tensor) -> Tensor:
        """(N,): cross entropy of the critics' distributions to their targets (N, B, K)."""
        log_probability = self.critics(batch.joint)[:, 0].log_softmax(-1)
        return batch.mean(-(target * log_probability).sum(-1))

    def value(self, q: Tensor) -> Tensor:
        """(N, B): the mean of the distribution with logits (N, B, K)."""
        return (q.softmax(-1) * self.atoms).sum(-1)


def project(probability: Tensor, reward: Tensor, discount: Tensor | float, v_min: float, v_max: float) -> Tensor:
    """(N, B, K): reward + discount · Z on the atoms of Z (Bellemare, Dabney and Munos 2017, algorithm 1).

    `probability` (N, B, K) is that of each atom of Z; reward and discount are (N, B), or one discount for all. Each
    atom's probability goes to the two atoms around where it has moved to, in proportion to how near they are; beyond
    the ends it goes to the end.
    """
    count = probability.shape[-1]
    step = (v_max - v_min) / (count - 1)
    number = torch.arange(count, dtype=probability.dtype, device=probability.device)  # (K,)
    if isinstance(discount, Tensor):
        discount = discount[..., None]
    # in units of the spacing: atom k lies at k, and moves to (reward + discount (v_min + k step) - v_min) / step
    moved = ((reward[..., None] - v_min + discount * v_min) / step + discount * number).clamp_(0, count - 1)
    below = moved.floor()
    share = moved - below  # of the upper one
    lower = below.long()
    upper = (lower + 1).clamp_(max=count - 1)  # at the last atom its share is 0
    projected = torch.zeros_like(probability)
    projected.scatter_add_(-1, lower, probability * (1 - share))
    return projected.scatter_add_(-1, upper, probability * share)
