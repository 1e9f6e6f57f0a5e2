"""What may be given to matmul, what it returns, and what it refuses in one sentence."""

import numpy as np
import pytest
import torch

from shoal.errors import UserError
from shoal.numerics import matmul, quantize
from shoal.system import memory
from tests.numerics.macs import numbers

UNIT = "E5M2:5+E6M5"


A = np.random.default_rng(0).standard_normal((6, 10)).astype(np.float32)


def test_layouts_of_operands() -> None:
    """Views, other byte orders, negated views, read-only arrays and other types give the bits of plain float32 ones."""
    b = np.random.default_rng(1).standard_normal((10, 4)).astype(np.float32)
    wanted = matmul(A, b, UNIT)
    wide = np.repeat(np.repeat(A, 2, 0), 3, 1)
    frozen = A.copy()
    frozen.flags.writeable = False
    for a in (wide[::2, ::3], np.asfortranarray(A), A.astype(">f4"), A.astype(np.float64), frozen, A.view(np.recarray)):
        assert np.array_equal(matmul(a, b, UNIT), wanted)
        assert np.array_equal(matmul(b.T, a.T, UNIT), wanted.T)  # no NaN, no ties of signs: the same products
    t = torch.from_numpy(A)
    for tensor in (torch._neg_view(-t), t.clone().requires_grad_(), torch.nn.Parameter(t.clone())):
        assert torch.equal(matmul(tensor, torch.from_numpy(b), UNIT), torch.from_numpy(wanted))
        assert torch.equal(quantize(tensor, "E5M2"), quantize(t, "E5M2"))
    assert torch.equal(
        matmul(t[:1].expand(3, 6, 10), torch.from_numpy(b), UNIT),
        matmul(t[:1].repeat(3, 6, 1), torch.from_numpy(b), UNIT),
    )


def test_sizes_of_operands() -> None:
    for shape, other, result in (
        ((0, 3), (3, 4), (0, 4)),
        ((2, 3), (3, 0), (2, 0)),
        ((2, 0), (0, 4), (2, 4)),
        ((0, 2, 3), (3, 4), (0, 2, 4)),
        ((5, 1, 2, 3), (0, 3, 4), (5, 0, 2, 4)),
        ((1, 1), (1, 1), (1, 1)),
    ):
        got, stats = matmul(np.ones(shape, np.float32), np.ones(other, np.float32), UNIT, stats=True)
        assert got.shape == result and stats.macs == got.size * shape[-1]
        assert (got == (0 if shape[-1] == 0 else shape[-1])).all()


def test_nan_in_operand_formats_without_nan() -> None:
    """Refused, unless the unit says what it is taken for."""
    bad = A.copy()
    bad[2, 3] = np.nan
    with pytest.raises(UserError, match="1 of the numbers are NaN"):
        matmul(bad, A.T, UNIT)
    zero = np.where(np.isnan(bad), np.float32(0), bad)
    assert np.array_equal(matmul(bad, A.T, f"{UNIT}, nan=zero"), matmul(zero, A.T, UNIT))
    with_nan = matmul(bad, A.T, "E5M2:1+E6M5")
    assert np.isnan(with_nan[2]).all() and np.isfinite(np.delete(with_nan, 2, 0)).all()


@pytest.mark.parametrize(
    ("a", "b", "arguments"),
    [
        (A, A, {}),
        (A[0], A[0], {}),
        (A[None].repeat(2, 0), A.T[None].repeat(3, 0), {}),
        (A, torch.from_numpy(A.T.copy()), {}),
        (A.astype(int), A.T, {}),
        (A, A.T.astype(bool), {}),
        (A.astype(complex), A.T, {}),
        (A.astype(object), A.T, {}),
        (A.astype(str), A.T, {}),
        (A.astype(np.longdouble), A.T, {}),
        (A.tolist(), A.T, {}),
        (A, None, {}),
        (np.ma.masked_invalid(A), A.T, {}),
        (torch.ones(2, 2, dtype=torch.int8), torch.ones(2, 2), {}),
        (torch.ones(2, 2), torch.ones(2, 2, dtype=torch.complex64), {}),
        (torch.ones(2, 2, device="meta"), torch.ones(2, 2), {}),
        (torch.ones(2, 2), torch.ones(2, 2).to_sparse(), {}),
        (torch.ones(2, 2).to_mkldnn(), torch.ones(2, 2), {}),
        (A, A.T, {"mac": "E5M2"}),
        (A, A.T, {"mac": None}),
        (A, A.T, {"threads": 0}),
        (A, A.T, {"seed": "x"}),
        (A, A.T, {"mac": f"{UNIT}, rounding=stochastic"}),
        (A, A.T, {"cast": False}),
        (np.full((1, 1), 3.4028235e38, np.float32), np.ones((1, 1), np.float32), {"cast": False}),  # would become inf
        (np.ones((10**6, 1), np.float32), np.ones((1, 10**6), np.float32), {}),
        (np.ones((10**6, 1), np.float32), np.ones((1, 10**6), np.float32), {"mac": "Q16.16+Q16.16"}),
        (torch.ones(1, 1).expand(10**10, 1), torch.ones(1, 1).expand(1, 10**10), {}),  # more outputs than int64 counts
        (np.broadcast_to(np.float32(1), (10**9, 10**9)), np.ones((1, 1), np.float32), {}),
    ],
)
def test_wrong_operands_are_refused(a: object, b: object, arguments: dict) -> None:
    with pytest.raises(UserError) as refusal:
        matmul(a, b, **({"mac": UNIT} | arguments))
    text = str(refusal.value)
    assert text.endswith(".") and "\n" not in text


def test_infinite_operands_are_values_of_their_format() -> None:
    """float64 and float32 infinities, with and without a cast."""
    for kind in (np.float32, np.float64):
        a = np.array([[np.inf, 1]], kind)
        assert matmul(a, np.ones((2, 1), kind), UNIT, cast=False) == np.inf


def test_cast_false_checks_operands() -> None:
    with pytest.raises(UserError, match="not all values of E5M2:5"):
        matmul(numbers((2, 3)), numbers((3, 2)), "E5M2:5+E6M5", cast=False)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls these new
def test_sparse_and_nested_tensors_are_refused() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for tensor in (nested, torch.ones(2, 2).to_sparse_csr(), torch.ones(2, 2).to_mkldnn()):
        with pytest.raises(UserError, match="dense floating-point numbers"):
            matmul(tensor, torch.ones(2, 2), UNIT)


def test_memory_is_checked_before_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 10**9)
    with pytest.raises(UserError, match=r"needs 4\.\d+ GB, but only 1 GB of memory is free .* pieces need less\.$"):
        matmul(torch.ones(2**15, 1), torch.ones(1, 2**15), UNIT)
