"""S2FP8's shift and squeeze: a tensor's magnitudes are moved and compressed, on a logarithmic scale, into a format's
range before they are rounded, and back afterwards.

Y = sign(X)·2^β·|X|^α with μ and M the mean and the largest of log2|X| over the nonzero numbers, α = t/(M - μ) and
β = -α·μ, where 2^t is the top binade of the format (t = 15 for E5M2): the mean goes to 1, the largest to 2^t. If all
magnitudes are the same, α is 1. All of it is float32 arithmetic of torch.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from shoal.numerics.formats.types import Scalar


def squeeze(
    x: Tensor, round: Callable[[Tensor], Tensor], format: Scalar, count: Callable[[Tensor, Tensor], None]
) -> Tensor:
    """x squeezed, rounded and expanded again; numbers that are not finite stay as they are."""
    x = x.contiguous()  # the last bits of torch's logarithms depend on the place in memory
    usable = x.isfinite() & (x != 0)
    logarithm = torch.log2(x.abs())
    chosen = logarithm[usable] if bool(usable.any()) else torch.zeros(1)
    mean, largest = chosen.mean(), chosen.max()
    alpha = format.highest_exponent / (largest - mean) if bool(largest > mean) else torch.ones(())
    beta = -alpha * mean
    squeezed = torch.where(usable, torch.sign(x) * torch.exp2(alpha * logarithm + beta), x)
    rounded = round(squeezed)
    count(squeezed, rounded)
    expanded = torch.sign(rounded) * torch.exp2((torch.log2(rounded.abs()) - beta) / alpha)
    return torch.where(usable & (rounded != 0), expanded, torch.where(usable, rounded, x))
