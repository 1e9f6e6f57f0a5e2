"""Accumulators of single layers: how they are written, refused, and used."""

import pytest
import torch
from torch import nn

from shoal.errors import UserError
from shoal.numerics import Scheme, low_precision, parse_scheme


def test_text_and_json() -> None:
    scheme = parse_scheme("E5M2:5+E6M5; accumulators=0=E6M3, 0.grad_weight=E4M3(bias=4), 2.forward=Q8.13")
    units = scheme.layer_units()
    assert {key: str(unit.accumulator) for key, unit in units.items()} == {
        ("0", "forward"): "E6M3", ("0", "grad_input"): "E6M3", ("0", "grad_weight"): "E4M3(bias=4)",
        ("2", "forward"): "Q8.13",
    }  # fmt: skip
    assert parse_scheme(repr(scheme)) == Scheme.from_json(scheme.to_json()) == scheme
    assert ("accumulators of single layers", scheme.accumulators) in scheme.describe()
    assert hash(scheme) != hash(parse_scheme("E5M2:5+E6M5"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("E5M2:5+E6M5; accumulators=0", "'0' in accumulators is not layer=format"),
        ("E5M2:5+E6M5; accumulators=0=E4M3/row", "is not layer=format"),
        ("float32; accumulators=0=E6M3", "'0' has an accumulator of its own, but forward is float32 and has no unit"),
        ("bm8; accumulators=0=Q4.4", "is narrower than its products"),
    ],
)
def test_wrong_layer_accumulators_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse_scheme(text)


def test_a_layer_has_its_own_accumulator() -> None:
    """With the accumulators of another unit in all layers, the step is that of the other unit, bit by bit."""
    found = {}
    schemes = {
        "wide": "E5M2:5+E6M7", "narrow": "E5M2:5+E6M2", "as narrow": "E5M2:5+E6M7; accumulators=0=E6M2, 2=E6M2",
        "one": "E5M2:5+E6M7; accumulators=2.forward=E6M2",
    }  # fmt: skip
    for name, scheme in schemes.items():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
        x, y = torch.randn(8, 64), torch.arange(8) % 4
        training = low_precision(model, torch.optim.SGD(model.parameters(), 0.5), scheme)
        with training:
            hidden = model[1](model[0](x))
            loss = nn.functional.cross_entropy(model[2](hidden), y)
        training.step(loss)
        found[name] = hidden.detach(), loss.detach(), [own.detach().clone() for own in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(found["narrow"][2], found["as narrow"][2], strict=True))
    assert torch.equal(found["one"][0], found["wide"][0]) and not torch.equal(found["one"][1], found["wide"][1])
    assert not torch.equal(found["narrow"][0], found["wide"][0])


def test_unknown_layer_is_refused() -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(UserError, match="an accumulator for 'stem', but the model has no such layer"):
        low_precision(model, torch.optim.SGD(model.parameters(), 0.1), "E5M2:5+E6M5; accumulators=stem=E6M2")
