"""Products of matrices whose blocks have powers of two of their own (block floating point, block minifloats).

Blocks of the first operand run along its rows, which is along the sum; those of the second along its columns. Where
blocks are whole rows, their powers of two come out of the sum. Otherwise the sum is cut into runs of the blocks'
width: each run goes through the unit by itself, and the runs' sums are added up in float32.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from shoal.numerics.rounding.blocks import scale_by_powers

Rounder = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A matrix (…, R, K) as element values and the exponent of each."""
Multiply = Callable[[Tensor, Tensor], Tensor]
NORMAL = 126
"""Powers of two up to this exponent, and down to its negative, are normal float32 numbers."""


def multiply_blocks(
    a: Tensor, b: Tensor, round_a: Rounder | None, round_b: Rounder | None, through: Multiply, run: int | None = None
) -> Tensor:
    """(…, M, K) × (…, K, N); an operand without a rounder has no powers of two. `run`: width of a block, None: all."""
    if not (a.numel() and b.numel()):
        return through(a, b)  # zeros, or nothing
    first, powers_a = _rounded(a, round_a)
    second, powers_b = _rounded(b.mT, round_b)  # (…, N, K)
    depth = a.shape[-1]
    if run is None or run >= depth:
        return scaled(through(first, second.mT), powers_a[..., :1] + powers_b[..., :1].mT)
    cut = [_runs(t, run) for t in (first, second)]  # (runs, …, M, run) and (runs, …, N, run)
    power_a, power_b = (_runs(t, run)[..., :1] for t in (powers_a, powers_b))
    sums = through(cut[0], cut[1].mT)  # (runs, …, M, N)
    return scaled(sums, power_a + power_b.mT).sum(0)


def scaled(x: Tensor, exponents: Tensor) -> Tensor:
    """x·2^exponents, rounded once to float32."""
    if exponents.dim() and exponents.stride(-1) == 0:
        exponents = exponents[..., :1]  # the same for a whole row
    if exponents.numel() and int(exponents.abs().max()) <= NORMAL:
        return x * ((exponents.to(torch.int32) + 127) << 23).view(torch.float32)
    return scale_by_powers(x.double(), exponents.to(torch.int64)).float()


def _rounded(x: Tensor, rounder: Rounder | None) -> tuple[Tensor, Tensor]:
    return (x, torch.zeros_like(x, dtype=torch.int64)) if rounder is None else rounder(x.contiguous())


def _runs(x: Tensor, run: int) -> Tensor:
    """(runs, …, R, run) of (…, R, K), the last run filled up with zeros."""
    whole = pad(x, (0, -x.shape[-1] % run))
    return whole.unflatten(-1, (-1, run)).movedim(-2, 0)
