"""Emulated training against the exact reference: forward and backward, every kind of product, bit by bit."""

import copy
import pickle
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.errors import UserError
from shoal.numerics import Emulation, emulate, matmul, parse_mac, quantize, wrap
from shoal.numerics.mac.exact import dot_exact
from tests.numerics.macs import draw, numbers

FLOAT, FIXED, CHANCE = "E5M2:5+E6M5", "E5M2:5+Q8.13", "E5M2:5+E6M5, rounding=stochastic"
BY_ROLE = {"forward": "E4M3*E5M2:5+E6M7", "grad_input": FIXED, "grad_weight": "E5M2*E4M3:5+E6M7, order=chunked(3)"}
UNITS = [{"mac": FLOAT}, {"mac": FIXED}, {"mac": CHANCE, "seed": 3}, BY_ROLE]
ROLES = ("forward", "grad_input", "grad_weight")


def tensor(shape: tuple[int, ...], seed: int = 0, spread: int = 3) -> Tensor:
    return torch.from_numpy(numbers(shape, seed, spread)).requires_grad_()


class Reference:
    """Products in exact fractions, by role, numbered in the order in which they come."""

    def __init__(self, mac: str | None = None, seed: int = 0, **units: str) -> None:
        self.units = {name: parse_mac(mac or units[name]) for name in ROLES}
        self.seed, self.call = seed, 0

    def __call__(self, name: str, a: NDArray, b: NDArray) -> NDArray:
        """(M, K) × (K, N), or batches of them."""
        if a.ndim == 2:
            return self(name, a[None], b[None])[0]
        unit = self.units[name]
        x, y = (quantize(t, f).astype(np.float64) for t, f in zip((a, b), unit.multiplier.formats, strict=True))
        result = np.zeros((len(a), a.shape[1], b.shape[2]))
        for output, (n, i, j) in enumerate(np.ndindex(result.shape)):
            random = draw(unit, self.seed, self.call, output)
            result[n, i, j], _ = dot_exact(x[n, i].tolist(), y[n, :, j].tolist(), unit, random)
        self.call += 1
        return result.astype(np.float32)


def conv_by_hand(
    product: Reference, x: NDArray, w: NDArray, g: NDArray | None, stride: Sequence[int], edges: Sequence[int],
    dilation: Sequence[int], groups: int,
) -> list[NDArray]:  # fmt: skip
    """[output], or [input's gradient, kernel's gradient] given g: numbers are picked one by one."""
    (n, _, h, w_in), (o, c_group, k, l) = x.shape, w.shape
    rows, columns = (
        (size + 2 * edge - apart * (taps - 1) - 1) // step + 1
        for size, edge, apart, taps, step in zip((h, w_in), edges, dilation, (k, l), stride, strict=True)
    )
    o_group = o // groups

    def at(of: NDArray, image: int, channel: int, row: int, column: int) -> float:
        inside = 0 <= row < of.shape[2] and 0 <= column < of.shape[3]
        return of[image, channel, row, column] if inside else 0.0

    def seen(group: int) -> NDArray:
        """What the kernel sees: a row for (image, p, q), a column for (channel, i, j)."""
        return np.array([
            [
                at(x, image, group * c_group + channel, p * stride[0] + i * dilation[0] - edges[0],
                   q * stride[1] + j * dilation[1] - edges[1])
                for channel in range(c_group) for i in range(k) for j in range(l)
            ]
            for image in range(n) for p in range(rows) for q in range(columns)
        ], np.float32)  # fmt: skip

    kernels = [w[group * o_group : (group + 1) * o_group] for group in range(groups)]
    windows = np.stack([seen(group) for group in range(groups)])
    if g is None:
        made = product("forward", windows, np.stack([kernel.reshape(o_group, -1).T for kernel in kernels]))
        return [made.reshape(groups, n, rows, columns, o_group).transpose(1, 0, 4, 2, 3).reshape(n, o, rows, columns)]

    def went_to(group: int, image: int, row: int, column: int, out: int, i: int, j: int) -> float:
        """The gradient of the output that the kernel's tap (i, j) made of this input."""
        p, q = row + edges[0] - i * dilation[0], column + edges[1] - j * dilation[1]
        hit = p % stride[0] == 0 and q % stride[1] == 0
        return at(g, image, group * o_group + out, p // stride[0], q // stride[1]) if hit else 0.0

    behind = np.array([
        [
            [
                went_to(group, image, row, column, out, i, j)
                for out in range(o_group) for i in reversed(range(k)) for j in reversed(range(l))
            ]
            for image in range(n) for row in range(h) for column in range(w_in)
        ]
        for group in range(groups)
    ], np.float32)  # fmt: skip
    turned = np.stack([kernel[:, :, ::-1, ::-1].transpose(0, 2, 3, 1).reshape(-1, c_group) for kernel in kernels])
    of_x = product("grad_input", behind, turned).reshape(groups, n, h, w_in, c_group)
    of_x = of_x.transpose(1, 0, 4, 2, 3).reshape(x.shape)
    gradient = g.reshape(n, groups, o_group, rows * columns).transpose(1, 0, 3, 2).reshape(groups, -1, o_group)
    of_w = product("grad_weight", windows.transpose(0, 2, 1), gradient)
    return [of_x, of_w.transpose(0, 2, 1).reshape(w.shape)]


def assert_bits(got: Tensor | None, expected: NDArray) -> None:
    assert got is not None and got.dtype == torch.float32 and tuple(got.shape) == expected.shape
    wrong = got.detach().numpy() != expected
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} differ, first {got.detach().numpy()[wrong][:3]}"


@pytest.mark.parametrize("units", UNITS)
def test_network_matches_the_definition(units: dict) -> None:
    """Convolution, linear layer and batched product; gradients of everything; backward outside of the context."""
    x, kernel, weight = tensor((2, 2, 5, 4), 1), tensor((4, 2, 3, 2), 2), tensor((6, 36), 3, 1)
    bias, last, scale = tensor((4,), 4), tensor((2, 2, 4), 5, 1), numbers((2, 3, 4), 6, 1)
    with emulate(**units) as emulation:
        conv = F.conv2d(x, kernel, bias, stride=(2, 1), padding=(1, 0))
        hidden = F.linear(conv.relu().flatten(1), weight)
        out = torch.bmm(hidden.view(2, 3, 2), last)
    (out * torch.from_numpy(scale)).sum().backward()

    product, how = Reference(**units), ((2, 1), (1, 0), (1, 1), 1)
    values = [t.detach().numpy() for t in (x, kernel, weight, bias, last)]
    conv_ = conv_by_hand(product, values[0], values[1], None, *how)[0] + values[3][:, None, None]
    flat = np.maximum(conv_, 0).reshape(2, -1)
    hidden_ = product("forward", flat, values[2].T)
    assert_bits(conv, conv_)
    assert_bits(hidden, hidden_)
    assert_bits(out, product("forward", hidden_.reshape(2, 3, 2), values[4]))
    g = product("grad_input", scale, values[4].transpose(0, 2, 1)).reshape(2, 6)
    assert_bits(last.grad, product("grad_weight", hidden_.reshape(2, 3, 2).transpose(0, 2, 1), scale))
    g_flat = product("grad_input", g, values[2])
    assert_bits(weight.grad, product("grad_weight", flat.T, g).T)
    of_x, of_kernel = conv_by_hand(product, values[0], values[1], (g_flat * (flat > 0)).reshape(conv_.shape), *how)
    assert_bits(x.grad, of_x)
    assert_bits(kernel.grad, of_kernel)
    assert [row.calls for row in emulation.coverage()] == [1] * 9
    conv_macs, others = 2 * 4 * 9 * 12, 2 * 36 * 6 + 2 * 3 * 2 * 4
    assert emulation.by_role["forward"].macs == emulation.by_role["grad_weight"].macs == conv_macs + others
    assert emulation.by_role["grad_input"].macs == 2 * 2 * 20 * 24 + others
    assert emulation.macs == 2 * conv_macs + 3 * others + 2 * 2 * 20 * 24


@pytest.mark.parametrize(
    ("x", "kernel", "how"),
    [
        ((1, 2, 4, 4), (3, 2, 2, 2), {"stride": 1}),
        ((2, 1, 5, 4), (2, 1, 3, 3), {"stride": (1, 2), "padding": (2, 1)}),
        ((1, 2, 6, 5), (2, 2, 2, 3), {"dilation": (2, 1), "padding": (0, 3)}),
        ((1, 4, 4, 5), (6, 2, 3, 2), {"groups": 2, "stride": (3, 2), "padding": 2, "dilation": (1, 2)}),
        ((2, 3, 3, 3), (3, 1, 1, 2), {"groups": 3, "stride": 2}),
        ((1, 2, 7, 5), (1, 2, 2, 2), {"stride": 3}),
    ],
)
def test_convolutions_match_the_definition(x: tuple, kernel: tuple, how: dict) -> None:
    inputs, weights = tensor(x, 1), tensor(kernel, 2)
    pairs = {name: v if isinstance(v, tuple) else (v, v) for name, v in how.items() if name != "groups"}
    by_hand = [pairs.get(name, default) for name, default in (("stride", (1, 1)), ("padding", (0, 0)))]
    by_hand += [pairs.get("dilation", (1, 1)), how.get("groups", 1)]
    for unit in (FLOAT, CHANCE):
        product = Reference(unit)
        with emulate(unit):
            got = F.conv2d(inputs, weights, **how)
        assert_bits(got, conv_by_hand(product, inputs.detach().numpy(), weights.detach().numpy(), None, *by_hand)[0])
        g = numbers(tuple(got.shape), 3, 2)
        gradients = torch.autograd.grad(got, (inputs, weights), torch.from_numpy(g))
        expected = conv_by_hand(product, inputs.detach().numpy(), weights.detach().numpy(), g, *by_hand)
        for gradient, value in zip(gradients, expected, strict=True):
            assert_bits(gradient, value)


def close_to_plain(function: Callable, *shapes: tuple[int, ...]) -> Emulation:
    """The same as plain torch, up to rounding, with float32 sums: shapes, strides of the result, and gradients."""
    given = [tensor(shape, n, 1) for n, shape in enumerate(shapes)]
    plain = function(*given)
    with emulate("fp32:1+fp32, order=exact", stats=False) as emulation:
        got = function(*given)
    assert got.shape == plain.shape and got.is_contiguous()
    torch.testing.assert_close(got, plain, rtol=1e-5, atol=1e-5)
    g = torch.from_numpy(numbers(tuple(plain.shape), 9, 1)) if plain.dim() else torch.tensor(1.5)
    for mine, theirs in zip(torch.autograd.grad(got, given, g), torch.autograd.grad(plain, given, g), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert all(row.emulated for row in emulation.coverage()) and len(emulation.coverage()) > 1
    return emulation


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 6)), ((4,), (4,)),
        ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)), ((1, 3, 4), (1, 4, 5)),
        ((0, 4), (4, 5)), ((3, 0), (0, 5)), ((0, 3, 4), (4, 5)), ((1, 3, 4), (0, 4, 5)),
    ],
)  # fmt: skip
def test_matmul_of_every_shape(left: tuple, right: tuple) -> None:
    close_to_plain(torch.matmul, left, right)
    close_to_plain(lambda a, b: a @ b, left, right)


FUNCTIONS: dict[str, tuple] = {
    "linear": (F.linear, (2, 3, 4), (5, 4), (5,)),
    "linear of one row": (F.linear, (4,), (5, 4), (5,)),
    "linear to one": (F.linear, (3, 4), (4,)),
    "linear of none": (F.linear, (0, 4), (5, 4), (5,)),
    "mm": (torch.mm, (3, 4), (4, 5)),
    "Tensor.mm": (Tensor.mm, (3, 4), (4, 5)),
    "aten.mm": (torch.ops.aten.mm, (3, 4), (4, 5)),
    "aten.mm.default": (torch.ops.aten.mm.default, (3, 4), (4, 5)),
    "linalg.matmul": (torch.linalg.matmul, (3, 4), (4, 5)),
    "bmm": (torch.bmm, (2, 3, 4), (2, 4, 5)),
    "mv": (torch.mv, (3, 4), (4,)),
    "dot": (torch.dot, (4,), (4,)),
    "vdot": (torch.vdot, (4,), (4,)),
    "inner": (torch.inner, (2, 3, 4), (5, 4)),
    "addmm": (lambda a, b, c: torch.addmm(a, b, c, beta=0.5, alpha=2), (5,), (3, 4), (4, 5)),
    "addmm without": (lambda b, c: torch.addmm(torch.full((5,), np.nan), b, c, beta=0), (3, 4), (4, 5)),
    "baddbmm": (lambda a, b, c: a.baddbmm(b, c), (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "addbmm": (torch.addbmm, (3, 5), (2, 3, 4), (2, 4, 5)),
    "addmv": (torch.addmv, (3,), (3, 4), (4,)),
    "addr": (torch.addr, (3, 4), (3,), (4,)),
    "in place": (lambda a, b, c: (a * 2).addmm_(b, c, alpha=3), (3, 5), (3, 4), (4, 5)),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 2), (2, 3, 4), (3, 4, 5)),
    "tensordot of axes": (lambda a, b: torch.tensordot(a, b, ([0, -1], [1, 0])), (2, 3, 4), (4, 2, 5)),
    "bilinear": (F.bilinear, (3, 4), (3, 5), (6, 4, 5), (6,)),
    "conv1d": (lambda a, b, c: F.conv1d(a, b, c, stride=2, padding=1, groups=2), (2, 4, 9), (6, 2, 3), (6,)),
    "conv1d same": (lambda a, b: F.conv1d(a, b, padding="same", dilation=2), (2, 4, 9), (6, 4, 2)),
    "conv2d valid": (lambda a, b: F.conv2d(a, b, padding="valid"), (2, 4, 5, 6), (6, 4, 3, 2)),
    "conv2d same": (lambda a, b: F.conv2d(a, b, padding="same", dilation=(1, 3)), (2, 4, 5, 6), (6, 4, 3, 2)),
    "conv2d of one": (F.conv2d, (4, 5, 6), (6, 4, 3, 3), (6,)),
    "conv2d of none": (F.conv2d, (0, 4, 5, 6), (6, 4, 3, 3)),
    "attention": (F.scaled_dot_product_attention, (2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 7)),
    "causal": (lambda *a: F.scaled_dot_product_attention(*a, is_causal=True), (3, 4, 5), (3, 6, 5), (3, 6, 7)),
    "grouped": (
        lambda *a: F.scaled_dot_product_attention(*a, enable_gqa=True, scale=0.3),
        (2, 4, 4, 5), (2, 2, 6, 5), (2, 2, 6, 7),
    ),
    "masked": (
        lambda *a: F.scaled_dot_product_attention(*a, torch.arange(6) > torch.arange(4)[:, None] + 2),
        (3, 4, 5), (3, 6, 5), (3, 6, 7),
    ),
    "biased": (F.scaled_dot_product_attention, (3, 4, 5), (3, 6, 5), (3, 6, 7), (4, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_supported_function(name: str) -> None:
    close_to_plain(*FUNCTIONS[name])


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bik,bkj->bij", ((2, 3, 4), (2, 4, 5))), ("ij,jk", ((3, 4), (4, 5))),
        ("...ij,...jk->...ik", ((2, 3, 4), (1, 4, 5))),
        ("ii,i->i", ((3, 3), (3,))), ("i,j->ji", ((3,), (4,))), ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 5))),
        ("bhid,bhjd->bhij", ((2, 3, 4, 5), (2, 3, 6, 5))), ("ij,kj->k", ((2, 3), (4, 3))),
        ("bi,bi->bi", ((2, 3), (2, 3))),
        ("...a,ab->...b", ((2, 3, 4), (4, 5))), ("ba,b", ((2, 3), (2,))), ("ij,ij->", ((2, 3), (2, 3))),
        ("ij,kj->ik", ((2, 1), (4, 3))),
    ],
)  # fmt: skip
def test_einsum(equation: str, shapes: tuple) -> None:
    close_to_plain(lambda *given: torch.einsum(equation, *given), *shapes)


def test_einsum_matches_the_definition() -> None:
    """Against the reference, with the axes summed in the first operand's order; and by lists of axes."""
    x, y, z = tensor((2, 3, 4), 1), tensor((4, 3, 2, 2), 2), tensor((2, 3), 3)
    with emulate(FLOAT):
        got = torch.einsum("abc,cbad,de->ae", x, y, z)
        same = torch.einsum(x, [0, 1, 2], y, [2, 1, 0, 3], z, [3, 4], [0, 4])
        assert torch.equal(torch.einsum("aa->a", x[:2, :2, 0]), x[:2, :2, 0].diagonal())
    product = Reference(FLOAT)
    half = product(
        "forward", x.detach().reshape(2, 1, 12).numpy(), y.detach().permute(2, 1, 0, 3).reshape(2, 12, 2).numpy()
    )
    assert_bits(got, product("forward", half[:, 0], z.detach().numpy()))
    assert torch.equal(got, same)


def test_float32_units_are_sequential_float32() -> None:
    x, w = numbers((5, 40), 1, 2), numbers((40, 7), 2, 2)
    expected = np.zeros((5, 7), np.float32)
    for k in range(40):
        expected += x[:, k, None] * w[k]
    with emulate("fp32:1+fp32"):
        got = torch.from_numpy(x) @ torch.from_numpy(w)
    assert_bits(got, expected)


def test_units_apply_to_their_roles() -> None:
    x, w = tensor((4, 6), 1), nn.Parameter(tensor((6, 3), 2))
    g = torch.from_numpy(numbers((4, 3), 3))
    units = {"forward": parse_mac(FLOAT), "grad_input": parse_mac(FIXED), "grad_weight": parse_mac("E4M2:5+E5M5")}

    def expect(weight_first: bool, got: Tensor, of_x: Tensor, of_w: Tensor) -> None:
        a, b = (w.T, x.T) if weight_first else (x, w)
        into = g.T if weight_first else g
        roles = ("grad_weight", "grad_input") if weight_first else ("grad_input", "grad_weight")
        gradients = matmul(into, b.detach().mT, units[roles[0]]), matmul(a.detach().mT, into, units[roles[1]])
        assert torch.equal(got, matmul(a, b, units["forward"]))
        assert torch.equal(of_x, gradients[1].T if weight_first else gradients[0])
        assert torch.equal(of_w, gradients[0].T if weight_first else gradients[1])

    for weight_first in (False, True):
        computed = x * 1
        with emulate(**units):
            got = w.T @ computed.T if weight_first else computed @ w
        expect(weight_first, got, *torch.autograd.grad(got, (x, w), g.T if weight_first else g))
    with emulate(forward=FLOAT) as emulation:  # both are leaves: the second is the weight; no units for gradients
        got = x @ w
    of_x, of_w = torch.autograd.grad(got, (x, w), g)
    assert torch.equal(of_x, g @ w.T) and torch.equal(of_w, x.T @ g)
    assert [(row.role, row.emulated) for row in emulation.coverage()] == [
        ("forward", True), ("grad_input", False), ("grad_weight", False),
    ]  # fmt: skip
    q, k = x * 1, tensor((4, 6), 5) * 1
    with emulate(**units) as emulation:
        (q @ k.mT).sum().backward()
    assert {row.role: row.calls for row in emulation.coverage()} == {"forward": 1, "grad_input": 2}
    with emulate(**units) as emulation:  # data is no weight, and a computed weight of bilinear is one
        (w.T @ x.detach().T).sum().backward()
        F.bilinear(x.detach(), x.detach(), tensor((2, 6, 6), 6) * 1).sum().backward()
    assert {row.role for row in emulation.coverage()} == {"forward", "grad_weight", "grad_input"}
    assert emulation.by_role["grad_weight"].macs == 4 * 6 * 3 + 4 * 2 * 6 * 6
    assert emulation.by_role["grad_input"].macs == 4 * 2 * 6  # of input1 · weight, on the way


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 2)
    )


def gradients(run: Callable[[nn.Module, Tensor], Tensor]) -> list[Tensor]:
    net = model()
    loss = run(net, torch.from_numpy(numbers((6, 1, 4, 4), 1, 1)))
    loss.square().mean().backward()
    return [loss.detach(), *(parameter.grad for parameter in net.parameters() if parameter.grad is not None)]


def in_context(unit: str, **options: object) -> list[Tensor]:
    def run(net: nn.Module, x: Tensor) -> Tensor:
        with emulate(unit, **options):
            return net(x)

    return gradients(run)


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


def test_context_decorator_and_wrapped_module_agree() -> None:
    expected = in_context(CHANCE, seed=5)
    assert len(expected) == 7
    assert equal(in_context(CHANCE, seed=5), expected) and equal(in_context(CHANCE, seed=5, stats=False), expected)
    assert not equal(in_context(CHANCE, seed=6), expected)
    assert equal(gradients(emulate(CHANCE, seed=5)(lambda net, x: net(x))), expected)
    assert equal(gradients(lambda net, x: wrap(net, CHANCE, seed=5)(x)), expected)

    emulation = emulate(CHANCE, seed=5)

    def all_inside() -> list[Tensor]:
        with emulation:
            return gradients(lambda net, x: net(x))

    assert equal(all_inside(), expected)
    once = emulation.macs
    assert not equal(all_inside(), expected) and emulation.macs == 2 * once  # it goes on where it was


def test_a_wrapped_module_is_a_module() -> None:
    net = model()
    wrapped = wrap(net, FLOAT).eval()
    assert not net.training and list(wrapped.parameters()) == list(net.parameters())
    assert wrapped.emulation.macs == 0 and wrapped(torch.ones(1, 1, 4, 4)).shape == (1, 2) and wrapped.emulation.macs


def test_a_wrapped_module_can_be_copied_and_saved() -> None:
    """Its random bits and counts go on from where they were, without a trace in the other one."""
    wrapped, x = wrap(model(), CHANCE, seed=2), tensor((3, 1, 4, 4)).detach()
    wrapped(x)
    macs, copies = wrapped.emulation.macs, (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped)))
    expected = wrapped(x)
    for other in copies:
        assert other.emulation.macs == macs and torch.equal(other(x), expected) and other.emulation.macs == 2 * macs
    assert wrapped.emulation.macs == 2 * macs


def test_event_and_mac_counts() -> None:
    a, b = torch.from_numpy(numbers((6, 30), 1, 6)) * 60, torch.from_numpy(numbers((30, 5), 2, 6))
    _, expected = matmul(a, b, FIXED, stats=True)
    with emulate(FIXED) as emulation:
        a @ b
        a.requires_grad_().mm(b).sum().backward()
    forward, grad_input = emulation.by_role["forward"], emulation.by_role["grad_input"]
    assert forward == expected + expected and forward.saturated and forward.underflowed and not forward.overflowed
    assert emulation.by_role["grad_weight"].macs == 900 and grad_input.macs == 0
    assert emulation.macs == 2700 and emulation.saturated >= forward.saturated
    assert emulation.underflowed >= forward.underflowed and emulation.overflowed == 0
    assert [tuple(row) for row in emulation.coverage()] == [
        ("matmul", "forward", 1, 900, True), ("mm", "forward", 1, 900, True), ("mm", "grad_weight", 1, 900, True),
    ]  # fmt: skip
    with emulate(FIXED, stats=False) as emulation:
        a @ b
    assert emulation.macs == 900
    with pytest.raises(UserError):
        _ = emulation.saturated


def test_results_of_wide_accumulators_are_rounded_to_float32() -> None:
    a, b = torch.from_numpy(numbers((3, 5), 1, 4)), torch.from_numpy(numbers((5, 2), 2, 4))
    with emulate("Q16.16+Q16.16"):
        assert torch.equal(a @ b, matmul(a, b, "Q16.16+Q16.16").float())


def test_memory_layouts_and_views() -> None:
    x, w = tensor((2, 3, 5, 6), 1).detach(), tensor((4, 3, 2, 2), 2)
    with emulate(FLOAT):
        expected = F.conv2d(x, w)
        assert torch.equal(F.conv2d(x.to(memory_format=torch.channels_last), w), expected)
        assert torch.equal(F.conv2d(x.mT.contiguous().mT, w), expected)
        with torch.no_grad():
            assert torch.equal(F.conv2d(x, w), expected)
        with torch.inference_mode():
            assert torch.equal(F.conv2d(x, w), expected)
        a, b = x[0, :, 0], x[1, 0, :, :2].T.contiguous().T
        product = a[:, :5] @ b
        out = torch.empty(3, 2)
        assert torch.mm(a[:, :5], b, out=out) is out and torch.equal(out, product)
        start = torch.ones(3, 2)
        assert start.addmm_(a[:, :5], b) is start and torch.equal(start, 1 + product)
    assert torch.equal(product, matmul(a[:, :5].clone(), b.clone(), FLOAT))


def test_xor_is_learnt_in_8_bits() -> None:
    torch.manual_seed(1)
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    y = torch.tensor([[0.0], [1.0], [1.0], [0.0]])
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    descent = torch.optim.Adam(net.parameters(), 0.06)
    with emulate(FLOAT) as emulation:
        for _ in range(80):
            descent.zero_grad()
            F.mse_loss(net(x), y).backward()
            descent.step()
        assert (net(x) - y).abs().max() < 0.2
    assert {row.calls for row in emulation.coverage()} == {80, 162, 160}  # the first layer's input needs no gradient
    assert torch.equal(net[2](x.repeat(1, 8)), F.linear(x.repeat(1, 8), net[2].weight, net[2].bias))
    with emulate("E4M2:5+E3M1"):
        assert (net(x) - y).abs().max() > 0.05
