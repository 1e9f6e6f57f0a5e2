"""Matrix products through MAC units against the exact reference: every unit of the slides, order and rounding."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from shoal.errors import UserError
from shoal.numerics import FloatFormat, FloatMultiplier, MacUnit, matmul, parse_mac, quantize
from shoal.numerics.mac.tiles import fast
from tests.numerics.macs import SLIDES_UNITS, assert_as_defined, numbers, one_by_one
from tests.numerics.numbers import ROUNDINGS, same

ORDERS = ("sequential", "chunked(4)", "chunked(5)", "pairwise", "kahan", "exact")
INFINITY, NAN = np.inf, np.nan


def orders(name: str) -> list[str]:
    return [order for order in ORDERS if order != "kahan" or "+Q" not in name]


@pytest.mark.parametrize("name", SLIDES_UNITS)
def test_units_of_the_slides_in_every_order(name: str) -> None:
    for seed, order in enumerate(orders(name)):
        if order == "chunked(4)" and ":1" in name:
            order = "chunked(3)"
        assert_as_defined(numbers((4, 13), seed), numbers((13, 5), seed + 50), parse_mac(f"{name}, order={order}"))


@pytest.mark.parametrize("rounding", [*ROUNDINGS, "stochastic", "stochastic, variant=B", "stochastic, variant=C"])
@pytest.mark.parametrize("name", ["E5M2:5+E6M5", "E5M3:5+E5M5", "E4M3:1+E5M5", "E5M2:5+Q8.13", "E4M3:4+Q6.6"])
def test_rounding_modes(name: str, rounding: str) -> None:
    for order in orders(name):
        if order == "chunked(4)" and name not in ("E5M2:5+E6M5", "E5M2:5+Q8.13"):
            continue  # each is one more loop to compile
        chances = ("", ", random_bits=2", ", random_bits=5", ", random_bits=20")
        for bits in chances if rounding.startswith("stochastic") else ("",):
            unit = parse_mac(f"{name}, order={order}, rounding={rounding}{bits}")
            assert_as_defined(numbers((3, 11), 3), numbers((11, 4), 4), unit)
            if "+Q" in name:  # products between the steps of the sum
                small = np.float32(2.0**-6)
                assert_as_defined(numbers((3, 11), 3, 3) * small, numbers((11, 4), 4, 3) * small, unit)


@pytest.mark.parametrize("cfg", range(1, 7))
@pytest.mark.parametrize("accumulator", ["E6M5", "E5M5", "E5M2", "Q8.13"])
def test_configurations(cfg: int, accumulator: str) -> None:
    """Small numbers, so that products underflow and are flushed."""
    for spread in (4, 12):
        a, b = numbers((6, 14), 1, spread) * np.float32(2.0**-6), numbers((14, 6), 2, spread) * np.float32(2.0**-6)
        assert_as_defined(a, b, parse_mac(f"E5M2:{cfg}+{accumulator}"))


def adversarial() -> dict[str, tuple[NDArray, NDArray]]:
    """Matrices that cancel, overflow, underflow, saturate, and hold infinities and NaN."""
    a, b = numbers((5, 9), 5, 3), numbers((9, 4), 6, 3)
    cancelling = np.concatenate([a, -a[:, ::-1]], 1), np.concatenate([b, b[::-1]])
    zeros = a * (np.arange(9) % 3 == 0), np.where(np.arange(4) % 2 == 0, b, -0.0).astype(np.float32)
    infinite, other = a.copy(), b.copy()
    infinite[1, 3], infinite[2, 4], infinite[2, 5], other[4, 2], other[0, 3] = (
        INFINITY,
        INFINITY,
        -INFINITY,
        -INFINITY,
        0,
    )
    infinite[4, 0] = INFINITY  # times zero
    nan = a.copy()
    nan[0, 2] = NAN
    absorbing = a.copy()
    absorbing[:, 0] = 2.0**14
    return {
        "cancelling": cancelling,
        "zeros": zeros,
        "overflow": (a * np.float32(2.0**15), b * np.float32(2.0**15)),
        "saturating and back": (np.concatenate([np.abs(a), -np.abs(a)], 1) * 60, np.concatenate([b, b]) * 60),
        "underflow": (a * np.float32(2.0**-12), b * np.float32(2.0**-13)),
        "infinite": (infinite, other),
        "nan": (nan, b),
        "absorbing": (absorbing, b),
    }


@pytest.mark.parametrize("case", list(adversarial()))
@pytest.mark.parametrize(
    "name",
    [
        "E5M2:5+E6M5", "E5M2:5+E5M5", "E4M3:3+E5M5", "E5M2:1+E5M2", "E5M2:5+Q8.13", "Q8.8+Q8.8", "fp16:1+fp16",
        "E5M2:5+E6M5FN", "E5M2:5+E5M5:5", "E5M2:5+E5M5:4",
    ],
)  # fmt: skip
def test_adversarial_operands(name: str, case: str) -> None:
    a, b = adversarial()[case]
    if case in ("infinite", "nan") and name.startswith("Q"):
        b = b * np.float32(8)
    overflow = "wrap" if "+Q" in name else "nan" if "FN" in name else "infinity"
    other = ("order=exact", "rounding=down", "order=pairwise")[len(name + case) % 3]
    for more in ("overflow=saturate", f"overflow={overflow}", other):
        assert_as_defined(a, b, parse_mac(f"{name}, {more}, nan=zero"))
    if case == "infinite":
        assert_as_defined(a, b, parse_mac(f"{name}, rounding=stochastic, nan=zero"))


@pytest.mark.parametrize("name", ["E6M3:6+Q6.6", "E5M2:5+Q8.13", "E5M3:4+Q18.31", "Q16.8+Q4.8, rounded=False"])
def test_exact_sums_wrap_with_all_their_bits(name: str) -> None:
    """Sums with more bits than float64 has: the upper ones are dropped, the lower ones decide."""
    for rounding in (*ROUNDINGS, "stochastic, random_bits=2"):
        unit = parse_mac(f"{name}, order=exact, overflow=wrap, rounding={rounding}")
        for spread in (5, 31):
            assert_as_defined(numbers((3, 9), 1, spread), numbers((9, 8), 2, spread), unit)


def test_rounding_before_addition() -> None:
    for rounding in ("nearest-even", "up", "stochastic"):
        for order in orders("E"):
            for name in ("E5M3:5+E5M3", "E5M2:5+E5M5"):
                unit = parse_mac(f"{name}, fused=False, rounding={rounding}, order={order}")
                assert_as_defined(numbers((3, 9), 7), numbers((9, 3), 8), unit)


def test_kinds_of_the_loops_agree() -> None:
    """With and without counting, and both against the loops in float64, on sizes around the tile's."""
    for name in (
        "E5M2:5+E6M5", "E5M2:5+E5M5", "E5M2:3+E5M5", "E5M2:1+E5M5", "E5M3:5+E5M5", "E5M2:5+Q8.13", "E5M2:3+Q8.13",
        "E5M2:5+E6M5, rounding=stochastic", "E5M2:5+Q8.13, rounding=stochastic", "E5M2:5+E6M5, order=chunked(16)",
    ):  # fmt: skip
        unit = parse_mac(name)
        assert fast(unit, False) is not None and fast(unit, True) is not None
        for shape in ((1, 1, 1), (4, 2, 16), (5, 33, 17), (70, 65, 140)):
            a, b = numbers(shape[:2], 1), numbers(shape[1:], 2)
            counted, stats = matmul(a, b, unit, stats=True, seed=5)
            assert same(matmul(a, b, unit, seed=5), counted).all()
            bits = MacUnit(unit.multiplier, unit.accumulator, unit.order, unit.rounding)
            slow = one_by_one(a, b, bits, 5)
            assert same(counted.astype(np.float64), slow[0]).all() and stats == slow[1]


@pytest.mark.parametrize(
    "name",
    ["E5M2:5+E6M5", "E5M2:5+Q8.13", "E5M2:5+E6M5, rounding=stochastic", "E5M2:5+E6M5, order=kahan", "E4M3:5+Q20.20"],
)
def test_number_of_threads_changes_nothing(name: str) -> None:
    for shapes in (((3, 70, 20), (3, 20, 90)), ((150, 40), (40, 30)), ((8, 40), (40, 500))):
        a, b = numbers(shapes[0], 1), numbers(shapes[1], 2)
        one, counted = matmul(a, b, name, stats=True, seed=2, threads=1)
        for threads in (2, 5):
            many, also = matmul(a, b, name, stats=True, seed=2, threads=threads)
            assert same(one, many).all() and counted == also


def test_broadcasting_as_torch_does() -> None:
    for left, right in [
        ((4, 7), (7, 5)), ((2, 4, 7), (7, 5)), ((4, 7), (3, 7, 5)), ((2, 1, 4, 7), (3, 7, 5)),
        ((2, 3, 4, 7), (1, 7, 5)), ((1, 4, 7), (1, 1, 7, 5)), ((0, 4, 7), (7, 5)),
        ((2, 0, 7), (7, 5)), ((2, 4, 7), (2, 7, 0)), ((4, 0), (0, 5)),
        ((2, 4, 0), (1, 0, 5)),
    ]:  # fmt: skip
        a, b = torch.from_numpy(numbers(left, 1)), torch.from_numpy(numbers(right, 2))
        got = matmul(a, b, "E5M2:5+E6M5")
        assert got.shape == torch.matmul(a, b).shape and got.dtype == torch.float32
        if got.numel() and a.shape[-1] == 0:
            assert (got == 0).all()
        elif got.numel():
            many_a = a.expand(*got.shape[:-2], *a.shape[-2:]).reshape(-1, *a.shape[-2:])
            many_b = b.expand(*got.shape[:-2], *b.shape[-2:]).reshape(-1, *b.shape[-2:])
            single = [matmul(x, y, "E5M2:5+E6M5") for x, y in zip(many_a, many_b, strict=True)]
            assert torch.equal(got.reshape(-1, *got.shape[-2:]), torch.stack(single))


def test_stochastic_batches_have_their_own_bits() -> None:
    a, b = numbers((1, 6, 40), 1).repeat(2, 0), numbers((40, 9), 2)
    name = "E5M2:5+E5M5, rounding=stochastic"
    got = matmul(a, b, name, seed=1)
    assert not np.array_equal(got[0], got[1])
    assert np.array_equal(got, matmul(a, np.stack([b, b]), name, seed=1))  # one tall matrix, or two
    assert not np.array_equal(got, matmul(a, b, name, seed=1, call=1))
    assert not np.array_equal(got, matmul(a, b, name, seed=2))


def test_stochastic_sums_are_unbiased() -> None:
    """The mean of many sums of 64 small numbers is the exact sum; to nearest they are all absorbed."""
    a = np.full((400, 64), 2.0**-9, np.float32)
    a[:, 0] = 1.0
    b = np.ones((64, 50), np.float32)
    exact = 1 + 63 * 2.0**-9
    assert (matmul(a, b, "E5M2:5+E5M5") == 1).all()
    for more in ("", ", variant=B, random_bits=8", ", variant=C, random_bits=8"):
        got = matmul(a, b, "E5M2:5+E5M5, rounding=stochastic" + more, seed=3).astype(np.float64)
        assert abs(got.mean() - exact) < 5 * got.std() / np.sqrt(got.size)


def test_memory_layouts_and_types() -> None:
    a, b = numbers((12, 20), 1, 2), numbers((20, 14), 2, 2)
    expected = matmul(a, b, "E5M2:5+E6M5")
    assert np.array_equal(matmul(np.asfortranarray(a), b, "E5M2:5+E6M5"), expected)
    assert np.array_equal(
        matmul(a[::2, ::-1], b[::-1], "E5M2:5+E6M5"), matmul(a[::2, ::-1].copy(), b[::-1].copy(), "E5M2:5+E6M5")
    )
    t = torch.from_numpy(b.T.copy()).T
    assert torch.equal(matmul(torch.from_numpy(a), t, "E5M2:5+E6M5"), torch.from_numpy(expected))
    for kind in (np.float64, np.float16):
        x, y = quantize(a, "E5M2:5").astype(kind), quantize(b, "E5M2:5").astype(kind)
        assert np.array_equal(matmul(x, y, "E5M2:5+E6M5"), expected)
    wide = a.astype(np.float64) * (1 + 2.0**-40)  # rounded once, from its own bits
    assert np.array_equal(matmul(wide, b, "E5M2:5+E6M5"), matmul(quantize(wide, "E5M2:5"), b, "E5M2:5+E6M5"))
    assert matmul(a, b, "Q16.16+Q16.16").dtype == np.float64
    assert not matmul(torch.ones(2, 2, requires_grad=True), torch.ones(2, 2), "E5M2:5+E6M5").requires_grad


def test_exact_shortcuts() -> None:
    """Where nothing rounds, a BLAS product is the unit's: the same as the loops in float64."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (40, 60)).astype(np.float32), rng.integers(-3, 4, (60, 50)).astype(np.float32)
    for name in ("Q4.4+Q16.8", "E3M2:6+E5M10", "E3M2:3+Q12.12"):
        unit = parse_mac(name)
        if name.startswith("Q"):
            unit = parse_mac(name + ", rounded=False")
        got, stats = matmul(a, b, unit, stats=True)
        assert (got == a @ b).all() and not np.signbit(got[got == 0]).any() and stats.saturated == 0
    assert_as_defined(a[:3, :9], b[:9, :3], parse_mac("Q4.4+Q16.8, rounded=False, order=exact"))
    small = np.full((1, 1), 0.125, np.float32)  # whose square is a multiple of the steps below, but no value
    for name in (
        "Q3.4+E4M11(bias=5, subnormals=zero), rounded=False",
        "Q3.4+E4M6(bias=5, subnormals=normal), rounded=False",
    ):
        assert_as_defined(small, small, parse_mac(name))
    seven = np.full((1, 1), 7.0, np.float32)
    for name, largest in (
        ("Q4.0+Q4.4, rounded=False", 7.9375),
        ("E3M2:6+E3M10", 15.9921875),
    ):  # few bits, too large
        assert matmul(seven, seven, name) == largest


@pytest.mark.parametrize(
    ("a", "b", "arguments"),
    [
        (np.ones((2, 3)), np.ones((2, 3)), {}),
        (np.ones((2, 2, 3)), np.ones((3, 3, 2)), {}),
        (np.ones(3), np.ones((3, 2)), {}),
        (np.ones((2, 3), int), np.ones((3, 2)), {}),
        (np.ones((2, 3), complex), np.ones((3, 2)), {}),
        (torch.ones(2, 3), np.ones((3, 2)), {}),
        (torch.ones(2, 3, dtype=torch.int32), torch.ones(3, 2), {}),
        (torch.ones(2, 3, device="meta"), torch.ones(3, 2), {}),
        (torch.ones(2, 3).to_sparse(), torch.ones(3, 2), {}),
        ([[1.0]], [[1.0]], {}),
        (np.ones((2, 3)), np.ones((3, 2)), {"mac": "E5M2"}),
        (np.ones((2, 3)), np.ones((3, 2)), {"mac": 5}),
        (np.ones((2, 3)), np.ones((3, 2)), {"threads": 0}),
        (np.ones((2, 3)), np.ones((3, 2)), {"mac": "E5M2:5+E6M5, rounding=stochastic"}),
        (np.full((2, 3), np.nan), np.ones((3, 2)), {}),
        (np.full((2, 3), np.nan), np.ones((3, 2)), {"mac": "E5M2:1+Q8.8"}),
        (np.full((2, 3), np.inf), np.zeros((3, 2)), {"mac": "E5M2:1+E5M5:5"}),
    ],
)
def test_wrong_inputs_are_refused(a: object, b: object, arguments: dict) -> None:
    with pytest.raises(UserError) as refusal:
        matmul(a, b, **({"mac": "E5M2:5+E6M5"} | arguments))
    text = str(refusal.value)
    assert text.endswith(".") and "\n" not in text


def test_operands_are_not_modified() -> None:
    a, b = numbers((5, 6)), numbers((6, 5))
    copies = a.copy(), b.copy()
    a.flags.writeable = False
    matmul(a, b, "E5M2:5+E6M5")
    assert np.array_equal(a, copies[0]) and np.array_equal(b, copies[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLIDES_UNITS)
def test_units_of_the_slides_on_longer_sums(name: str) -> None:
    for rounding in (*ROUNDINGS, "stochastic"):
        for seed, order in enumerate(orders(name)):
            unit = parse_mac(f"{name}, order={order}, rounding={rounding}")
            assert_as_defined(numbers((5, 70), seed), numbers((70, 9), seed + 50), unit)


def test_unit_built_from_its_parts() -> None:
    unit = MacUnit(FloatMultiplier(FloatFormat(5, 2), cfg=5), accumulator=FloatFormat(6, 5))
    assert unit == parse_mac("E5M2:5+E6M5")
    assert_as_defined(numbers((4, 8)), numbers((8, 4)), unit)
