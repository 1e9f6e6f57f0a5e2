"""Shared exponents: taken from the largest of each block, and rounding within a block as with the scaled format."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from shoal.numerics import BlockFormat, parse, quantize
from shoal.numerics.rounding import quantize as loops
from shoal.numerics.rounding.exact import round_exact
from shoal.numerics.rounding.plan import ROUNDINGS
from tests.numerics.numbers import assert_same


def block_of(over: object, shape: tuple[int, ...], position: tuple[int, ...]) -> tuple:
    """What names the block of a position."""
    if over == "tensor":
        return ()
    if over == "row":
        return position[:-1]
    height, width = over if isinstance(over, tuple) else (1, over)  # type: ignore[misc]
    return (*position[:-2], position[-2] // height, position[-1] // width)


@pytest.mark.parametrize("over", ["tensor", "row", 3, 16, (2, 3), (4, 4)])
@pytest.mark.parametrize("element", ["E4M3F", "Q1.7", "E2M5F(bias=2)", "E5M2:5"])
def test_blocks_match_the_definition(element: str, over: object) -> None:
    rng = np.random.default_rng(0)
    x = np.ldexp(rng.standard_normal((2, 5, 7)), rng.integers(-9, 9, (2, 5, 7))).astype(np.float32)
    x[0, 0] = 0
    x[1, 1, :3] = 0
    format = BlockFormat(parse(element), over)  # type: ignore[arg-type]
    largest: dict[tuple, float] = {}
    for position in product(*map(range, x.shape)):
        block = block_of(over, x.shape, position)
        largest[block] = max(largest.get(block, 0.0), abs(float(x[position])))
    for rounding in ROUNDINGS[:5]:
        got = quantize(x, format, rounding)
        for position in product(*map(range, x.shape)):
            top = largest[block_of(over, x.shape, position)]
            shared = math.frexp(top)[1] - math.frexp(format.element.max)[1] if top else 0
            scaled = math.ldexp(float(x[position]), -shared)
            exact = math.ldexp(round_exact(scaled, format.element, rounding, "saturate"), shared)
            assert got[position] == exact
        assert torch.equal(quantize(torch.from_numpy(x), format, rounding), torch.from_numpy(got))


def test_largest_value_lands_in_the_top_binade() -> None:
    x = np.random.default_rng(1).standard_normal((100, 32)).astype(np.float32)
    for scale in (1.0, 2.0**-100, 2.0**100):
        q = quantize(x * np.float32(scale), "E4M3F/row") / np.float32(scale)
        assert (np.abs(q - x) <= np.abs(x).max(1, keepdims=True) * 2.0**-4).all()


def test_extreme_values_in_blocks() -> None:
    x = np.array([3e38, -3.4e38, 1e-45, -1e-45, 0.0, -0.0, 1.0], np.float32)
    for name in ("Q1.7/tensor", "E4M3F/tensor", "E5M2:5/tensor"):
        for rounding in ("nearest-even", "up", "down"):
            q = quantize(x, name, rounding)
            assert np.isfinite(q).all()
            assert (q[2] > 0) == (rounding == "up") and (q[3] < 0) == (rounding == "down")
            if name != "Q1.7/tensor":  # there float32 keeps the exponent one lower, so that -1.0·2^s is in its range
                assert_same(q.astype(np.float64), quantize(x.astype(np.float64), name, rounding), x)
    tiny = np.array([1e-45, 3e-45, -7e-45], np.float32)
    assert np.array_equal(quantize(tiny, "E4M3F/tensor"), tiny)


def test_infinities_and_nans_do_not_count() -> None:
    x = np.array([1.0, np.inf, -np.inf, 0.3], np.float32)
    assert_same(quantize(x, "E5M2/tensor"), np.array([1.0, np.inf, -np.inf, 0.3125], np.float32), x)
    saturated = quantize(x, "E5M2/tensor", overflow="saturate")
    assert saturated[1] == 1.75 and saturated[2] == -1.75
    x[1] = np.nan
    assert np.isnan(quantize(x, "E5M2/tensor")[1])
    assert quantize(np.array([1.99, 1.0], np.float32), "E5M2/tensor")[0] == 1.75  # the largest never becomes infinite


def test_stochastic_blocks_are_unbiased() -> None:
    x = np.full((200, 500), 0.3, np.float32)
    x[:, 0] = 1.5
    q = quantize(x, "Q1.7/row", "stochastic", seed=2)
    assert abs(q[:, 1:].mean(dtype=np.float64) - 0.3) < 1e-4
    assert (q[:, 0] == 1.5).all()


@pytest.mark.parametrize("over", ["tensor", "row", 7, (3, 5), (16, 16)])
@pytest.mark.parametrize("element", ["E4M3F", "Q1.7", "E5M2:5", "E5M2:6", "E5M2"])
def test_compiled_blocks_match_torch(element: str, over: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The moved plan against scaled numbers, for every rounding, with specials, and for any number of threads."""
    rng = np.random.default_rng(2)
    x = np.ldexp(rng.standard_normal((3, 40, 33)), rng.integers(-30, 20, (3, 40, 33))).astype(np.float32)
    x[rng.random(x.shape) < 0.02] = np.inf
    x[rng.random(x.shape) < 0.02] = -np.inf
    x[rng.random(x.shape) < 0.05] = -0.0
    monkeypatch.setattr(loops, "ALONE", 0)
    format = BlockFormat(parse(element), over)  # type: ignore[arg-type]
    for how, rules in [
        *[(how, {}) for how in ROUNDINGS[:5]],
        ("nearest-even", {"underflow": "truncate"}),
        ("nearest-even", {"overflow": "saturate"}),
        ("stochastic", {"seed": 5, "offset": 77}),
        ("stochastic", {"seed": 5, "variant": "C", "random_bits": 3}),
        ("stochastic", {"seed": 5, "underflow": "truncate"}),
    ]:
        compiled = quantize(x, format, how, threads=3, **rules)
        with monkeypatch.context() as patch:
            patch.setattr(loops, "round_bands", lambda *_: -1)
            assert_same(compiled.reshape(-1), quantize(x, format, how, **rules).reshape(-1), x.reshape(-1))
        assert_same(compiled.reshape(-1), quantize(x, format, how, threads=1, **rules).reshape(-1), x.reshape(-1))


@pytest.mark.parametrize("element", ["E4M3F", "Q1.7", "E5M2:5"])
def test_blocks_of_very_small_numbers(element: str) -> None:
    """Where the moved format would leave float32's normal numbers."""
    rng = np.random.default_rng(3)
    x = np.ldexp(rng.standard_normal((20, 8)), rng.integers(-160, -100, (20, 1))).astype(np.float32)
    for how in ("nearest-even", "up", "stochastic"):
        format = BlockFormat(parse(element), "row")
        wide = x.astype(np.float64)
        got, wanted = (quantize(v, format, how, seed=1, random_bits=30) for v in (x, wide))
        s = np.frexp(np.abs(wide).max(1, keepdims=True))[1] - 1 - format.element.highest_exponent
        inside = s[:, 0] >= -149 - format.element.lsb_exponent  # below, float32 does not hold the scaled values
        assert 0 < inside.sum() < 20
        assert_same(got[inside].reshape(-1).astype(np.float64), wanted[inside].reshape(-1), wide[inside].reshape(-1))
