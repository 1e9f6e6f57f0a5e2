"""Quantizers against exact fractions, and the properties that make them quantizers."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.inference.grid import Grid, code_range
from shoal.quantization.affine import Quantizer, codes, simulate, stored_bytes

finite = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100)
weights = st.lists(finite, min_size=1, max_size=12).map(lambda values: torch.tensor(values, dtype=torch.float32))
bits = st.integers(2, 16)


def nearest(x: Fraction) -> int:
    """Round half to even, as Python's own integers do."""
    return round(x)


def exact_scale(x, quantizer):
    values = [Fraction(value) for value in x.tolist()]
    low, high = min(*values, Fraction(0)), max(*values, Fraction(0))
    if quantizer.style == "paper":
        return (high - low) / 2**quantizer.bits
    return (max(-low, high) if quantizer.symmetric else high - low) / code_range(quantizer.bits, quantizer.kind)[1]


def scale_of(x, quantizer):
    return Grid.of_numbers(x, quantizer.bits, quantizer.kind).scale


@settings(max_examples=150, deadline=None)
@given(weights, bits, st.booleans())
def test_standard_codes_are_exact(x, n, symmetric):
    quantizer = Quantizer(n, symmetric=symmetric)
    found = codes(x, quantizer)
    scale, zero = Fraction(found.grid.scale.item()), int(found.grid.zero_point.item())
    lowest, highest = code_range(n, quantizer.kind)
    exact = exact_scale(x, quantizer)
    if exact < Fraction(2) ** -120:  # below float32's normal numbers nothing is promised but safety
        assert torch.isfinite(found.values()).all()
        return
    assert abs(scale - exact) <= exact * Fraction(1, 2**23)
    low = min(*(Fraction(v) for v in x.tolist()), Fraction(0))
    assert zero == (0 if symmetric else min(max(nearest(-low / scale), 0), highest))
    expected = [min(max(nearest(Fraction(v) / scale) + zero, lowest), highest) for v in x.tolist()]
    assert found.codes.tolist() == expected
    values = [float(np.float32(float((code - zero) * scale))) for code in expected]
    assert found.values().tolist() == values == simulate(x, quantizer).tolist()


@settings(max_examples=150, deadline=None)
@given(weights, bits)
def test_the_papers_formula_is_exact(x, n):
    quantizer = Quantizer(n, "paper")
    exact = exact_scale(x, quantizer)
    if exact < Fraction(2) ** -120:
        assert torch.isfinite(simulate(x, quantizer)).all()
        return
    scale = Fraction(scale_of(x, quantizer).item())
    assert abs(scale - exact) <= exact * Fraction(1, 2**23)
    expected = [float(np.float32(float(nearest(Fraction(v) / scale) * scale))) for v in x.tolist()]
    assert simulate(x, quantizer).tolist() == expected


@settings(max_examples=100, deadline=None)
@given(weights, bits, st.booleans())
def test_rounding_error_is_at_most_half_a_step(x, n, symmetric):
    quantizer = Quantizer(n, symmetric=symmetric)
    scale = scale_of(x, quantizer)
    moved = (simulate(x, quantizer).double() - x.double()).abs()
    half = 0.5 if symmetric else 1.0  # the zero point is rounded, too, and moves the ends by up to half a step
    assert (moved <= half * scale.double() * (1 + 1e-6) + x.double().abs() * 2**-22).all()
    assert simulate(torch.cat([x, torch.zeros(1)]), quantizer)[-1] == 0


@settings(max_examples=60, deadline=None)
@given(weights, bits)
def test_quantization_is_idempotent(x, n):
    once = codes(x, Quantizer(n))
    if float(once.grid.scale) > 2**-100:
        assert torch.equal(codes(once.values(), Quantizer(n)).codes, once.codes)


def test_number_of_codes_of_each_style():
    x = torch.tensor([-1.0, 1.0])
    paper = scale_of(x, Quantizer(8, "paper"))
    assert (x / paper).round().tolist() == [-128, 128]
    assert codes(x, Quantizer(8)).codes.tolist() == [-127, 127]
    assert codes(torch.tensor([-1.0, 0.0, 3.0]), Quantizer(8, symmetric=False)).codes.tolist() == [0, 64, 255]
    assert [codes(x, Quantizer(n, symmetric=s)).codes.dtype for n, s in ((8, 1), (9, 1), (8, 0), (9, 0))] == [
        torch.int8, torch.int16, torch.uint8, torch.uint16,
    ]  # fmt: skip


def test_ties_go_to_the_even_code():
    x = torch.tensor([-3.0, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.0])  # 3 bits: d = 1
    assert codes(x, Quantizer(3)).codes.tolist() == [-3, -2, -2, 0, 0, 2, 2, 3]


@pytest.mark.parametrize("quantizer", [Quantizer(4), Quantizer(4, symmetric=False), Quantizer(4, "paper")])
def test_channels_are_quantized_independently(quantizer):
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 10.0, 0.1])[:, None, None]
    whole = simulate(x, quantizer, (0, 2))
    for i in range(3):
        for k in range(4):
            assert torch.equal(whole[i, :, k], simulate(x[i, :, k], quantizer))
    assert not torch.equal(whole, simulate(x, quantizer))


@pytest.mark.parametrize(
    "quantizer", [Quantizer(8), Quantizer(8, symmetric=False), Quantizer(8, "paper"), Quantizer(format="E4M3")]
)
@pytest.mark.parametrize("x", [torch.zeros(4), torch.zeros(2, 3)])
def test_zeros_pass_unchanged(quantizer, x):
    assert torch.equal(simulate(x, quantizer, (0,)), x)
    if quantizer.style == "standard" and quantizer.format is None:
        assert codes(x, quantizer).codes.count_nonzero() == 0
        assert bool((codes(x, quantizer).grid.scale == 1).all())


def test_underflowing_scale_passes_values_unchanged():
    x = torch.tensor([1e-45, 0.0])
    assert torch.equal(simulate(x, Quantizer(16)), x)
    assert codes(x, Quantizer(16)).values().tolist() == [0, 0]


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "NaN"), (float("inf"), "infinity")])
def test_non_finite_values_are_refused(value, word):
    with pytest.raises(UserError, match=word):
        codes(torch.tensor([1.0, value]), Quantizer(8))


def test_wrong_schemes_are_refused():
    for wrong in (1, 17):
        with pytest.raises(UserError, match="from 2 to 16"):
            Quantizer(wrong)
    with pytest.raises(UserError, match="style"):
        Quantizer(8, "other")
    with pytest.raises(UserError):
        Quantizer(format="nonsense")
    with pytest.raises(UserError, match="standard style"):
        codes(torch.ones(2), Quantizer(8, "paper"))


def test_formats_by_name():
    x = torch.tensor([1 / 3, 1e6, -1e6, 1e-9])
    assert simulate(x, Quantizer(format="fp16")).tolist() == [float(np.float16(1 / 3)), 65504.0, -65504.0, 0.0]
    assert simulate(x, Quantizer(format="bf16"))[0] == 0.333984375
    assert simulate(x, Quantizer(format="Q4.4")).tolist() == [0.3125, 7.9375, -8.0, 0.0]
    assert simulate(x, Quantizer(format="E4M3FN"))[1] == 448
    assert [Quantizer(format=name).width for name in ("fp16", "E4M3", "Q4.4")] == [16, 8, 8]


def test_bytes_of_codes():
    assert stored_bytes(10, 1, None) == 40
    assert stored_bytes(10, 3, Quantizer(3)) == 3 + 2 + 12  # 20 bits and 10 bits, in whole bytes each
    assert stored_bytes(10, 3, Quantizer(3, style="paper")) == 4 + 12  # 30 bits are 4 bytes
    assert stored_bytes(10, 2, Quantizer(4, symmetric=False)) == 5 + 8 + 2
    assert stored_bytes(10, 2, Quantizer(12, symmetric=False)) == 15 + 8 + 4
    assert stored_bytes(10, 0, Quantizer(format="bf16")) == 20


@pytest.mark.parametrize(
    ("format", "shared"),
    [("fp16", 0), ("E4M3", 0), ("Q1.3/tensor", 1), ("Q1.3/row", 6), ("Q1.3/2", 18), ("Q1.3/2x2", 12)],
)
def test_shared_exponents_count_as_bytes(format, shared):
    quantizer = Quantizer(format=format)
    assert quantizer.shared(torch.Size((2, 3, 5))) == shared
    assert stored_bytes(30, shared, quantizer) == (30 * quantizer.width + 7) // 8 + shared


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bits", [8, 12, 16])
def test_zero_stays_zero_in_half_precision(dtype, bits):
    x = torch.tensor([-1.0, -0.5, 0.0], dtype=dtype)
    back = simulate(x, Quantizer(bits, symmetric=False))
    assert back[-1] == 0 and torch.allclose(back, x, atol=0.02)


@pytest.mark.parametrize(
    "quantizer", [Quantizer(8), Quantizer(8, symmetric=False), Quantizer(4, style="paper")], ids=str
)
def test_largest_values_stay_finite(quantizer):
    x = torch.tensor([3.4e38, -3.4e38, 1e38])
    back = simulate(x, quantizer)
    assert torch.isfinite(back).all() and torch.allclose(back, x, rtol=0.3)
    if quantizer.style == "standard":
        assert torch.equal(codes(x, quantizer).values(), back)
