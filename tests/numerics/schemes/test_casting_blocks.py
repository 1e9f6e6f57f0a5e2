"""Products of matrices in blocks: exact where nothing rounds, and cut where the definition says."""

import pytest
import torch
from torch import Tensor

from shoal.numerics.schemes.casting import multiply_blocks, scaled


def integers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).float()


def by_runs(width: int | None) -> object:
    """Values and exponents: the exponent grows with the run."""

    def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
        runs = torch.arange(x.shape[-1]) // (width or x.shape[-1])
        rows = torch.arange(x.shape[-2])[:, None]
        return x, (runs - rows).expand_as(x)

    return rounded


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("run", [None, 1, 3, 4, 7, 9])
def test_powers_of_two_factor_out_of_the_sum(batch: tuple[int, ...], run: int | None) -> None:
    a, b = integers(*batch, 3, 7), integers(*batch, 7, 2, seed=1)
    rounder = by_runs(run)
    calls = []

    def through(x: Tensor, y: Tensor) -> Tensor:
        calls.append((tuple(x.shape), tuple(y.shape)))
        return x @ y

    got = multiply_blocks(a, b, rounder, rounder, through, run)  # type: ignore[arg-type]
    expected = scaled(a, rounder(a)[1]) @ scaled(b.mT, rounder(b.mT)[1]).mT  # type: ignore[operator]
    assert torch.equal(got, expected)
    runs = -(-7 // run) if run is not None and run < 7 else 0
    width = run if runs else 7
    lead = (runs, *batch) if runs else batch
    assert calls == [((*lead, 3, width), (*lead, width, 2))]


def test_operand_without_blocks_is_unchanged() -> None:
    a, b = integers(3, 7), integers(7, 2)
    rounder = by_runs(3)
    first = multiply_blocks(a, b, rounder, None, torch.matmul, 3)  # type: ignore[arg-type]
    assert torch.equal(first, scaled(a, rounder(a)[1]) @ b)  # type: ignore[operator]
    second = multiply_blocks(a, b, None, rounder, torch.matmul, 3)  # type: ignore[arg-type]
    assert torch.equal(second, a @ scaled(b.mT, rounder(b.mT)[1]).mT)  # type: ignore[operator]


def test_each_run_goes_through_the_unit_by_itself() -> None:
    """A unit that returns 1 for everything: the runs' sums are added after their powers of two."""
    a, b = torch.ones(1, 5), torch.ones(5, 1)

    def exponents(x: Tensor) -> tuple[Tensor, Tensor]:
        return x, (torch.arange(5) // 2).expand_as(x)

    got = multiply_blocks(a, b, exponents, None, lambda x, y: torch.ones(*x.shape[:-1], y.shape[-1]), 2)
    assert got.item() == 1 + 2 + 4


def test_scaling_rounds_once() -> None:
    x = torch.tensor([1.0 + 2.0**-23, 3.0 * 2.0**-1, 1.0])
    got = scaled(x, torch.tensor([-149, -149, 127]))
    assert got.tolist() == [2.0**-149, 2.0**-148, 2.0**127]
    assert scaled(torch.tensor([1.0]), torch.tensor([-200])).item() == 0
