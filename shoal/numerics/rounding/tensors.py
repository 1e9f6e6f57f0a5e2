"""The rounding loops in plain torch operations: bit-identical to the compiled ones, on any device.

Numbers are processed as float64, which holds float32 exactly. The notation is that of `kernels`, with 52 mantissa
bits and 64-bit integers throughout; the dropped part `delta` has 62 bits after the point.
"""

import torch
from torch import Tensor

from shoal.numerics.rounding.plan import FLOAT64, RoundingPlan
from shoal.numerics.rounding.randomness import Keys, word

MANTISSA = FLOAT64.mantissa
INFINITY = FLOAT64.infinity
MAGNITUDE = 2**63 - 1
SIGN = -(2**63)
POINT = 62
"""Bits of `delta` after the point."""
PIECE = 2**22  # elements processed together, so that temporaries stay small


def round_nearest_or_directed(x: Tensor, plan: RoundingPlan) -> Tensor:
    """x, flat float64, rounded."""
    bits = x.view(torch.int64)
    u, e, sig, below = _take_apart(bits, plan)
    negative = bits < 0
    shift = (below + plan.dropped).clamp(max=60)  # from 55 on, sig is below a quarter of the spacing
    mask = (torch.ones_like(u) << shift) - 1
    tie = ((sig >> shift) | plan.away) & mask & plan.near
    full = torch.where(negative, plan.full_negative, plan.full_positive)
    add = (mask >> 1) * plan.near + tie + mask * full
    k = (sig + add) >> shift
    r = _magnitude(e, k, below, plan)
    gap = torch.where(negative, plan.gap_negative, plan.gap_positive)
    inside = torch.where(u >= gap, plan.smallest, 0)
    r = torch.where(u < plan.smallest, inside, r)
    return _finish(bits, u, r, plan)


def round_stochastically(x: Tensor, plan: RoundingPlan, index: int, keys: Keys, bits: int, variant: int) -> Tensor:
    """x, flat float64, rounded stochastically; arguments as in `kernels.round_stochastically`."""
    pattern = x.view(torch.int64)
    u, e, sig, below = _take_apart(pattern, plan)
    shift = below + plan.dropped
    within = shift.clamp(max=POINT)
    kept, tail = sig >> within, sig & ((torch.ones_like(u) << within) - 1)
    places_down = (shift - POINT).clamp(0, 62)
    delta = (tail << (POINT - within)) >> places_down

    indices = torch.arange(index, index + x.numel(), device=x.device)
    drawn = (word(indices, *keys[:2]) << 30) | (word(indices, *keys[2:]) >> 2)  # 62 bits of the two words
    cut = POINT - bits
    random = (drawn >> cut) << cut
    if variant == 0:
        needed = delta >> cut << cut
    elif variant == 1:
        needed, random = delta >> (cut - 1) << (cut - 1), random + (1 << (cut - 1))
    else:
        exact = delta | ((delta << places_down) != (tail << (POINT - within))).long()
        needed = (exact + ((1 << (cut - 1)) - 1) + ((exact >> cut) & 1)) >> cut << cut
    up = (needed + random >= 1 << POINT).long()
    r = _magnitude(e, kept + up, below, plan)
    if plan.gap_floor > 0:
        r = torch.where((u < plan.gap_floor) | (r < plan.smallest), 0, r)
    elif plan.smallest > 0:
        inside = _chance_in_gap(e, sig, drawn >> cut, plan, bits, variant)
        r = torch.where(u < plan.smallest, inside, r)
    return _finish(pattern, u, r, plan)


def _chance_in_gap(e: Tensor, sig: Tensor, random: Tensor, plan: RoundingPlan, bits: int, variant: int) -> Tensor:
    """As `kernels.up_in_gap`; only valid below the smallest value."""
    places = e - 1074 + bits - plan.gap_exponent
    down = (-places).clamp(0, 62)
    scaled = (sig << places.clamp(0, 62)) >> down
    lost = ((scaled << down) != sig) & (places < 0)
    n = (1 << bits) - random
    needed = 2 * plan.gap_units * (2 * n - int(variant > 0)) + (n & 1 if variant == 2 else 0)
    return torch.where(2 * scaled + lost.long() >= needed, plan.smallest, 0)


def _take_apart(bits: Tensor, plan: RoundingPlan) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Magnitude bits, exponent field, significand, and number of binades below the format's lowest full one."""
    u = bits & MAGNITUDE
    e = (u >> MANTISSA).clamp(min=1)
    sig = u - ((e - 1) << MANTISSA)
    return u, e, sig, (plan.lowest_field - e).clamp(min=0)


def _magnitude(e: Tensor, k: Tensor, below: Tensor, plan: RoundingPlan) -> Tensor:
    """The bits of k spacings."""
    full = (k << plan.dropped) + ((e - 1) << MANTISSA)
    # k·2^lsb, exact, in two steps because 2^lsb itself may be subnormal
    small = (k.double() * 2.0 ** max(plan.lsb, -1000) * 2.0 ** min(plan.lsb + 1000, 0)).view(torch.int64)
    return torch.where(below > 0, small, full)


def _finish(bits: Tensor, u: Tensor, r: Tensor, plan: RoundingPlan) -> Tensor:
    """Overflow, special values and the sign."""
    negative = bits < 0
    over = torch.where(negative, plan.over_negative, plan.over_positive)
    largest = torch.where(negative, plan.max_negative, plan.max_positive)
    infinity = torch.where(negative, plan.infinity_negative, plan.infinity_positive)
    r = torch.where(r > largest, over, r)
    r = torch.where(u == INFINITY, infinity, r)
    unsigned = (r > INFINITY) | (r < 1 - plan.signed_zero)
    r = torch.where(unsigned, r, r | (bits & SIGN))
    return torch.where(u > INFINITY, plan.nan, r).view(torch.float64)
