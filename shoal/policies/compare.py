"""How far apart two policies' actions and distributions are."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from shoal.envs.base import EnvSpec
from shoal.policies.trained import Array

CLOSE = 0.01
"""Boxes count as equal where every entry is within this share of the box's width."""


def equal_actions(actions: Array, others: Array, spec: EnvSpec) -> NDArray[np.bool_]:
    """(B, N): the same choice, or within a hundredth of the box's width in every entry."""
    if spec.action_low is None or spec.action_high is None:
        return actions.argmax(-1) == others.argmax(-1)
    return (np.abs(actions - others) <= CLOSE * (spec.action_high - spec.action_low)).all(-1)


def choices_kl(logits: Tensor, others: Tensor) -> Tensor:
    """KL of the categorical distributions of these logits (…, A), from the first to the second."""
    log_p, log_q = logits.double().log_softmax(-1), others.double().log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def gaussians_kl(mean: Tensor, deviation: Tensor, other_mean: Tensor, other_deviation: Tensor) -> Tensor:
    """KL of one-dimensional Gaussians, entry by entry, from the first to the second."""
    mean, deviation, other_mean, other_deviation = (
        value.double() for value in (mean, deviation, other_mean, other_deviation)
    )
    ratio = deviation / other_deviation
    return 0.5 * (ratio.square() + ((mean - other_mean) / other_deviation).square() - 1) - ratio.log()
