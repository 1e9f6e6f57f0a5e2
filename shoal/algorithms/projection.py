"""Distributions of returns on fixed atoms: shifted by a reward, shrunk by a discount, and back onto the atoms.

Bellemare, Dabney and Munos (2017), algorithm 1. Shape letters: N agents, B batch rows, K atoms.
"""

import torch
from torch import Tensor


def make_atoms(v_min: float, v_max: float, count: int, device: torch.device) -> Tensor:
    """(K,) returns from `v_min` to `v_max`, evenly spaced."""
    return torch.linspace(v_min, v_max, count, device=device)


def project(probability: Tensor, reward: Tensor, discount: Tensor | float, v_min: float, v_max: float) -> Tensor:
    """The distribution of reward + discount · Z on the atoms of Z.

    Each atom's probability goes to the two atoms around where it has moved to, in proportion to how near they are;
    beyond the ends it goes to the end.

    Args:
        probability: (N, B, K) of each atom of Z.
        reward: (N, B).
        discount: (N, B), or one for all.
        v_min: return of the first atom.
        v_max: return of the last atom.

    Returns:
        (N, B, K).

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
