"""The description of a policy: its plain arithmetic against PyTorch's modules, its parts, its checks."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.errors import UserError
from shoal.inference import Grid, Head, Linear, Policy, Quantized
from shoal.quantization.torch_engine import TorchEngine, network
from tests.inference.policies import few_bits, image_policy, observations, random_policy

KINDS = [
    {},
    {"agents": 3, "observation": (6, 4, 5), "action": (4, 2, 3)},
    {"agents": 2, "head": "box", "normalised": True},
    {"head": "gaussian", "activation": "tanh"},
    {"head": "box", "squash": "clip", "activation": "elu"},
    {"head": "box", "squash": "none", "activation": "leaky-relu"},
    {"one_hot": 7, "head": "box", "activation": "sigmoid"},
]


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_match_pytorch(kind):
    policy = random_policy(**kind)
    x = observations(policy)
    seen = torch.from_numpy(policy.network_input(x))  # (N, B, I) float64
    layers = network(policy).double()
    expected = (layers(seen[0])[None] if policy.agents == 1 else layers(seen)).transpose(0, 1)
    assert np.allclose(policy.outputs(x), expected, rtol=1e-9, atol=1e-9)


def test_convolutions_match_pytorch():
    policy = image_policy()
    x = observations(policy)
    expected = network(policy).double()(torch.from_numpy(x / 255.0).double().view(-1, 2, 16, 16))
    assert np.allclose(policy.outputs(x)[:, 0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_of_pytorch_acts_as_the_reference(kind):
    policy = random_policy(**kind)
    x, engine = observations(policy), TorchEngine(random_policy(1, **kind))
    engine.load(policy)
    assert np.allclose(engine.act(x), policy.reference(x), rtol=1e-4, atol=1e-5)


def test_normaliser_clips():
    policy = random_policy(head="box", normalised=True)
    far = np.full((1, 1, 6), 1e6, np.float32)
    assert np.array_equal(policy.network_input(far), np.full((1, 1, 6), 3.0))
    assert np.array_equal(policy.reference(far), policy.reference(10 * far))


def test_tanh_fills_a_box_and_clip_stays_inside():
    for squash in ("tanh", "clip"):
        policy = random_policy(agents=2, head="box", squash=squash, action=(3, 2))
        ends = policy.act_on(np.array([[[-1e9] * 3] * 2, [[1e9] * 3] * 2]))
        assert np.array_equal(ends, np.stack([policy.head.low, policy.head.high]))


def test_padded_choices_are_never_taken():
    policy = random_policy(agents=3, action=(4, 2, 3))
    outputs = np.zeros((1, 3, 4))
    outputs[..., :2], outputs[..., 2:] = -50, [7, 9]
    assert policy.act_on(outputs).tolist() == [[3, 0, 2]]


def test_drawn_choices_have_the_softmax_probabilities():
    policy = random_policy(head="categorical", action=(3,))
    logits = np.array([0.0, 1.0, -1.0])
    noise = np.random.default_rng(0).random((40_000, 1, 3))
    drawn = policy.act_on(np.tile(logits, (40_000, 1, 1)), noise)
    found = np.bincount(drawn[:, 0], minlength=3) / len(drawn)
    assert np.allclose(found, np.exp(logits) / np.exp(logits).sum(), atol=0.01)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("head", ["argmax", "box", "gaussian"])
def test_single_agent_acts_as_in_its_team(head, frozen):
    policy = random_policy(agents=3, observation=(6, 4, 5), action=(4, 2, 3), head=head, normalised=True)
    x = observations(policy)
    policy = few_bits(policy, x) if frozen else policy
    together = policy.reference(x)
    assert np.array_equal(policy.played().reference(x), together)
    for n in range(3):
        alone = policy.of_agent(n).check()
        actions = alone.reference(x[:, n : n + 1, : policy.observation_sizes[n]])
        expected = together[:, n : n + 1] if head == "argmax" else together[:, n : n + 1, : policy.action_sizes[n]]
        assert np.allclose(actions, expected, atol=1e-6)
        assert alone.observation_size == policy.observation_sizes[n] and alone.layers[-1].outputs == alone.action_size


def test_choices_become_one_hot_for_worlds():
    policy = random_policy(agents=2)
    assert policy.to_world(np.array([[2, 0]])).tolist() == [[[0, 0, 1, 0], [1, 0, 0, 0]]]


def test_a_grid_rounds_ties_to_even_and_clamps():
    grid = Grid(np.float32([[0.5], [2.0]]), np.int32([[3], [0]]), bits=3)
    x = np.array([[-9.0, -0.25, 0.25, 0.75, 9.0], [-1.0, 1.0, 3.0, 6.9, 99.0]])
    assert grid.round(x).tolist() == [[-1.5, 0, 0, 1.0, 2.0], [0, 0, 4.0, 6.0, 14.0]]


def test_frozen_weights_are_symmetric():
    weight = np.float32([[[2.4, 2.4], [-9.0, -0.3]]])
    grid = Grid(np.float32([[[1.0, 0.5]]]), np.int32([[[0, 0]]]), 3, "symmetric")
    layer = Linear(weight, np.zeros((1, 2), np.float32), quantized=Quantized(grid))
    assert grid.encode(weight).tolist() == [[[2, 3], [-3, -1]]]
    assert layer.played_weight.tolist() == [[[2.0, 1.5], [-3.0, -0.5]]]


def broken(layer, **changes):
    policy = random_policy()
    layers = list(policy.layers)
    layers[layer] = replace(layers[layer], **changes)
    return replace(policy, layers=tuple(layers))


def with_nan(policy):
    weight = policy.layers[1].weight.copy()
    weight[0, 0, 0] = np.nan
    return replace(policy, layers=(policy.layers[0], replace(policy.layers[1], weight=weight), policy.layers[2]))


def frozen(weight=None, bits=8):
    scale = np.ones((1, 1, 16), np.float32) if weight is None else weight
    return broken(0, quantized=Quantized(Grid(scale, np.zeros(scale.shape, np.int32), bits, "symmetric")))


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (with_nan(random_policy()), "Layer 2 of the policy has NaN or infinity among its weights"),
        (broken(0, bias=np.full((1, 16), np.inf, np.float32)), "among its biases"),
        (broken(1, weight=np.zeros((1, 9, 16), np.float32)), "takes 9 numbers, but is given 16"),
        (broken(1, weight=np.zeros((2, 16, 16), np.float32)), "but the policy has 1 network."),
        (broken(1, activation="swish"), "'swish'"),
        (replace(random_policy(), action_sizes=(5,)), "has 4 outputs, but its actions need 5"),
        (replace(random_policy(), head=Head("box", "tanh")), "needs lower and upper bounds"),
        (replace(random_policy(agents=2), agent_names=("a",)), "has 1 agent, but sizes of"),
        (replace(random_policy(), action_sizes=(0,)), "without observation or action"),
        (replace(random_policy(normalised=True), observation_sizes=(5,)), "takes 6 numbers, but is given 5"),
        (replace(random_policy(one_hot=6), observation_sizes=(6,)), "takes one integer"),
        (
            replace(random_policy(), normaliser=random_policy(observation=(5,), normalised=True).normaliser),
            "normaliser",
        ),
        (replace(image_policy(), layers=image_policy().layers[:2]), "must be linear"),
        (replace(image_policy(), image=(2, 16, 15)), "its observation has another size"),
        (replace(image_policy(), layers=image_policy().layers[1:]), "but is given (2, 16, 16)"),
        (replace(image_policy(), layers=(image_policy().layers[0], *image_policy().layers[2:])), "but is given 392"),
        (frozen(weight=np.zeros((1, 1, 16), np.float32)), "an invalid scale or zero point"),
        (frozen(weight=np.ones((1, 16), np.float32)), "with scales of shape (1, 1, 16)"),
        (frozen(bits=17), "bits is 17"),
    ],
)
def test_wrong_policies_are_refused(policy, said):
    with pytest.raises(UserError, match=re.escape(said)):
        policy.check()


def test_sizes_of_policies():
    policy = Policy((Linear(np.ones((2, 3, 4), np.float32), np.ones((2, 4), np.float32)),), Head("argmax"),
                    (3, 2), (4, 4), ("a", "b"))  # fmt: skip
    assert policy.check().parameters == 32 and policy.nbytes == 128
