"""Emulation at its limits: contexts within contexts, others' gradients, and what is refused by name."""

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.numerics import emulate, matmul, role, wrap
from shoal.numerics.emulation.roles import emulating
from tests.numerics.emulation.test_emulate import FIXED, FLOAT, equal, tensor
from tests.numerics.macs import numbers


def test_contexts_nest_and_are_restored() -> None:
    """Contexts nest, end with an exception, and hold in their own thread only."""
    a, b = torch.from_numpy(numbers((4, 9), 1)), torch.from_numpy(numbers((9, 3), 2))
    plain, first, second = a @ b, matmul(a, b, FLOAT), matmul(a, b, FIXED)
    seen: list[Tensor] = []
    with emulate(FLOAT) as outer:
        assert torch.equal(a @ b, first) and emulating()
        with pytest.raises(ZeroDivisionError), emulate(FIXED) as inner:
            assert torch.equal(a @ b, second)
            thread = threading.Thread(target=lambda: seen.append(a @ b))
            thread.start()
            thread.join()
            with outer:
                assert torch.equal(a @ b, first)
            raise ZeroDivisionError
        assert torch.equal(a @ b, first) and torch.equal(seen[0], plain)
        with emulate(grad_input=FLOAT) as silent:  # plain is plain, not the outer one's
            assert torch.equal(a @ b, plain)
    assert torch.equal(a @ b, plain) and not emulating()
    assert (outer.macs, inner.macs, silent.macs) == (3 * 108, 108, 0)
    started = threading.Barrier(2)

    def in_a_thread(unit: str) -> None:
        with emulate(unit):
            started.wait()
            for _ in range(20):
                seen.append(a @ b)
                assert torch.equal(seen[-1], first if unit == FLOAT else second)

    threads = [threading.Thread(target=in_a_thread, args=(unit,)) for unit in (FLOAT, FIXED)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 41


class Own(torch.autograd.Function):
    """A linear layer with its gradients written out."""

    tagged = False

    @staticmethod
    def forward(ctx, x, w):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, w)
        return torch.mm(x, w)

    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        x, w = ctx.saved_tensors
        if not Own.tagged:
            return g @ w.mT, x.mT @ g
        with role("grad_weight"):
            of_w = x.mT @ g
        return g @ w.mT, of_w


class WithoutCtx(torch.autograd.Function):
    """The same with `setup_context`."""

    @staticmethod
    def forward(x, w):  # type: ignore[no-untyped-def]
        return torch.mm(x, w)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        return g @ ctx.saved_tensors[1].mT, ctx.saved_tensors[0].mT @ g


@pytest.mark.parametrize("inside", [False, True])
def test_autograd_functions_with_custom_gradients(inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their backward is emulated wherever it is called; if units differ it has to say what is what."""
    x, w, g = tensor((4, 6), 1), tensor((6, 3), 2), torch.from_numpy(numbers((4, 3), 3))
    by_role = {"forward": FLOAT, "grad_input": FIXED, "grad_weight": "E4M2:5+E5M5"}

    def run(**units: str) -> tuple[Tensor, ...]:
        with emulate(**units) as emulation:
            out = Own.apply(x, w)
            if inside:
                return out, *torch.autograd.grad(out, (x, w), g)
        gradients = torch.autograd.grad(out, (x, w), g)
        assert emulation.macs == 3 * 72 and not emulating()
        return out, *gradients

    def expected(forward: str, grad_input: str, grad_weight: str) -> list[Tensor]:
        return [matmul(x, w, forward), matmul(g, w.detach().mT, grad_input), matmul(x.detach().mT, g, grad_weight)]

    assert equal(list(run(mac=FLOAT)), expected(FLOAT, FLOAT, FLOAT))
    with pytest.raises(UserError, match="role"):
        run(**by_role)
    assert not emulating()
    monkeypatch.setattr(Own, "tagged", True)
    with pytest.raises(UserError, match="role"):  # the other one still does not say
        run(**by_role)
    with role("grad_input"):
        assert equal(list(run(**by_role | {"forward": FIXED})), expected(FIXED, FIXED, by_role["grad_weight"]))


def test_second_derivatives_are_refused() -> None:
    x, w = tensor((4, 6), 1), tensor((6, 3), 2)
    for function in (torch.mm, Own.apply, lambda x, w: F.conv1d(x[None], w.mT[..., None].repeat(1, 2, 1)[:, :4])):
        with emulate(FLOAT):
            out = function(x, w)
        with pytest.raises(UserError, match="create_graph"):
            torch.autograd.grad(out.sum(), x, create_graph=True)


def test_attention_modules_are_covered() -> None:
    """Not even their short cuts for inference escape."""
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True), tensor((2, 5, 8), 1, 1)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True)
    for train in (True, False):
        for weights in (True, False):
            attention.train(train)
            with emulate("fp32:1+fp32") as emulation, torch.set_grad_enabled(train):
                got = attention(x, x, x, need_weights=weights)[0]
            torch.testing.assert_close(got, attention(x, x, x)[0], rtol=1e-4, atol=1e-4)
            assert emulation.macs == 2 * 5 * 8 * 32 + 2 * 2 * 2 * 5 * 5 * 4
    with emulate(FLOAT) as emulation, torch.no_grad():
        layer.eval()(x)
        nn.Bilinear(8, 8, 3)(x, x)
    assert {row.op for row in emulation.coverage()} == {"linear", "scaled_dot_product_attention", "bilinear"}


A = torch.from_numpy(numbers((4, 4), 1, 1))
P = A @ A.mT + torch.eye(4)
PLAIN = (A @ nn.Parameter(P)).sum()
SCRIPTED = torch.jit.script(nn.Linear(4, 2))


def in_autocast() -> Tensor:
    with torch.autocast("cpu"):
        return A @ A


def in_forward_mode() -> Tensor:
    with torch.autograd.forward_ad.dual_level():
        return torch.autograd.forward_ad.make_dual(A, A) @ A


REFUSED: dict[str, Callable[[], object]] = {
    "lstm": lambda: nn.LSTM(4, 3)(A), "gru": lambda: nn.GRU(4, 3)(A), "rnn_tanh": lambda: nn.RNN(4, 3)(A),
    "lstm_cell": lambda: nn.LSTMCell(4, 3)(A), "gru_cell": lambda: nn.GRUCell(4, 3)(A),
    "rnn_relu_cell": lambda: nn.RNNCell(4, 3, nonlinearity="relu")(A),
    "conv3d": lambda: F.conv3d(torch.ones(1, 1, 3, 3, 3), torch.ones(1, 1, 2, 2, 2)),
    "conv_transpose1d": lambda: F.conv_transpose1d(A[None], torch.ones(4, 2, 2)),
    "conv_transpose2d": lambda: F.conv_transpose2d(A[None, None], torch.ones(1, 2, 2, 2)),
    "conv_transpose3d": lambda: F.conv_transpose3d(torch.ones(1, 1, 3, 3, 3), torch.ones(1, 1, 2, 2, 2)),
    "conv_tbc": lambda: torch.conv_tbc(A[None], torch.ones(1, 4, 2), torch.ones(2)),
    "convolution": lambda: torch.convolution(A[None], torch.ones(2, 4, 1), None, [1], [0], [1], False, [0], 1),
    "cdist": lambda: torch.cdist(A, A), "pdist": lambda: F.pdist(A),
    "cosine_similarity": lambda: F.cosine_similarity(A, A),
    "chain_matmul": lambda: torch.chain_matmul(A, A, A), "linalg_multi_dot": lambda: torch.linalg.multi_dot([A, A, A]),
    "linalg_inv": lambda: torch.linalg.inv(P), "inverse": lambda: P.inverse(),
    "linalg_solve": lambda: torch.linalg.solve(P, A),
    "linalg_svd": lambda: torch.linalg.svd(A), "linalg_qr": lambda: torch.linalg.qr(A), "det": lambda: torch.det(A),
    "linalg_cholesky": lambda: torch.linalg.cholesky(P), "linalg_eigh": lambda: torch.linalg.eigh(P),
    "linalg_eig": lambda: torch.linalg.eig(A), "linalg_lstsq": lambda: torch.linalg.lstsq(P, A),
    "linalg_pinv": lambda: torch.linalg.pinv(A), "linalg_lu": lambda: torch.linalg.lu(A),
    "linalg_vecdot": lambda: torch.linalg.vecdot(A, A), "linalg_matrix_power": lambda: torch.linalg.matrix_power(A, 3),
    "linalg_solve_triangular": lambda: torch.linalg.solve_triangular(P.triu(), A, upper=True),
    "matrix_exp": lambda: torch.matrix_exp(A), "cholesky_solve": lambda: torch.cholesky_solve(A, P),
    "linalg_householder_product": lambda: torch.linalg.householder_product(A, A[0]), "geqrf": lambda: torch.geqrf(A),
    "cov": lambda: torch.cov(A), "corrcoef": lambda: torch.corrcoef(A), "fft_rfft": lambda: torch.fft.rfft(A),
    "_sparse_mm": lambda: torch.sparse.mm(A.to_sparse(), A),
    "_addmm_activation": lambda: torch._addmm_activation(A[0], A, A),
    "embedding_bag": lambda: F.embedding_bag(
        torch.tensor([[0, 1]]), A, per_sample_weights=torch.ones(1, 2), mode="sum"
    ),
    "float64 matmul": lambda: A.double() @ A.double(), "float16 matmul": lambda: A.half() @ A.half(),
    "int64 mm": lambda: torch.mm(A.long(), A.long()),
    "complex64 bmm": lambda: torch.bmm(*[A[None].to(torch.complex64)] * 2),
    "sparse matmul": lambda: A.to_sparse() @ A, "meta linear": lambda: F.linear(A.to("meta"), A.to("meta")),
    "autocast matmul": in_autocast, "forward-mode matmul": in_forward_mode,
    "vmap dot": lambda: torch.vmap(torch.dot)(A, A),
    "torch.func matmul": lambda: torch.func.grad(lambda a: (a @ A).sum())(A),
    "checkpointing matmul": lambda: torch.utils.checkpoint.checkpoint(
        lambda a: a @ A, A.clone().requires_grad_(), use_reentrant=False
    ),
    "ctx mm": lambda: WithoutCtx.apply(A, nn.Parameter(P)),
    "backward mm": lambda: PLAIN.backward(retain_graph=True),
    "addmm": lambda: SCRIPTED(A),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_operations_are_refused(name: str) -> None:
    """Refused by name; with strict=False done as it is, and listed."""
    *about, op = name.split()
    with pytest.raises(UserError) as refusal, emulate(FLOAT):
        REFUSED[name]()
    text = str(refusal.value)
    assert text.startswith(f"{op} cannot be emulated: ") and text.endswith(".") and "\n" not in text
    assert all(word in text for word in about)
    assert not emulating()
    with emulate(FLOAT, strict=False) as emulation:
        REFUSED[name]()
    rows = [row for row in emulation.coverage() if row.op == op]
    assert rows and all(row.calls for row in rows) and (about == ["ctx"] or not any(row.emulated for row in rows))


@pytest.mark.parametrize(
    "function",
    [
        lambda: torch.linalg.norm(A), lambda: F.layer_norm(A, (4,)), lambda: torch.outer(A[0], A[0]),
        lambda: torch.kron(A, A), lambda: A * A, lambda: F.embedding_bag(torch.tensor([[0, 1]]), A),
        lambda: F.interpolate(A[None, None], scale_factor=2, mode="bilinear"), lambda: A.softmax(-1),
        lambda: torch.linalg.cross(A[:, :3], A[:, :3]), lambda: A.unflatten(0, (2, 2)),
        lambda: torch.einsum("ij->ji", A),
    ],
)  # fmt: skip
def test_operations_without_products_are_not_listed(function: Callable[[], Tensor]) -> None:
    with emulate(FLOAT) as emulation:
        got = function()
    assert torch.equal(got, function()) and not emulation.coverage()


def test_compiled_models_run_uncompiled() -> None:
    net = nn.Linear(4, 2)
    compiled = torch.compile(net, backend="eager")
    compiled(A)
    with emulate(FLOAT) as emulation:
        got, expected = compiled(A), net(A)
    assert torch.equal(got, expected) and emulation.by_role["forward"].macs == 2 * 4 * 4 * 2


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: emulate(), lambda: emulate(FLOAT, forward=FLOAT), lambda: emulate("E5M2"), lambda: emulate(5),
        lambda: emulate(FLOAT, seed="x"), lambda: wrap(torch.relu, FLOAT), lambda: emulate(FLOAT)(nn.ReLU()),
        lambda: emulate(FLOAT)(i for i in ()), lambda: emulate(FLOAT)(generator), lambda: role("backward"),
        lambda: emulate(FLOAT)(torch.mm)(A, A[:3]), lambda: emulate(FLOAT)(torch.mm)(A[None], A),
        lambda: emulate(FLOAT)(torch.matmul)(A, A[0, 0]), lambda: emulate(FLOAT)(torch.einsum)("ij,jk->il", A, A),
        lambda: emulate(FLOAT)(torch.einsum)("ij,j->i", A, A), lambda: emulate(FLOAT)(F.conv1d)(A, torch.ones(2, 4, 9)),
        lambda: emulate(FLOAT)(F.conv1d)(A, torch.ones(2, 3, 2)), lambda: emulate(FLOAT)(torch.mm)(A * np.nan, A),
        lambda: emulate(FLOAT)(lambda: F.conv1d(A, torch.ones(2, 4, 2), padding="same", stride=2))(),
    ],
)  # fmt: skip
def test_wrong_inputs_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(UserError) as refusal:
        wrong()
    text = str(refusal.value)
    assert text.endswith(".") and "\n" not in text and not emulating()


def generator():  # type: ignore[no-untyped-def]
    """Refused as a function to decorate."""
    return
    yield
