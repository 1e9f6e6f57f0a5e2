"""Small networks for PyTorch and for `plain.py`, and a training of both side by side."""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from shoal.numerics import LowPrecision, low_precision, parse_scheme
from shoal.numerics.schemes.loss_scale import parse_loss_scale
from tests.numerics.schemes.plain import Plain

Bits = dict[str, Tensor]


class Network(NamedTuple):
    """A model, the same for `plain.py`, and the shape of its input."""

    make: Callable[[], nn.Module]
    plain: Callable[[Plain, Tensor], Tensor]
    shape: tuple[int, ...]
    outputs: int


def mlp(activation: str = "relu") -> nn.Module:
    between = {"relu": nn.ReLU(), "relu_": nn.ReLU(inplace=True), "tanh": nn.Tanh()}[activation]
    return nn.Sequential(nn.Linear(5, 7), between, nn.Linear(7, 3))


def plain_mlp(plain: Plain, x: Tensor) -> Tensor:
    return plain.linear(plain.activated(plain.linear(x, "0").relu(), "relu"), "2")


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 2, 3, stride=2, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 2, bias=False),
        nn.Flatten(), nn.Linear(2, 3),
    )  # fmt: skip


def plain_convnet(plain: Plain, x: Tensor) -> Tensor:
    seen = plain.normalised(plain.conv(x, "0", stride=2, padding=1), "batch_norm")
    seen = F.batch_norm(seen, None, None, plain.own["1.weight"], plain.own["1.bias"], training=True)
    return plain.linear(plain.conv(plain.activated(seen.relu(), "relu"), "3").flatten(1), "5")


class Attentive(nn.Module):
    """Layer normalisation, self-attention with two heads, and a linear layer; (length, batch, 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norm(x)
        return self.out(x + self.attention(seen, seen, seen, need_weights=False)[0])


def plain_attentive(plain: Plain, x: Tensor) -> Tensor:
    length, images, _ = x.shape
    own, op = plain.own, "scaled_dot_product_attention"
    seen = F.layer_norm(plain.normalised(x, "layer_norm"), (4,), own["norm.weight"], own["norm.bias"])
    packed = plain.product_of(seen, "attention.in_proj_weight") + own["attention.in_proj_bias"]
    by_head = packed.reshape(length, images, 3, 2, 2).permute(2, 1, 3, 0, 4)  # (3, batch, head, length, 2)
    scores = plain.matmul(by_head[0], by_head[1].mT, op) * (1 / 2**0.5)
    mixed = plain.matmul(scores.softmax(-1), by_head[2], op)
    flat = mixed.permute(2, 0, 1, 3).reshape(length * images, 4)
    return plain.linear(x + plain.linear(flat, "attention.out_proj").reshape(x.shape), "out")


MLP = Network(mlp, plain_mlp, (6, 5), 3)
CONVNET = Network(convnet, plain_convnet, (3, 2, 4, 4), 3)
ATTENTIVE = Network(Attentive, plain_attentive, (3, 2, 4), 3)

OPTIMIZERS: dict[str, Callable[[list[Tensor]], Optimizer]] = {
    "sgd": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda parameters: Adam(parameters, lr=0.01),
    "adamw": lambda parameters: AdamW(parameters, lr=0.01),
}


def batches(network: Network, count: int, spread: float = 2.0) -> list[tuple[Tensor, Tensor]]:
    """Inputs over a few binades, and targets."""
    random = torch.Generator().manual_seed(1)
    made = []
    for _ in range(count):
        x = torch.randn(network.shape, generator=random)
        x = x * torch.exp2(torch.randint(-int(spread), int(spread) + 1, network.shape, generator=random))
        rows = network.shape[:-1] if len(network.shape) < 4 else network.shape[:1]
        made.append((x, torch.randn((*rows, network.outputs), generator=random)))
    return made


def fresh(network: Network) -> nn.Module:
    """A model with the same weights every time; some of them need more than a few bits."""
    torch.manual_seed(3)
    return network.make()


def trained(
    network: Network, scheme: str, steps: int, optimizer: str = "sgd", scale: str | float = "none", seed: int = 5,
    data: list[tuple[Tensor, Tensor]] | None = None, total: int | None = None,
) -> tuple[LowPrecision, list[Tensor]]:  # fmt: skip
    """The training after so many steps, and its losses."""
    model = fresh(network)
    updated = OPTIMIZERS[optimizer](list(model.parameters()))
    training = low_precision(model, updated, scheme, loss_scale=scale, seed=seed, steps=total)
    return training, run(training, data or batches(network, steps))


def run(training: LowPrecision, data: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    losses = []
    for x, y in data:
        with training:
            loss = (training.model(x) - y).square().mean()
        training.step(loss)
        losses.append(loss.detach())
    return losses


def plainly(
    network: Network, scheme: str, steps: int, optimizer: str = "sgd", scale: str | float = "none", seed: int = 5,
    data: list[tuple[Tensor, Tensor]] | None = None, average_from: int | None = None,
) -> tuple[Plain, list[Tensor]]:  # fmt: skip
    """The same by `plain.py`."""
    own = dict(fresh(network).named_parameters())
    rule = parse_loss_scale(scale)
    plain = Plain(parse_scheme(scheme), own, OPTIMIZERS[optimizer], rule, seed, average_from)
    losses = []
    for x, y in data or batches(network, steps):
        loss = (network.plain(plain, x) - y).square().mean()
        plain.step(loss)
        losses.append(loss.detach())
    return plain, losses


def bits(training: LowPrecision) -> Bits:
    """Weights, gradients, moments and averages."""
    found: Bits = {}
    for name, own in training.model.named_parameters():
        found[name] = own.detach()
        if own.grad is not None:
            found[f"{name}.grad"] = own.grad
        for key, value in training.optimizer.state.get(own, {}).items():
            if key != "step" and value is not None:
                found[f"{name}.{key}"] = value
    return found | {f"mean.{name}": value for name, value in training._mean.items()}


def plain_bits(plain: Plain) -> Bits:
    """The same of a plain training."""
    found: Bits = {}
    for name, own in plain.own.items():
        found[name] = own.detach()
        if own.grad is not None:
            found[f"{name}.grad"] = own.grad
    return found | plain.moments() | {f"mean.{name}": value for name, value in plain.mean.items()}


def copied(found: Bits) -> Bits:
    return copy.deepcopy(found)


def differences(got: Bits, expected: Bits) -> list[str]:
    """Names of what differs in some bit."""
    assert got.keys() == expected.keys(), got.keys() ^ expected.keys()
    return [name for name in got if not same_bits(got[name], expected[name])]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal numbers with equal signs of zero; NaN is NaN."""
    a, b = a.detach().contiguous(), b.detach().contiguous()
    nan = a.isnan() & b.isnan()
    return a.shape == b.shape and bool(((a.view(torch.int32) == b.view(torch.int32)) | nan).all())
