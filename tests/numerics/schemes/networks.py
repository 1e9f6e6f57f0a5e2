"""Small networks for PyTorch and for `plain.py`, and a training of both side by side."""

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
Batch = tuple[Tensor, Tensor]


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


def batches(network: Network, count: int, spread: float = 2.0) -> list[Batch]:
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


def start(
    network: Network,
    scheme: str,
    optimizer: str = "sgd",
    scale: str | float = "none",
    total: int | None = None,
    seed: int = 5,
) -> LowPrecision:
    """A new training of the network."""
    model = fresh(network)
    updated = OPTIMIZERS[optimizer](list(model.parameters()))
    return low_precision(model, updated, scheme, loss_scale=scale, seed=seed, steps=total)


def train(training: LowPrecision, data: list[Batch]) -> list[Tensor]:
    """The losses."""
    losses = []
    for x, y in data:
        with training:
            loss = (training.model(x) - y).square().mean()
        training.step(loss)
        losses.append(loss.detach())
    return losses


def side_by_side(
    network: Network, scheme: str, steps: int, optimizer: str = "sgd", scale: str | float = "none",
    total: int | None = None, average_from: int | None = None, data: list[Batch] | None = None,
) -> LowPrecision:  # fmt: skip
    """Train both; after each step all numbers and counts must be the same. Returns the training."""
    training = start(network, scheme, optimizer, scale, total)
    own = dict(fresh(network).named_parameters())
    plain = Plain(parse_scheme(scheme), own, OPTIMIZERS[optimizer], parse_loss_scale(scale), 5, average_from)
    for step, batch in enumerate(data or batches(network, steps), 1):
        (loss,) = train(training, [batch])
        expected = (network.plain(plain, batch[0]) - batch[1]).square().mean()
        plain.step(expected)
        where = f"{scheme}, step {step}"
        assert same_bits(loss, expected), f"{where}: loss {loss} instead of {expected}"
        assert not (wrong := differences(bits(training), plain_bits(plain))), f"{where}: {wrong}"
        assert (training.scale, training.steps, training.skipped) == (plain.scale, plain.taken, plain.skipped), where
        if not training.scheme.is_plain:
            counted = {(row.layer, row.role): list(row[2:]) for row in training.by_layer()}
            assert counted == plain.counts, where
            assert training.run.counts.state()["calls"] == [plain.calls], where
    return training


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


def differences(got: Bits, expected: Bits) -> list[str]:
    """Names of what differs in some bit."""
    assert got.keys() == expected.keys(), got.keys() ^ expected.keys()
    return [name for name in got if not same_bits(got[name], expected[name])]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal numbers with equal signs of zero; NaN is NaN."""
    a, b = a.detach().contiguous(), b.detach().contiguous()
    nan = a.isnan() & b.isnan()
    return a.shape == b.shape and bool(((a.view(torch.int32) == b.view(torch.int32)) | nan).all())
