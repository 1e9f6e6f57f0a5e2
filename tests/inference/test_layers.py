"""Activation functions against PyTorch's own: in plain numpy, in every engine and in every form of a file."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from shoal.errors import UserError
from shoal.inference import Head, Linear, Policy
from shoal.inference.engine import KINDS, make_engine
from shoal.inference.form import Form, Ports
from shoal.inference.graph import build
from shoal.inference.layers import ACTIVATIONS, activate
from shoal.inference.options import PRECISIONS
from shoal.inference.runtime import new_session
from shoal.quantization.torch_engine import TorchEngine
from tests.inference.policies import few_bits, observations, random_policy

TORCH = {
    "relu": nn.ReLU(),
    "tanh": nn.Tanh(),
    "elu": nn.ELU(),
    "leaky-relu": nn.LeakyReLU(),
    "sigmoid": nn.Sigmoid(),
    "none": nn.Identity(),
    "mish": nn.Mish(),
    "silu": nn.SiLU(),
    "gelu": nn.GELU(),
    "gelu-tanh": nn.GELU(approximate="tanh"),
    "clip-2": nn.Hardtanh(-2, 2),
}
X = np.concatenate([np.linspace(-12, 12, 4801), [-1e4, -300, -90, -1e-6, 0, 1e-6, 90, 300, 1e4]]).astype(np.float32)


def test_positions_match_files_of_older_versions():
    assert ACTIVATIONS[:6] == ("relu", "tanh", "elu", "leaky-relu", "sigmoid", "none")
    assert tuple(TORCH) == ACTIVATIONS


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_match_pytorch(activation):
    found = activate(X.astype(np.float64), activation)
    expected = TORCH[activation](torch.from_numpy(X).double()).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    with np.errstate(over="raise"):
        assert activate(X, activation).dtype == np.float32


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_engine_computes_the_activation_of_pytorch(activation):
    """One input, one output, both weights 1: the policy is the activation function alone."""
    one, nothing = np.ones((1, 1, 1), np.float32), np.zeros((1, 1), np.float32)
    policy = Policy((Linear(one, nothing, activation),), Head("box", "none"), (1,), (1,), ("agent",)).check()
    expected = TORCH[activation](torch.from_numpy(X).double()).numpy()
    engines = [make_engine(policy, name, precision) for name, precision in KINDS]
    for engine in (TorchEngine(policy), *engines):
        # of a single input, int8 knows every value: it is the end of its own range
        found = engine.act(X[:, None, None])[:, 0, 0]
        np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-6, err_msg=f"{engine.name} {engine.precision}")


@pytest.mark.parametrize("activation", ["mish", "silu", "gelu", "gelu-tanh", "clip-2"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_form_of_a_file_computes_the_activation_of_pytorch(precision, activation):
    policy = random_policy(head="box", squash="none", activation=activation)
    x = observations(policy)
    if precision == "static-int8":
        policy = few_bits(policy, x, 8)
    session, ports = new_session(build(policy, Form(precision, 7)).SerializeToString()), Ports.of(policy)
    found = ports.actions(session.run(None, ports.feed(x))[0])
    layers = [replace(layer, quantized=None) for layer in policy.layers]
    expected = TorchEngine(replace(policy, layers=tuple(layers))).act(x)
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert error < {"float32": 1e-6, "float16": 2e-3}.get(precision, 0.06)


def test_unknown_activations_are_refused():
    policy = random_policy()
    strange = replace(policy, layers=tuple(replace(layer, activation="swish") for layer in policy.layers))
    with pytest.raises(UserError, match="activation 'swish', which is not known"):
        strange.check()
