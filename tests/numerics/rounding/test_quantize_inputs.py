"""What may be given to quantize, what it returns, and what it refuses in one sentence."""

import math

import numpy as np
import pytest
import torch

from shoal.errors import UserError
from shoal.numerics import FloatFormat, parse, quantize
from shoal.numerics.rounding.quantize import memory_needed
from shoal.system import memory
from tests.numerics.numbers import assert_same, float16_values


def test_layouts() -> None:
    x = np.random.default_rng(0).standard_normal((6, 8, 10)).astype(np.float32)
    wanted = quantize(x, "E5M2")
    for view in (np.s_[::2], np.s_[:, ::-1], np.s_[..., 3], np.s_[1:1]):
        assert np.array_equal(quantize(x[view], "E5M2"), wanted[view])
        assert quantize(x[view], "E5M2").shape == x[view].shape
    assert np.array_equal(quantize(x.T, "E5M2"), wanted.T)
    assert np.array_equal(quantize(x.astype(">f4"), "E5M2"), wanted)
    t = torch.from_numpy(x)
    assert torch.equal(quantize(t.permute(2, 0, 1), "E5M2"), torch.from_numpy(wanted).permute(2, 0, 1))
    assert torch.equal(quantize(t[:, :1].expand(6, 4, 10), "E5M2"), torch.from_numpy(wanted)[:, :1].expand(6, 4, 10))


def test_sizes_of_tensors() -> None:
    for shape in ((0,), (3, 0, 2), (), (1,), (2**15 + 1,)):
        for name in ("E5M2", "Q16.16", "E4M3/row", "E4M3/7"):
            assert quantize(np.ones(shape, np.float32), name).shape == shape
            assert quantize(torch.ones(shape), name).shape == shape
    for kind in (np.float32, np.float64):
        zero_dimensional = quantize(np.array(0.3, kind), "E5M2")
        assert isinstance(zero_dimensional, np.ndarray) and zero_dimensional == 0.3125
    assert quantize(0.3, "E5M2") == 0.3125 and quantize(np.float32(0.3), "E5M2").dtype == np.float32


def test_dtypes() -> None:
    """A type is kept if it holds the format; float16 and bfloat16 are widened exactly and narrowed exactly."""
    x = float16_values()
    half = x.astype(np.float16)
    assert quantize(half, "E5M2").dtype == np.float16
    assert_same(quantize(half, "E5M2").astype(np.float32), quantize(x, "E5M2"), x)
    assert quantize(half, "E6M5").dtype == np.float32  # 2^31 is no float16
    assert_same(quantize(half, "E6M5"), quantize(x, "E6M5"), x)
    b = torch.arange(2**16).to(torch.int16).view(torch.bfloat16)
    assert quantize(b, "E6M5").dtype == torch.bfloat16
    assert_same(quantize(b, "E6M5").float().numpy(), quantize(b.float().numpy(), "E6M5"), b.float().numpy())
    assert quantize(b.nan_to_num(), "Q8.8").dtype == torch.float32
    assert quantize(x[np.isfinite(x)], "Q16.16").dtype == np.float64
    assert quantize(x, "fp64").dtype == np.float64
    finite = x[np.isfinite(x)]
    assert_same(quantize(finite, "fp64"), finite.astype(np.float64), finite)


def test_input_is_not_modified() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    copy = x.copy()
    x.flags.writeable = False
    quantize(x, "E5M2")
    assert np.array_equal(x, copy)
    weights = torch.randn(5, requires_grad=True)
    assert not quantize(weights, "E5M2").requires_grad


@pytest.mark.parametrize("how", ["nearest-even", "stochastic", "down"])
@pytest.mark.parametrize("name", ["E5M2", "E5M2:5", "Q8.13", "E4M3/row"])
def test_out_argument(name: str, how: str) -> None:
    x = (np.random.default_rng(0).standard_normal((50, 900)) * 1e-4).astype(np.float32)
    wanted = quantize(x, name, how, seed=1)
    out = np.empty_like(x)
    assert np.shares_memory(quantize(x, name, how, seed=1, out=out), out) and np.array_equal(out, wanted)
    t = torch.from_numpy(x.copy())
    assert quantize(t, name, how, seed=1, out=t).data_ptr() == t.data_ptr()
    assert np.array_equal(t.numpy(), wanted)
    quantize(x, name, how, seed=1, out=x)
    assert np.array_equal(x, wanted)


@pytest.mark.parametrize("name", ["E5M2", "E5M2:5", "E4M3/tensor"])
@pytest.mark.parametrize("how", ["nearest-even", "stochastic"])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_overlapping_out_is_refused(name: str, how: str, kind: type) -> None:
    base = (np.random.default_rng(0).standard_normal(100_000) * 1e-4).astype(kind)
    wanted = quantize(base[:-5], name, how, seed=1)
    t = torch.from_numpy(base.copy())
    assert np.array_equal(quantize(t[:-5], name, how, seed=1, out=t[5:]).numpy(), wanted)
    assert np.array_equal(quantize(base[:-5], name, how, seed=1, out=base[5:]), wanted)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_refused_calls_do_not_write_to_out(kind: type) -> None:
    x = np.array([0.3, np.nan, 0.7], kind)
    copy = x.copy()
    out = np.full(3, 8, quantize(np.ones(3, kind), "E4M3:5").dtype)
    for target in (x, out):
        with pytest.raises(UserError, match="1 of the numbers"):
            quantize(x, "E4M3:5", out=target)
    assert_same(x, copy, copy)
    assert (out == 8).all()


READ_ONLY = np.full(3, 8.0)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("tensor", "arguments"),
    [
        (np.arange(3), {}),
        (torch.arange(3), {}),
        (np.ones(3, bool), {}),
        (np.ones(3, complex), {}),
        (np.ones(3, np.longdouble), {}),
        (np.array(["1"]), {}),
        (np.ones(3, object), {}),
        (np.ones(3, "M8[s]"), {}),
        (np.ma.masked_array(np.ones(3), mask=[1, 0, 0]), {}),
        (torch.ones(3, dtype=torch.complex64), {}),
        (torch.ones(3).to(torch.float8_e5m2), {}),
        (torch.ones(1).expand(10**13), {}),
        (np.broadcast_to(np.float32(1), 10**13), {}),
        ("1.0", {}),
        ([1.0, 2.0], {}),
        (None, {}),
        (3, {}),
        (torch.ones(3).to_sparse(), {}),
        (torch.ones(3, device="meta"), {}),
        (np.ones(3), {"format": "E5"}),
        (np.ones(3), {"format": None}),
        (np.ones(3), {"rounding": "nearest"}),
        (np.ones(3), {"overflow": "clip"}),
        (np.ones(3), {"overflow": "wrap"}),
        (np.ones(3), {"format": "E2M1F", "overflow": "infinity"}),
        (np.ones(3), {"format": "E5M2:4", "overflow": "nan"}),
        (np.ones(3), {"format": "Q8.8", "nan": "infinity"}),
        (np.ones(3), {"underflow": "flush"}),
        (np.ones(3), {"nan": "ignore"}),
        (np.ones(3), {"threads": 0}),
        (np.ones(3), {"threads": 1.5}),
        (np.ones(3), {"out": np.ones(4)}),
        (np.ones(3), {"out": np.ones(3, np.float32)}),
        (np.ones(3), {"out": torch.ones(3, dtype=torch.float64)}),
        (np.ones(3), {"out": np.ones(6)[::2]}),
        (np.ones(3), {"out": np.broadcast_to(1.0, 3)}),
        (np.ones(3), {"out": READ_ONLY}),
        (np.ones(3), {"out": np.ones(3, ">f8")}),
        (np.ones(3), {"out": np.ones(3, object)}),
        (torch.ones(3), {"out": torch._neg_view(torch.ones(3))}),
        (np.ones(3), {"format": "E0M5"}),
        (np.ones(3), {"format": "E5M60"}),
        (np.ones(3), {"seed": 1.5, "rounding": "stochastic"}),
        (np.ones(3), {"rounding": "hysteresis", "previous": np.ones(4)}),
        (np.array([1.0, np.nan]), {"format": "Q8.8"}),
        (np.array([1.0, np.nan], np.float32), {"format": "E5M2:6"}),
        (np.ones(3), {"format": "E5M2/2x2"}),
    ],
)
def test_wrong_inputs_are_refused(tensor: object, arguments: dict) -> None:
    with pytest.raises(UserError) as refusal:
        quantize(tensor, **({"format": "E5M2"} | arguments))
    text = str(refusal.value)
    assert text.endswith(".") and "\n" not in text
    assert (READ_ONLY == 8).all()


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls these new
def test_sparse_and_nested_tensors_are_refused() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for tensor in (nested, torch.ones(2, 2).to_sparse_csr(), torch.ones(2, 2).to_mkldnn()):
        with pytest.raises(UserError, match="dense floating-point numbers"):
            quantize(tensor, "E5M2")
        with pytest.raises(UserError, match="out must be"):
            quantize(torch.ones(2, 2), "E5M2", out=tensor)


def test_formats_with_few_numbers() -> None:
    assert sorted({quantize(v / 16, "E1M1") for v in range(-64, 65)}) == [-math.inf, -1, 0, 1, math.inf]
    one = FloatFormat(1, 0, infinities=False, nans=False)
    assert sorted({quantize(v / 16, one) for v in range(-64, 65)}) == parse(repr(one)).values().tolist() == [-2, 0, 2]


def test_memory_is_checked_before_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A billion numbers where there is room for two hundred million; into `out` nothing more is needed."""
    monkeypatch.setattr(memory, "free_memory", lambda: 10**9)
    many = torch.ones(1).expand(10**9)
    with pytest.raises(UserError, match=r"Rounding 1,000,000,000 numbers needs 8 GB, but only 1 GB"):
        quantize(many, "E5M2")
    x = torch.empty(2**28)  # a gibibyte that nobody touches
    assert memory_needed(x, parse("E5M2"), torch.float32, x) == 0
    assert memory_needed(x, parse("E5M2"), torch.float32, None) == 2**30


@pytest.mark.slow
def test_a_billion_elements() -> None:
    """In place, in 4 GB; the last ones are looked at."""
    x = np.full(10**9, 0.3, np.float32)
    quantize(x, "E5M2", out=x)
    assert (x[-1000:] == 0.3125).all()
