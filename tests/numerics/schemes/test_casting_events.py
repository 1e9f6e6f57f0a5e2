"""Counts of what rounding did, against a loop."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.numerics import quantize
from shoal.numerics.schemes.casting import ALONE, count_events
from tests.numerics.numbers import around, float32_patterns, scalar


def plainly(x: Tensor, y: Tensor, highest: float, lowest: float) -> tuple[int, int, int]:
    saturated = overflowed = underflowed = 0
    for before, after in zip(x.double().reshape(-1).tolist(), y.double().reshape(-1).tolist(), strict=True):
        if math.isfinite(before):
            saturated += (before > after and after >= highest) or (before < after and after <= lowest)
            overflowed += not math.isfinite(after)
        underflowed += before != 0 and after == 0
    return saturated, overflowed, underflowed


@pytest.mark.parametrize("name", ["E5M2", "E4M3FN", "E2M1F", "Q8.13", "bf16", "E5M2:5"])
@pytest.mark.parametrize("overflow", [None, "saturate"])
def test_event_counts(name: str, overflow: str | None) -> None:
    format = scalar(name)
    x = torch.from_numpy(np.concatenate([float32_patterns()[::7], around(format)]))
    x = x[~x.isnan()]
    y = quantize(x, format, overflow=overflow)
    got = count_events(x, y, format.max, format.min)
    assert got == plainly(x, y, format.max, format.min)
    assert sum(got) > 0


def test_extreme_values_are_not_counted_as_saturated() -> None:
    x = torch.tensor([6.0, -6.0, 7.0, -7.0, 6.1, 0.1, 0.0, math.inf, -math.inf])
    assert count_events(x, quantize(x, "E2M1F"), 6.0, -6.0) == (3, 0, 1)


def test_large_and_strided_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    x = torch.randn(2 * ALONE + 3)[:, None].expand(-1, 2)[:, 1] * 8
    x = torch.stack([x, x], 1)[:, 0]
    y = quantize(x, "E2M1F")
    assert not x.is_contiguous()
    assert count_events(x, y, 6.0, -6.0) == (int((x.abs() > 6).sum()), 0, int(((x != 0) & (y == 0)).sum()))


def test_empty_tensors() -> None:
    assert count_events(torch.zeros(0, 3), torch.zeros(0, 3), 1.0, -1.0) == (0, 0, 0)
