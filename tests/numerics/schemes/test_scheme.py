"""Schemes: tables, JSON, what cannot be combined, and what a training refuses."""

import json
from typing import Any

import pytest
import torch
from torch import nn

from shoal.errors import UserError
from shoal.numerics import Cast, FloatFormat, LowPrecision, Scheme, low_precision, parse_mac, parse_scheme
from shoal.numerics.formats.types import FixedFormat
from shoal.numerics.schemes.scheme import CASTS, SCHEMES, SOURCES, UNITS, holds
from tests.numerics.numbers import scalar
from tests.numerics.schemes.networks import MLP, batches, start, train


@pytest.mark.parametrize("name", SCHEMES)
def test_tables_and_json(name: str) -> None:
    scheme = SCHEMES[name]
    rows = dict(scheme.describe())
    assert rows["scheme"] == name and rows["source"] == SOURCES[name]
    assert rows["weights, as operands of products"] == ("float32" if scheme.weights is None else repr(scheme.weights))
    assert len(rows) == 2 + len(CASTS) + len(UNITS) + 1 + (scheme.average_after is not None)
    held = scheme.to_json()
    assert Scheme.from_json(json.loads(json.dumps(held))) == scheme and held["name"] == name
    assert all(value is None or isinstance(value, str | int | float) for value in held.values())


@pytest.mark.parametrize(
    ("name", "role", "text"),
    [
        ("bf16", "activation_gradients", "E8M7"),
        ("fp16", "weight_gradients", "E5M10"),
        ("swalp", "state", "Q1.7/row, rounding=stochastic"),
        ("swalp", "grad_weight", "Q1.7+Q18.14, rounded=False"),
        ("s2fp8", "weights", "E5M2, squeeze=True"),
        ("hfp8", "inputs", "E4M3(bias=4), overflow=saturate"),
        ("hfp8", "activation_gradients", "E5M2"),
        ("hfp8", "forward", "E4M3:1(bias=4)+E6M9, output=E7M9, order=chunked(64)"),
        ("hfp8", "grad_input", "E5M2*E4M3:1(bias=4)+E6M9, output=E7M9, order=chunked(64)"),
        ("hfp8", "normalisation", "E6M9"),
        ("bm8", "grad_input", "Q9.10*Q3.6+Q15.16, rounded=False"),
        ("fp8-seb", "forward", "E5M3:1+E8M23, output=E7M7, order=pairwise"),
        ("fp134", "weights", "E3M4(infinities=False, nans=False)/tensor, rounding=hysteresis"),
    ],
)
def test_built_in_schemes_match_the_documentation(name: str, role: str, text: str) -> None:
    assert SCHEMES[name].to_json()[role] == text


def test_describe_names_averaged_weights() -> None:
    rows = dict(parse_scheme("swalp").describe())
    assert rows["average of the weights"] == "after 50% of the training, every 1 steps"
    rows = dict(parse_scheme("swalp; average_after=2000; average_every=5").describe())
    assert rows["average of the weights"] == "after 2,000 steps, every 5 steps"
    assert "average of the weights" not in dict(parse_scheme("bf16").describe())
    assert dict(parse_scheme("E5M2:5+E6M5; update=rounded").describe())["update of the master copy"] == "rounded"


def test_formats_and_units_can_be_given_as_objects() -> None:
    format, unit = FloatFormat(5, 2), parse_mac("E5M2+E6M5")
    scheme = Scheme("mine", weights=format, inputs=Cast(format), forward=unit, master="bf16")  # type: ignore[arg-type]
    assert scheme.weights == scheme.inputs == Cast(format) and scheme.forward == unit
    assert scheme == Scheme("unit", "E5M2", "E5M2", forward="E5M2+E6M5", master="bf16")  # type: ignore[arg-type]
    assert hash(scheme) == hash(parse_scheme(repr(scheme)))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("hfp8; update=compensated", "update=compensated needs a master format, such as master=bf16"),
        ("bf16; inputs=E4M3, rounding=hysteresis", "rounding=hysteresis is for weights"),
        ("bf16; master=E4M3, rounding=hysteresis", "rounding=hysteresis is for weights"),
        ("bf16; weights=E4M3F/row, rounding=hysteresis", "whose blocks each product rounds for itself"),
        ("s2fp8; forward=E5M2+E6M5", "inputs are squeezed to numbers that no unit can take; leave forward in float32"),
        ("E5M2:5+E6M5; weights=E5M2, squeeze=True", "weights are squeezed"),
        ("E5M2:5+E6M5; inputs=E5M3", "inputs are rounded to E5M3, which has values that the operand E5M2:5 of the"),
        ("hfp8; activation_gradients=E4M3", "activation_gradients are rounded to E4M3, which has values"),
        (
            "swalp; forward=Q1.7+Q18.13, rounded=False",
            "The accumulator Q18.13 of the forward unit is narrower than its",
        ),
        ("bm8; grad_weight=Q3.6*Q9.10+Q11.16, rounded=False", "of the grad_weight unit is narrower than its products"),
        (
            "bf16; inputs=E4M3F/3; weights=E4M3F/4",
            "The operands of the forward product have blocks of different widths",
        ),
        ("bm8; inputs=E2M5B2F/24", "The operands of the forward product have blocks of different widths"),
    ],
)
def test_incompatible_fields_are_refused(wrong: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        parse_scheme(wrong)
    assert sentence in str(error.value) and str(error.value).endswith(".") and "\n" not in str(error.value)


def test_accumulators_without_shared_exponents_may_be_narrow() -> None:
    assert parse_scheme("E5M2:5+Q8.3").forward is not None


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"weights": 8}, "weights is 8, but must be a Cast, a number format or the name of one"),
        ({"forward": "E5M2"}, "'E5M2' has no accumulator"),
        ({"forward": FixedFormat(8, 8)}, "forward is Q8.8, but must be a MacUnit or the name of one"),
        ({"average_after": "soon"}, "average_after is 'soon', but must be a number or None"),
        ({"average_after": True}, "average_after is True"),
        ({"average_every": "often"}, "`average_every` is 'often', but must be a whole number"),
        ({"update": None}, "`update` 'None' is not known"),
        ({"speed": 3}, "This is not a scheme: the field 'speed' is not known; the fields are"),
        ([1], "This is not a scheme: [1] is not known"),
    ],
)
def test_wrong_json_is_refused(fields: Any, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        Scheme.from_json(fields)
    assert sentence in str(error.value) and str(error.value).endswith(".")


@pytest.mark.parametrize(
    "container", ["E5M2", "E5M2:5", "E4M3", "E6M5", "Q3.6", "Q1.7", "E4M3F", "E4M3FN", "bf16", "E5M3"]
)
@pytest.mark.parametrize("element", ["E5M2", "E5M2:5", "E4M3F", "E2M5B2F", "Q1.7", "E2M1F", "E4M3FN", "E5M2(bias=20)"])
def test_containment_of_formats_by_enumeration(container: str, element: str) -> None:
    """It may say no where it is so (a format without gradual underflow), but never yes where it is not."""
    outer, inner = scalar(container), scalar(element)

    def finite(format: Any) -> set[float]:
        return {value for value in format.values() if abs(value) < float("inf")}

    inside = finite(inner) <= finite(outer)
    if outer == inner or getattr(outer, "subnormals", "gradual") == "gradual":
        assert holds(outer, inner) == inside
    else:
        assert inside or not holds(outer, inner)


# ---- what a training refuses ---------------------------------------------------------------------------------------


def trained(model: nn.Module, scheme: str = "E5M2:5+E6M5", **options: Any) -> LowPrecision:
    return low_precision(model, torch.optim.SGD(model.parameters(), lr=0.1), scheme, **options)


def test_wrong_arguments_are_refused() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    cases = [
        (lambda: low_precision(3, None, "hfp8"), "takes a torch.nn.Module and its torch.optim.Optimizer"),  # type: ignore[arg-type]
        (
            lambda: low_precision(model, torch.optim.SGD(other.parameters()), "hfp8"),
            "has 2 parameters that the model has",
        ),
        (
            lambda: trained(nn.Linear(2, 2).double()),
            "'weight' is torch.float64 on cpu; schemes are emulated in float32",
        ),
        (lambda: trained(model, seed=1.5), "`seed` is 1.5, but must be a whole number"),
        (lambda: trained(model, "swalp"), "averages weights after 50% of the training; give steps="),
        (lambda: trained(model, "swalp", steps=2.5), "`steps` is 2.5, but must be a whole number"),
        (lambda: trained(model, "hfp9"), "'hfp9' is not a scheme"),
        (lambda: trained(model, loss_scale="often"), "'often' is not a loss scale"),
    ]
    for call, sentence in cases:
        with pytest.raises(UserError) as error:
            call()
        assert sentence in str(error.value) and str(error.value).endswith(".")


@pytest.mark.parametrize(
    ("make", "shape", "op"),
    [
        (lambda: nn.LSTM(3, 4), (5, 3), "lstm"),
        (lambda: nn.Conv3d(1, 2, 2), (1, 1, 3, 3, 3), "conv3d"),
        (lambda: nn.ConvTranspose2d(1, 2, 2), (1, 1, 3, 3), "conv_transpose2d"),
    ],
)
def test_unsupported_operations_are_refused_or_listed(make: Any, shape: tuple[int, ...], op: str) -> None:
    model, x = make(), torch.randn(shape)
    with pytest.raises(UserError, match=f"{op} cannot be emulated.*strict=False"), trained(model):
        model(x)
    lenient = trained(model, strict=False)
    with lenient:
        out = model(x)
        loss = (out[0] if isinstance(out, tuple) else out).square().mean()
    assert lenient.step(loss)
    assert any(row.op == op and not row.emulated for row in lenient.coverage())
    assert train(trained(nn.Linear(5, 3), "float32"), batches(MLP, 1))  # and nothing lingers


def test_everything_that_was_emulated_is_listed() -> None:
    training = start(MLP, "hfp8")
    train(training, batches(MLP, 2))
    covered = {(row.op, row.role): (row.calls, row.emulated) for row in training.coverage()}
    roles = {"forward": 4, "grad_input": 2, "grad_weight": 4}
    assert covered == {("linear", role): (calls, True) for role, calls in roles.items()}
    metrics = training.metrics()
    assert metrics["mac/macs"] == 2 * 6 * (2 * (35 + 21) + 21) and metrics["scale"] == 1 and metrics["skipped"] == 0


def test_results_are_bit_identical_without_counts() -> None:
    found = []
    for stats in (True, False):
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        training = trained(model, "E5M2:5+E6M5, rounding=stochastic; weights=E5M2:5, rounding=stochastic", stats=stats)
        train(training, batches(MLP, 2))
        found.append(model.weight)
        assert any(row.role == "weights" for row in training.by_layer()) == stats
    assert torch.equal(*found)


def test_seed_determines_the_random_bits() -> None:
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        train(trained(model, "bf16; inputs=E4M1, rounding=stochastic", seed=seed), batches(MLP, 1))
        found.append(model.weight)
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@pytest.mark.parametrize("scheme", ["E5M2:5+E6M5", "swalp; average_after=never", "bm8", "s2fp8"])
def test_empty_mini_batch(scheme: str) -> None:
    training = trained(nn.Linear(5, 3), scheme)
    with training:
        loss = training.model(torch.zeros(0, 5)).sum()
    assert training.step(loss) and all(not own.grad.any() for own in training.model.parameters())


def test_invalid_steps_are_refused() -> None:
    x, model = torch.randn(2, 5), nn.Linear(5, 3)
    with pytest.raises(UserError, match="computed outside of the scheme"):
        trained(model).step(model(x).sum())
    assert trained(model, "float32").step(model(x).sum())
    with pytest.raises(UserError, match="must be a tensor"):
        trained(model).step(0.5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="LBFGS computes the loss several times"):
        low_precision(model, torch.optim.LBFGS(model.parameters()), "hfp8")
    with pytest.raises(UserError, match="not the state of a training"):
        trained(model).load_state({})
    assert trained(model, "hfp8", loss_scale=8).update()  # without gradients, as torch's optimizers


def test_parameters_added_later_are_refused() -> None:
    model = nn.Sequential(nn.Linear(5, 3))
    training = trained(model, loss_scale=1024)
    model.append(nn.Linear(3, 2))
    training.optimizer.add_param_group({"params": model[1].parameters()})
    with training:
        loss = model(torch.randn(2, 5)).sum()
    with pytest.raises(UserError, match="new parameters since low_precision"):
        training.step(loss)


def test_sparse_gradients_are_refused() -> None:
    model = nn.Embedding(4, 3, sparse=True)
    training = trained(model)
    with training:
        loss = model(torch.tensor([1])).sum()
    with pytest.raises(UserError, match="gradient of 'weight' is sparse"):
        training.step(loss)
