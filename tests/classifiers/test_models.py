"""Models: shapes, sizes, seeded weights, and products that a scheme reaches all of."""

import pytest
import torch
from torch import nn

from shoal.classifiers import make_model
from shoal.classifiers.models import MODELS
from shoal.errors import UserError
from shoal.numerics import low_precision


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("channels", "side", "classes"), [(1, 8, 10), (3, 28, 7)])
def test_output_shapes(name, channels, side, classes):
    model = make_model(name, channels, side, classes)
    assert model(torch.randn(3, channels, side, side)).shape == (3, classes)


@pytest.mark.parametrize(
    ("name", "layers", "weights"), [("resnet20", 20, 269_722), ("resnet8", 8, 75_290), ("wide-resnet", 8, 1_185_866)]
)
def test_parameter_counts_of_the_papers(name, layers, weights):
    """ResNet-20 for CIFAR-10 has 0.27 million parameters."""
    model = make_model(name, 3, 32, 10)
    assert sum(isinstance(module, nn.Conv2d | nn.Linear) for module in model.modules()) == layers
    assert sum(parameter.numel() for parameter in model.parameters()) == weights


def test_the_shortcut_keeps_every_second_pixel_and_adds_channels_of_zeros():
    block = make_model("resnet8", 1, 8, 10).stages[1][0]
    nn.init.zeros_(block.conv2.weight)
    x = torch.rand(2, 16, 8, 8)
    expected = torch.cat([x[:, :, ::2, ::2], torch.zeros(2, 16, 4, 4)], 1)
    assert torch.equal(block.eval()(x), expected)


@pytest.mark.parametrize("name", MODELS)
def test_weights_depend_on_the_seed_only(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = make_model(name, 1, 8, 10, seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    same, other = (make_model(name, 1, 8, 10, seed=seed).state_dict() for seed in (5, 6))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", ["resnet8", "vgg", "mlp", "transformer"])
def test_a_scheme_reaches_every_product(name):
    model = make_model(name, 1, 8, 10)
    training = low_precision(model, torch.optim.SGD(model.parameters(), 0.1), "E5M2:5+E6M5")  # strict
    x = torch.randn(2, 1, 8, 8)
    with training:
        loss = model(x).square().mean()
    assert training.step(loss)
    counted = {(counts.layer, counts.role) for counts in training.by_layer() if counts.numbers}
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert layers
    for layer in layers:
        assert any(own.startswith(layer) for own, role in counted if role == "grad_weight"), layer
    if name == "transformer":
        assert "scaled_dot_product_attention" in str(training.coverage())
    model.eval()
    with training.evaluating():
        assert model(x).isfinite().all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"name": "resnet9"}, "'resnet9' is not known .perhaps you meant resnet8.; choose one of: resnet20"),
        ({"channels": 0}, "`channels` is 0"), ({"side": 7}, "`side` is 7"), ({"classes": 1}, "`classes` is 1"),
        ({"dropout": 1.0}, "`dropout` is 1.0"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        make_model(**({"name": "mlp", "channels": 1, "side": 8, "classes": 10} | settings))
