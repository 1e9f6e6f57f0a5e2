"""Whole training steps in every scheme against `plain.py`: losses, gradients, weights, moments and counts."""

import dataclasses

import pytest
import torch
from torch import nn

from shoal.numerics import Cast, Scheme, low_precision, parse_scheme, quantize
from shoal.numerics.schemes.scheme import SCHEMES
from tests.numerics.schemes.networks import (
    ATTENTIVE,
    CONVNET,
    MLP,
    OPTIMIZERS,
    Network,
    batches,
    bits,
    differences,
    mlp,
    side_by_side,
    start,
    train,
)

UNIT = "E5M2:5+E6M5"
UNITS = [
    UNIT,
    "E5M2:5+Q8.13",
    "E4M3*E5M2:5+E6M7",
    f"{UNIT}, order=kahan",
    f"{UNIT}, rounding=stochastic",
]
COMBINED = {
    "stochastic master": f"{UNIT}; master=bf16, rounding=stochastic",
    "compensated, in bf16": "bf16; master=bf16; state=bf16; update=compensated",
    "squeezed weights, plain gradients": "s2fp8; activation_gradients=float32; weight_gradients=float32",
    "a unit per product": f"{UNIT}; grad_input=E5M2:5+Q8.13; grad_weight=E5M2:5+E6M5, order=kahan",
    "tiles": "bm8; inputs=E2M5B2F/4x4, rounding=stochastic; weights=E2M5B2F/2x4; "
    "activation_gradients=E4M3B8F/4x4, rounding=stochastic; weight_gradients=E4M3F/4x4",
    "runs": "swalp; weights=Q1.7/3; inputs=Q1.7/3, rounding=stochastic; activation_gradients=Q1.7/tensor; "
    "master=E4M3F/row; state=E4M3F/2x2; average_after=never",
    "runs of float32 products": "s2fp8; inputs=E4M3F/3; weights=E4M3F/row, rounding=stochastic; "
    "activation_gradients=bf16",
    "a stochastic unit, runs in chunks": "fp8-seb; inputs=E4M3F/4; weights=E4M3F/row; "
    "forward=E5M3+E6M5, output=E7M7, rounding=stochastic, order=chunked(2)",
    "everything stochastic": "hfp8; weights=E4M3(bias=4), rounding=stochastic; inputs=E4M3(bias=4), "
    "rounding=stochastic, overflow=saturate; activation_gradients=E5M2, rounding=stochastic; "
    "normalisation=E6M9, rounding=stochastic; activations=E6M5, rounding=stochastic; "
    "weight_gradients=E6M9, rounding=stochastic; master=bf16, rounding=stochastic; "
    "state=bf16, rounding=stochastic; update=compensated",
}


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_optimizers(optimizer: str) -> None:
    side_by_side(MLP, "bf16; master=bf16, rounding=stochastic; state=E5M7", 3, optimizer, scale=64)


@pytest.mark.parametrize("scheme", [*SCHEMES, *UNITS])
def test_an_mlp(scheme: str) -> None:
    average_from = 2 if scheme == "swalp" else None
    side_by_side(MLP, scheme, 3, scale=64, total=4, average_from=average_from)


@pytest.mark.parametrize("scheme", [*SCHEMES, UNIT])
def test_a_convolutional_network(scheme: str) -> None:
    """Stride, padding, batch normalisation."""
    side_by_side(CONVNET, scheme, 2, "adam", scale=64, total=4, average_from=2 if scheme == "swalp" else None)


@pytest.mark.parametrize("scheme", ["hfp8", "s2fp8", "fp8-seb", "E4M3*E5M2:5+E6M7"])
def test_attention(scheme: str) -> None:
    """Layer normalisation and `nn.MultiheadAttention`."""
    side_by_side(ATTENTIVE, scheme, 1, "adamw", scale=64)


@pytest.mark.parametrize("combined", COMBINED)
def test_combinations_of_options(combined: str) -> None:
    side_by_side(CONVNET if "everything" in combined else MLP, COMBINED[combined], 2, scale=16)


def test_tiles_and_runs_in_attention() -> None:
    """Batches of matrices: each has its own blocks."""
    side_by_side(ATTENTIVE, "bm8; inputs=E2M5B2F/2x2; weights=E2M5B2F/2x2; activation_gradients=E4M3B8F/2x2", 1)


# ---- every field changes something, and the same in plain.py -------------------------------------------------------

ONE = "E4M3*E5M2:5+E6M7"
FIELDS: dict[str, tuple[str, str]] = {
    "weights": ("bf16", "bf16; weights=E4M3"),
    "inputs": ("bf16", "bf16; inputs=E4M3"),
    "normalisation": ("bf16", "bf16; normalisation=E4M3"),
    "activations": ("bf16", "bf16; activations=E3M4F/row"),
    "weight_gradients": ("bf16", "bf16; weight_gradients=E4M3"),
    "activation_gradients": ("bf16", "bf16; activation_gradients=E4M3"),
    "forward": ("bf16", f"bf16; inputs=E4M3:5; weights=E5M2:5; forward={ONE}"),
    "grad_input": ("bf16; weights=E5M2:5; activation_gradients=E4M3:5", "bf16; weights=E5M2:5; "
                   f"activation_gradients=E4M3:5; grad_input={ONE}"),
    "grad_weight": ("bf16; inputs=E4M3:5; activation_gradients=E5M2:5", "bf16; inputs=E4M3:5; "
                    f"activation_gradients=E5M2:5; grad_weight={ONE}"),
    "master": ("bf16", "bf16; master=E6M9"),
    "state": ("bf16", "bf16; state=E5M2"),
    "update": ("bf16; master=E5M4", "bf16; master=E5M4; update=compensated"),
    "average_after": ("bf16; average_after=2", "bf16; average_after=1"),
    "average_every": ("bf16; average_after=1", "bf16; average_after=1; average_every=2"),
    "accumulators": (UNIT, f"{UNIT}; accumulators=0=E6M3, 2.forward=Q8.13"),
}  # fmt: skip
CASTS: dict[str, list[tuple[str, str]]] = {
    "format": [
        ("E4M3", "E4M2"),
        ("E2M2B0F", "E2M2B0F/tensor"),
        ("E2M2F/tensor", "E2M2F/row"),
        ("E2M2F/3", "E2M2F/3x3"),
    ],
    "rounding": [("E4M3", f"E4M3, rounding={way}") for way in ("nearest-away", "toward-zero", "up", "down")]
    + [("E4M3F/tensor", "E4M3F/tensor, rounding=stochastic")],
    "overflow": [("E2M3", "E2M3, overflow=saturate"), ("E2M3", "E2M3, overflow=nan")],
    "random_bits": [("E4M1, rounding=stochastic", "E4M1, rounding=stochastic, random_bits=2")],
    "variant": [
        ("E4M1, rounding=stochastic, random_bits=1", f"E4M1, rounding=stochastic, random_bits=1, variant={variant}")
        for variant in "BC"
    ],
    "squeeze": [("E4M3", "E4M3, squeeze=True")],
}


def averaging(scheme: str) -> int | None:
    after = parse_scheme(scheme).average_after
    return None if after is None else int(after)


def ties(network: Network, count: int) -> list:
    """Inputs with ties of two mantissa bits."""
    return [(torch.round(x * 8) / 8, y) for x, y in batches(network, count)]


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_a_scheme_matters(field: str) -> None:
    network = CONVNET if field == "normalisation" else MLP
    base, changed = FIELDS[field]
    steps = 3 if field in ("update", "average_every", "state") else 2
    assert {one.name for one in dataclasses.fields(Scheme) if one.compare} == FIELDS.keys()
    assert getattr(parse_scheme(base), field) != getattr(parse_scheme(changed), field)
    training = side_by_side(network, changed, steps, average_from=averaging(changed))
    without = start(network, base)
    train(without, batches(network, steps))
    assert differences(bits(training), bits(without))


@pytest.mark.parametrize(("base", "changed"), [pair for pairs in CASTS.values() for pair in pairs])
def test_every_field_of_a_cast_matters(base: str, changed: str) -> None:
    assert {one.name for one in dataclasses.fields(Cast)} - {"start"} == CASTS.keys()
    data = ties(MLP, 1)
    training = side_by_side(MLP, f"bf16; inputs={changed}", 1, data=data)
    without = start(MLP, f"bf16; inputs={base}")
    losses = [train(one, data) for one in (without, start(MLP, f"bf16; inputs={changed}"))]
    assert losses[0] != losses[1] or differences(bits(training), bits(without))


def test_hysteresis_and_its_start() -> None:
    """It remembers the rounded weights of the step before; the first time, `start` decides."""
    fields = ("", ", rounding=hysteresis", ", rounding=hysteresis, start=down")
    found = [bits(side_by_side(MLP, f"bf16; weights=E3M2F/tensor{more}", 3)) for more in fields]
    assert differences(found[0], found[1]) and differences(found[1], found[2])


# ---- weights are rounded once after each step, wherever they are ---------------------------------------------------


class Twice(nn.Module):
    """A layer that is used twice, and half of it a third time; channels last in memory where it can be."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(5, 5)
        self.last = nn.Conv2d(2, 3, (1, 5), bias=False).to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.both(self.both(x))
        hidden = torch.cat([hidden[:, :3], nn.functional.linear(x, self.both.weight[:2])], 1)
        return self.last(torch.stack([hidden, x], 1)[:, :, None])[:, :, 0, 0]


@pytest.mark.parametrize("rounding", ["stochastic", "hysteresis"])
def test_weights_are_rounded_once_per_step(rounding: str) -> None:
    torch.manual_seed(1)
    model = Twice()
    assert not model.last.weight.is_contiguous()
    scheme = f"bf16; weights=E3M3F/tensor, rounding={rounding}"
    training = low_precision(model, OPTIMIZERS["sgd"](list(model.parameters())), scheme, seed=2)
    for x, y in batches(MLP, 3):
        before = training.run.counts.state()["calls"]
        with training:
            first, again = model(x), model(x)
        assert torch.equal(first, again)
        assert training.run.counts.state()["calls"] == [before[0] + 2 * (rounding == "stochastic")]
        training.step((first - y).square().mean())
    counted = {(row.layer, row.role): row.numbers for row in training.by_layer()}
    assert counted["both", "weights"] == 3 * 25 and counted["last", "weights"] == 3 * 30


class Quiet(torch.optim.SGD):
    """An optimizer that writes past autograd, so that nothing shows that a weight has changed."""

    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            for own in group["params"]:
                own.data.sub_(own.grad)


def test_weights_are_rounded_again_after_each_step() -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 3, bias=False)
    training = low_precision(model, Quiet(model.parameters()), "bf16; weights=E4M3")
    for x, y in batches(MLP, 2):
        with training:
            got = model(x)
        rounded = quantize(x, "bf16") @ quantize(model.weight.detach(), "E4M3").T
        assert torch.equal(got, rounded)
        training.step((got - y).square().mean())


def test_frozen_parameters_are_unchanged() -> None:
    model = mlp()
    model[0].weight.requires_grad_(False)
    kept = model[0].weight.clone()
    updated = [own for own in model.parameters() if own.requires_grad]
    training = low_precision(model, torch.optim.SGD(updated, lr=0.1), "bf16; master=E4M1; weight_gradients=E4M3")
    train(training, batches(MLP, 2))
    assert torch.equal(model[0].weight, kept) and model[0].weight.grad is None
    assert torch.equal(model[2].weight, torch.round(model[2].weight * 2**20) / 2**20)


# ---- products in which the weight or the gradient comes in another place -------------------------------------------


class Left(nn.Module):
    """A weight on the left, and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.w @ x.T).T.contiguous()  # so that torch sums the loss in the same order


def test_weights_on_the_left_swap_formats() -> None:
    """The units of hfp8 have one operand format for inputs and one for gradients: no operand is rounded twice."""
    torch.manual_seed(0)
    left, right = Left(), nn.Linear(5, 3, bias=False)
    with torch.no_grad():
        right.weight.copy_(left.w)
    (x, y), *_ = batches(MLP, 1)
    gradients = []
    for model in (left, right):
        training = low_precision(model, torch.optim.SGD(model.parameters(), lr=0.0), "hfp8")
        given = x.clone().requires_grad_()
        with training:
            loss = (model(given) - y).square().mean()
        training.step(loss)
        (own,) = model.parameters()
        gradients.append((loss.detach(), own.grad, given.grad))
    for of_left, of_right in zip(*gradients, strict=True):
        assert torch.equal(of_left, of_right)


@pytest.mark.parametrize("activation", ["relu", "relu_"])
def test_activations_in_place(activation: str) -> None:
    """The same bits as the activation that is not in place."""
    found = []
    for chosen in ("relu", activation):
        training = start(MLP._replace(make=lambda chosen=chosen: mlp(chosen)), "bf16; activations=E4M3")
        train(training, batches(MLP, 2))
        found.append(bits(training))
    assert not differences(*found)


@pytest.mark.parametrize(
    "scheme",
    [
        "E5M3:4+E6M5; inputs=E5M2; weights=E5M2; activation_gradients=E5M2",
        "Q16.10+Q20.12, rounded=False; inputs=E4M3; weights=E4M3; activation_gradients=E4M3",
        "E5M2:5+Q8.13",
        "fp8-seb",
        "hfp8",
        "s2fp8",
    ],
)
@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_non_finite_values(scheme: str, bad: float) -> None:
    """Units and formats that lack them read them as docs/schemes.md says; steps are skipped where they show."""
    (x, y), *_ = batches(MLP, 1)
    x[2, 3] = bad
    side_by_side(MLP, scheme, 1, data=[(x, y)])
