"""How products are computed: every method gives the bits and counts of the loops in float64, wherever operands lie."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from shoal.numerics import MacUnit, matmul, parse_mac, quantize
from shoal.numerics.mac import product as products
from shoal.numerics.mac.exact import dot_exact
from shoal.numerics.mac.product import Operand, Product, exact_sums, placed
from shoal.numerics.mac.tiles import FREE_SUMS, TAME_PRODUCTS, UNKNOWN, fast, known, limits
from shoal.numerics.rounding.randomness import keys
from tests.numerics.macs import assert_as_defined, numbers, one_by_one
from tests.numerics.numbers import same

SHAPES = ((1, 1, 1), (3, 2, 16), (9, 33, 17), (70, 65, 40), (5, 130, 3))
UNITS = [
    "E5M3+fp32, output=E6M8, order=pairwise",
    "E4M3(bias=4)*E5M2+E6M9, output=E7M9, order=chunked(64)",
    "Q3.6+Q19.12, rounded=False",
    "Q3.6*Q9.10+Q15.16, rounded=False",
    "E5M2:5+E6M5",
    "E5M2:5+E6M5, order=chunked(7)",
    "E5M2:5+E6M5, order=pairwise",
    "E5M2:5+E6M5, order=kahan",
    "E5M2:5+E6M5, order=exact",
    "E5M2:5+E5M5, order=exact, rounding=stochastic",
    "E4M3:5+Q8.13, order=exact",
    "E5M2:5+E6M5, fused=False",
    "E5M2:5+Q8.13",
    "E5M2:5+Q8.13, order=pairwise",
    "E5M2:5+E5M5, order=pairwise, overflow=infinity",
    "E5M2:5+Q16.16",
    "Q16.16+Q16.16",
    "Q8.8+Q8.8",
    "bf16+bf16",
]


@pytest.mark.parametrize("name", UNITS)
def test_every_method_is_bit_identical_to_the_float64_loops(name: str) -> None:
    """Numbers for which sums stay in range, leave it, and vanish; with and without counting; on one and two threads."""
    unit = parse_mac(name)
    for shape in SHAPES:
        for spread, scale in ((2, 1.0), (9, 1.0), (3, 2.0**-8), (3, 2.0**13)):
            a, b = numbers(shape[:2], 1, spread) * np.float32(scale), numbers(shape[1:], 2, spread)
            expected, happened = one_by_one(a, b, unit, 5)
            got, counted = matmul(a, b, unit, stats=True, seed=5, threads=2)
            assert same(got.astype(np.float64), expected).all() and counted == happened
            assert same(matmul(a, b, unit, seed=5, threads=1), got).all()


@pytest.mark.parametrize("name", UNITS[:9:2])
def test_units_of_the_schemes_match_the_definition(name: str) -> None:
    for spread in (1, 8):
        assert_as_defined(numbers((3, 21), 1, spread), numbers((21, 4), 2, spread), parse_mac(name))


@pytest.mark.parametrize(
    "name", ["E5M2:5+E6M5", "E5M2:3+E6M5", "E4M3(bias=4)*E5M2+E6M9, output=E7M9, order=chunked(4)"]
)
def test_sums_with_infinite_operands_are_infinite_or_nan(name: str) -> None:
    """Zeros, both signs and NaN beside infinities, in rows and columns: as the definition, and no events."""
    rng, unit = np.random.default_rng(0), parse_mac(name)
    special = np.array([0.0, -0.0, np.inf, -np.inf, 1.0, -2.0, *([] if ":5" in name else [np.nan])])
    a, b = rng.choice(special, (24, 5)), rng.choice(special[:6], (5, 24))
    a[:4], b[:, :4] = 1.0, 2.0**-3  # some are finite
    got, stats = matmul(a.astype(np.float32), b.astype(np.float32), unit, stats=True)
    for i, j in np.ndindex(24, 24):
        wanted, _ = dot_exact(a[i].tolist(), b[:, j].tolist(), unit)
        assert np.array_equal(got[i, j], np.float32(wanted), equal_nan=True), (a[i], b[:, j])
    assert (stats.saturated, stats.overflowed, stats.underflowed) == (0, 0, 0)


@pytest.mark.parametrize("name", ["E5M2:5+E5M5", "E5M2:5+E5M5, order=pairwise", "E5M2:5+E5M5, order=kahan"])
def test_infinite_operands(name: str) -> None:
    """Only outputs with an infinite operand, or that overflow, are recomputed; all are counted once."""
    for more in ("", ", overflow=infinity"):
        unit = parse_mac(name + more)
        a, b = numbers((19, 37), 1, 12) * np.float32(64), numbers((37, 33), 2, 12)
        a[3, 4], b[8, 30] = np.inf, -np.inf
        expected, happened = one_by_one(a, b, unit, 0)
        for threads in (1, 2):
            got, counted = matmul(a, b, unit, stats=True, threads=threads)
            assert same(got.astype(np.float64), expected).all() and counted == happened
        assert counted.saturated + counted.overflowed > 0


def run(unit: MacUnit, a: Operand, b: Operand, threads: int = 2, place: products.Place | None = None) -> torch.Tensor:
    counts = np.zeros(4, np.int64)
    return Product(unit, a, b, torch.float32, True, keys(1, 0, 0), threads, place).run(counts)


def rounded(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.from_numpy(quantize(numbers(shape, seed, 3), "E5M2:5"))


@pytest.mark.parametrize("name", ["E5M2:5+E6M5", "E5M2:5+E6M5, rounding=stochastic", "E5M2:5+Q20.20", "E3M2:6+E8M20"])
def test_operands_are_read_in_place(name: str) -> None:
    """Permuted, flipped and overlapping axes give the bits of contiguous matrices, also for BLAS."""
    unit = parse_mac(name)
    x = rounded((6, 4, 30), 1)
    x = x.clamp(-28, 28) if name.startswith("E3") else x
    flat = x.reshape(-1)
    # Rows (j, i) and steps k backwards, of x[i, j, k]; columns are windows of 30 that overlap.
    a = Operand(flat, ((1, 0),), ((4, 30), (6, 120)), ((30, -1),), 29)
    b = Operand(flat, ((1, 0),), ((50, 3),), ((30, 1),), 2)
    plain_a = x.permute(1, 0, 2).flip(2).reshape(1, 24, 30).contiguous()
    plain_b = flat[2:].unfold(0, 30, 3)[:50].contiguous()[None]
    assert torch.equal(a.matrices(), plain_a) and torch.equal(b.matrices(), plain_b)
    expected = run(unit, Operand.of(plain_a), Operand.of(plain_b), 1)
    for threads in (1, 2):
        assert torch.equal(run(unit, a, b, threads), expected)
    # The result transposed, with rows (j, i) as (i, j).
    place = ((1, 0),), ((4, 1), (6, 4)), ((50, 24),)
    wanted = expected.reshape(4, 6, 50).permute(2, 1, 0).reshape(-1)
    assert torch.equal(run(unit, a, b, 2, place), wanted)
    assert torch.equal(placed(expected.reshape(1, 24, 50), place), wanted)


@pytest.mark.parametrize("name", ["E5M2:5+E6M5", "E3M2:6+E8M20", "E5M2:5+E6M5, order=exact"])
def test_views_of_a_tensor(name: str) -> None:
    """Slices, which begin somewhere in their memory."""
    x = rounded((60, 50), 1).clamp(-28, 28)
    a, b = x[10:40, 5:30], x[20:45, 7:]
    expected = matmul(a.clone(), b.clone(), name, cast="done")
    assert torch.equal(matmul(a, b, name, cast="done"), expected)
    assert torch.equal(Operand.of(a[None]).matrices()[0], a)


def test_columns_are_packed_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large operands are not packed beforehand; nor do batches and blocks of rows and columns change anything."""
    unit = parse_mac("E5M2:5+E6M5")
    a, b = rounded((3, 300, 20), 1), rounded((3, 20, 90), 2)
    expected = matmul(a, b, unit, cast="done", threads=1)
    monkeypatch.setattr(products, "PACKED", 0)
    for threads in (1, 2):
        assert torch.equal(matmul(a, b, unit, cast="done", threads=threads), expected)
    monkeypatch.setattr(products, "PACKED", 2**30)
    monkeypatch.setattr(products, "ROW_BLOCK", 16)
    assert torch.equal(matmul(a, b, unit, cast="done", threads=2), expected)


def test_exact_sums_in_pieces() -> None:
    """Long sums are split into pieces that float64 adds exactly."""
    unit = parse_mac("E5M2:5+E6M5, order=exact")
    a, b = numbers((2, 3000), 1, 7), numbers((3000, 3), 2, 7)
    a[:, ::2] = -a[:, 1::2] * np.float32(1.25)
    expected, happened = one_by_one(a, b, unit, 0)
    got, counted = matmul(a, b, unit, stats=True)
    assert same(got.astype(np.float64), expected).all() and counted == happened


def test_operands_that_are_values_are_not_rounded() -> None:
    a, b = rounded((20, 30), 1), rounded((30, 10), 2)
    expected = matmul(a, b, "E5M2:5+E6M5")
    assert torch.equal(matmul(a, b, "E5M2:5+E6M5", cast="done"), expected)
    t = a.T.contiguous().T  # in place
    assert torch.equal(matmul(t, b, "E5M2:5+E6M5", cast="done"), expected)
    assert torch.equal(
        matmul(a[::2, ::3], b[::3], "E5M2:5+E6M5", cast="done"), matmul(a[::2, ::3], b[::3], "E5M2:5+E6M5")
    )


def test_lossless_product_format_rounds_nothing() -> None:
    holds, rounds = parse_mac("E5M3+fp32, output=E6M8"), parse_mac("E5M3+fp32")
    assert holds.datapath.holds_products and not rounds.datapath.holds_products
    assert exact_sums(parse_mac("E3M2+E8M20, output=E8M12"))[1] > 0  # by BLAS
    assert exact_sums(parse_mac("E3M2+E8M20"))[1] < 0
    narrow = parse_mac("E5M3+fp32, output=E5M8")  # not those that underflow
    assert not narrow.datapath.holds_products
    a, b = numbers((3, 9), 1, 12), numbers((9, 4), 2, 12)
    for unit in (holds, rounds, narrow):
        assert_as_defined(a, b, unit)


def test_sums_within_range_are_not_limited() -> None:
    """The bound is the largest value over 4: rounding to nearest may double a sum, and that of chunks again."""
    unit = parse_mac("E5M2:5+E6M5")
    assert limits(unit)[1] == unit.accumulator.max / 4
    assert limits(parse_mac("E5M2:5+E6M5, rounding=up")) == (0, 0)
    assert limits(parse_mac("E5M2:5+E6M3, order=pairwise"))[1] == 0  # 32 levels of rounding
    fixed = parse_mac("E5M2:5+Q8.13")
    assert [known(fixed, 20.0, depth) for depth in (1, 2)] == [FREE_SUMS, TAME_PRODUCTS]
    assert known(fixed, 130.0, 1) == UNKNOWN
    for order in ("sequential", "chunked(3)", "pairwise"):
        tight = parse_mac(f"E5M2:5+E4M5, order={order}")
        assert fast(tight, True, FREE_SUMS) is not None
        for top in (0.9, 1.1):  # just within the bound, and beyond it
            a, b = values_near(tight, 40, top)
            expected, happened = one_by_one(a, b, tight, 0)
            got, counted = matmul(a, b, tight, stats=True)
            assert same(got.astype(np.float64), expected).all() and counted == happened


def values_near(unit: MacUnit, depth: int, top: float) -> tuple[NDArray, NDArray]:
    """All products alike, their sum near the limit of sums that are free."""
    size = np.float32(limits(unit)[1] / depth * top)
    return np.full((2, depth), size, np.float32), np.ones((depth, 2), np.float32)
