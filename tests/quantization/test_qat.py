"""Quantization in training: straight-through gradients, observed ranges, the delay, and a run that resumes."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from shoal import TrainConfig, train
from shoal.algorithms.maddpg import MADDPG
from shoal.algorithms.masac import MASAC
from shoal.envs.base import EnvSpec
from shoal.errors import UserError
from shoal.networks.actors import Actors
from shoal.networks.critics import JointCritics
from shoal.networks.layout import Random
from shoal.quantization.affine import Quantizer, codes, simulate
from shoal.quantization.callback import TARGETS
from shoal.quantization.export import from_team
from shoal.quantization.qat import MOMENTUM, Qat, frozen_layers, online_name
from shoal.runs.checkpoint import newest
from shoal.training.evaluation import build_env
from shoal.training.precision import make_precision
from shoal.training.saved_team import load_team

SPEC = EnvSpec("spec", ("a", "b", "c"), (3, 4, 4), (2, 2, 2), True)
SMALL = TrainConfig(
    episodes=60, copies=4, warmup=100, update_every=20, batch=32, hidden=(16, 16), log_every=20, checkpoint_every=0,
    evaluate_episodes=0, tensorboard=False, threads=1,
)  # fmt: skip


def actors(seed=0):
    return Actors(SPEC, (6, 5), "categorical", Random(seed))


def seen(network, bits, x, delay=0.0):
    """A network that has seen x and quantizes."""
    qat = Qat({"network": network}, bits, delay)
    network(x)
    qat.progress(1.0)
    return qat


def test_outputs_and_gradients_are_unchanged_until_active():
    plain, watched, x = actors(), actors(), torch.randn(3, 20, 4)
    Qat({"network": watched}, 4, delay=0.5)
    for network in (plain, watched):
        network(x).square().sum().backward()
    torch.testing.assert_close(plain(x), watched(x), atol=1e-6, rtol=1e-6)
    for ours, theirs in zip(watched.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_forward_is_quantized_and_gradient_is_straight_through(bits):
    layer = nn.Linear(4, 3)
    x = torch.randn(10, 4, requires_grad=True)
    qat = seen(layer, bits, x)
    fake = qat.layers["network.layer"]
    weight = simulate(layer.weight, Quantizer(bits), (0,))
    inputs = simulate(x, Quantizer(bits, symmetric=False), ranges=(fake.low.view(()), fake.high.view(())))
    out = layer(x)
    torch.testing.assert_close(out, inputs @ weight.T + layer.bias, atol=1e-5, rtol=1e-5)
    assert len(torch.unique(simulate(layer.weight[0], Quantizer(bits)))) <= 2**bits - 1
    gradient = torch.randn(10, 3)
    out.backward(gradient)
    torch.testing.assert_close(x.grad, gradient @ weight, atol=1e-5, rtol=1e-5)  # as if the input were itself
    torch.testing.assert_close(layer.weight.grad, gradient.T @ inputs, atol=1e-5, rtol=1e-5)
    qat.detach()
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("frozen", [False, True])
def test_stack_equals_its_layers_in_sequence(frozen):
    torch.manual_seed(0)
    network, x = actors(), torch.randn(3, 20, 4, requires_grad=True)
    for bias in network.biases:
        torch.nn.init.normal_(bias)  # sums of few codes are often exactly zero, where ReLU has its corner
    qat = seen(network, 3, x)
    qat.freeze()
    out = network(x, frozen)
    h, full = x, []
    for k, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        fake = qat.layers[f"network.{k}"]
        inputs = simulate(h, Quantizer(3, symmetric=False), ranges=(fake.low, fake.high))
        full.append(weight.detach().clone().requires_grad_())
        narrow = simulate(full[-1], Quantizer(3), (0, 2))
        h = straight(h, inputs) @ straight(full[-1], narrow) + bias.detach()
        h = h.relu() if k < 2 else h
    torch.testing.assert_close(out, h, atol=1e-5, rtol=1e-5)
    gradient = torch.randn_like(out)
    expected = torch.autograd.grad(h, (x, *full), gradient)
    found = torch.autograd.grad(out, (x, *network.weights), gradient, allow_unused=True)
    torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        if frozen:
            assert ours is None
        else:
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def straight(full, narrow):
    """The narrow numbers, with the full ones' gradient."""
    return full + (narrow - full).detach()


def test_grid_follows_the_current_ranges():
    layer, x = nn.Linear(2, 2), torch.tensor([[-1.0, 3.0]])
    qat = seen(layer, 4, x)
    qat.freeze()
    before = layer(x)
    assert float(qat.layers["network.layer"].grid().scale) == pytest.approx(4 / 15)
    for name, value in qat.state().items():  # as a checkpoint is loaded
        value.copy_(2 * value if name.endswith(("low", "high")) else value)
    assert float(qat.layers["network.layer"].grid().scale) == pytest.approx(8 / 15)
    assert not torch.equal(layer(x), before)
    qat.layers["network.layer"].set_range(-1, 3)
    assert torch.equal(layer(x), before)


def test_unchanged_weights_are_quantized_once():
    layer, x = nn.Linear(4, 3), torch.randn(5, 4)
    qat = seen(layer, 4, x)
    with torch.no_grad():
        expected = layer(x)
        qat.keep_weights(True)
        scales = []
        grid_of_weights = qat.layers["network.layer"].weight_grid
        qat.layers["network.layer"].weight_grid = lambda w: scales.append(w) or grid_of_weights(w)
        assert torch.equal(layer(x), expected) and torch.equal(layer(x), expected)
        assert len(scales) == 1
        layer.weight.mul_(2)
        assert not torch.equal(layer(x), expected)
    qat.freeze()
    layer(x).sum().backward()  # what is learned from is never kept
    assert layer.weight.grad is not None
    qat.keep_weights(False)
    with torch.no_grad():
        layer.weight.data.mul_(0.5)  # not seen by whoever counts changes
        torch.testing.assert_close(layer(x), expected)


def test_ranges_are_running_averages_of_learning_passes():
    layer = nn.Linear(2, 2)
    qat = Qat({"network": layer}, 4, delay=1.0)
    fake = qat.layers["network.layer"]
    layer(torch.tensor([[-1.0, 3.0]]))
    assert (float(fake.low), float(fake.high)) == (-1, 3)
    layer(torch.tensor([[1.0, 5.0]]))  # the range always holds zero
    assert float(fake.low) == pytest.approx(-1 + MOMENTUM)
    assert float(fake.high) == pytest.approx(3 + 2 * MOMENTUM)
    with torch.no_grad():
        layer(torch.tensor([[100.0, 100.0]]))
    assert float(fake.high) < 4 and float(fake.seen) == 2


def test_quantization_activates_by_progress_and_stays_active():
    qat = Qat({"network": nn.Linear(2, 2)}, 4, delay=0.5)
    qat.progress(0.49)
    assert not qat.on
    qat.progress(0.5)
    assert qat.on
    qat.progress(0.1)
    assert qat.on


def test_targets_share_the_ranges_of_their_networks():
    online, target = actors(), actors()
    qat = Qat({"slow": target, "actors": online}, 4, 0.0, targets={"slow": "actors"})
    assert list(qat.layers) == ["actors.0", "actors.1", "actors.2"]
    assert online_name("policy.q_net_target.q_net.0", TARGETS) == "policy.q_net.q_net.0"
    assert online_name("policy.q_net_targeted.0", TARGETS) == "policy.q_net_targeted.0"
    with torch.no_grad():
        before = target(torch.ones(3, 1, 4))
    online(torch.randn(3, 20, 4))
    with torch.no_grad():
        assert not torch.equal(target(torch.ones(3, 1, 4)), before)


def test_one_agent_can_be_quantized_alone():
    torch.manual_seed(0)
    network = actors()
    x = torch.randn(3, 20, 4)
    plain = network(x)
    qat = Qat({"actors": network}, 2, 0.0, only=1)
    alone = network(x)
    assert torch.equal(alone[0], plain[0]) and torch.equal(alone[2], plain[2]) and not torch.equal(alone[1], plain[1])
    alone.sum().backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in network.weights)
    with pytest.raises(UserError, match="Only one agent of the team"):
        frozen_layers(network)
    qat.detach()
    every = Qat({"actors": network}, 2, 0.0)
    torch.testing.assert_close(network(x)[1], alone[1])
    every.detach()
    with pytest.raises(UserError, match="`qat_agent` is 3"):
        Qat({"actors": network}, 2, only=3)
    with pytest.raises(UserError, match="not that of a single agent"):
        Qat({"network": nn.Linear(2, 2)}, 2, only=0)


def test_agents_that_share_a_network_have_one_range_and_one_grid():
    """As if each had its own copy of the network, which has seen the rows of both."""
    spec = EnvSpec("spec", ("red_0", "blue_0", "red_1"), (4, 4, 4), (2, 2, 2), True)
    shared = Actors(spec, (6, 5), "categorical", Random(0), shared=True)
    alone = Actors(spec, (6, 5), "categorical", Random(1))
    for ours, theirs in zip(alone.parameters(), shared.parameters(), strict=True):
        ours.data = theirs.data[[0, 1, 0]].clone()
    x = torch.randn(3, 20, 4) * torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    fake = seen(shared, 4, x).layers["network.0"]
    torch.testing.assert_close(fake.low.flatten(), torch.stack([x[[0, 2]].min(), x[1].min()]))
    torch.testing.assert_close(fake.high.flatten(), torch.stack([x[[0, 2]].max(), x[1].max()]))
    reds = torch.cat([x[0], x[2]])
    seen(alone, 4, torch.stack([reds, torch.cat([x[1], x[1]]), reds]))
    with torch.no_grad():  # which does not observe
        torch.testing.assert_close(shared(x), alone(x))
    for ours, theirs in zip(frozen_layers(alone), frozen_layers(shared), strict=True):
        np.testing.assert_allclose(theirs.weight.scale[[0, 1, 0]], ours.weight.scale)
        np.testing.assert_allclose(theirs.input.scale[[0, 1, 0]], ours.input.scale)


@pytest.mark.parametrize("heads", [1, 2])
def test_first_layer_is_reused_with_quantizers(heads):
    torch.manual_seed(0)
    critics = JointCritics(SPEC, (7, 5), heads, Random(0))
    torch.nn.init.normal_(critics.first_bias)  # sums of few codes are often exactly zero, where ReLU has its corner
    joint, own = torch.randn(11, 3 * 6), torch.randn(3, 11, 2, requires_grad=True)
    seen(critics, 4, joint)
    critics.rest.quantizers = None  # behind a layer that rounds, the last bits of the sums could become whole steps
    reused, dense = (critics.of_own_action(joint, own, dense) for dense in (False, True))
    torch.testing.assert_close(reused, dense, atol=1e-4, rtol=1e-4)
    gradients = [torch.autograd.grad(q.sum(), own, retain_graph=True)[0] for q in (reused, dense)]
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)
    with pytest.raises(RuntimeError, match=r"unused|not require|One of the differentiated"):
        torch.autograd.grad(dense.sum(), critics.first)  # frozen
    by_rows = critics(joint.expand(3, -1, -1))
    torch.testing.assert_close(critics(joint), by_rows, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", [MADDPG, MASAC])
def test_team_learns_in_low_precision(kind, tmp_path):
    name = "maddpg" if kind is MADDPG else "masac"
    result = train(dataclasses.replace(SMALL, algorithm=name, qat_bits=4, quant_delay=0.3, out=str(tmp_path / "run")))
    team, config = load_team(tmp_path / "run", lambda text: None)
    assert result.updates > 50 and isinstance(team, kind)
    layers = frozen_layers(team.rollout_actors)
    assert layers is not None and [layer.bits for layer in layers] == [4, 4, 4]
    # an engine's plain numpy gives the trained outputs, but for inputs on the edge between two codes
    env = build_env(config, 50, 7, stagger=False)
    states = env.reset()
    with torch.no_grad():
        ours = team.rollout_actors(torch.from_numpy(states).transpose(0, 1)).transpose(0, 1).numpy()
    theirs = from_team(team).outputs(states, np.float32)
    step = float(np.abs(theirs).max()) / (2**4 - 1)
    assert np.abs(ours - theirs).max() <= step
    assert np.median(np.abs(ours - theirs)) < 1e-5
    full = from_team(team).outputs(states, np.float32, quantized=False)
    assert np.abs(full - ours).max() > 1e-3  # what is played is not full precision


def test_resume_is_bit_identical(tmp_path):
    config = dataclasses.replace(SMALL, qat_bits=3, quant_delay=0.4)
    train(dataclasses.replace(config, out=str(tmp_path / "whole")))

    class Stop(Exception):
        pass

    from shoal.runs.observer import Observer

    class Stopper(Observer):
        def advance(self, training):
            if training.saved:
                raise Stop

    folder = tmp_path / "parts"
    with pytest.raises(Stop):
        train(dataclasses.replace(config, checkpoint_every=40, out=str(folder)), observer=Stopper())
    assert newest(folder / "checkpoints", ("weights",)).parts["weights"]["qat.on"] == [1]
    train(TrainConfig(out=str(folder)), resume=True)
    whole, parts = (
        newest(path / "checkpoints", ("weights",)).parts["weights"] for path in (tmp_path / "whole", folder)
    )
    assert {"qat.on", "qat.actors.0.low", "qat.critics.first.high"} <= whole.keys()
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


def test_run_can_leave_critics_in_full_precision():
    team = MADDPG(SPEC, SMALL, 0, torch.device("cpu"))
    qat = make_precision(team, dataclasses.replace(SMALL, qat_bits=4, qat_critics=False)).qat
    assert {name.partition(".")[0] for name in qat.layers} == {"actors"}
    assert team.critics.quantizers is None and team.actors.quantizers is not None
    assert team.target_actors.quantizers is not None and "qat.actors.0.low" in team.weights()


def test_no_quantizers_without_qat_bits(tmp_path):
    train(dataclasses.replace(SMALL, out=str(tmp_path / "run")))
    weights = newest(tmp_path / "run" / "checkpoints", ("weights",)).parts["weights"]
    assert not any(name.startswith("qat") for name in weights)
    team, _ = load_team(tmp_path / "run", lambda text: None)
    assert team.actors.quantizers is None and frozen_layers(team.actors) is None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"qat_bits": 1}, "`qat_bits` is 1, but must be from 2 to 8"),
        ({"qat_agent": 0}, "`qat_bits` is not given"),
        ({"qat_agent": 0, "qat_bits": 8, "share": "actors"}, "`qat_agent` and `share=actors` cannot be used together"),
        ({"quant_delay": 0.3}, "`quant_delay` is for quantization-aware training"),
        ({"qat_critics": False}, "`qat_critics` is for quantization-aware training"),
        ({"qat_bits": 9}, "`qat_bits` is 9"),
        ({"quant_delay": 1.5}, "`quant_delay` is 1.5"),
        ({"qat_bits": 4, "implementation": "reference"}, "`qat_bits` needs `implementation=engine`"),
    ],
)
def test_wrong_settings_are_refused(settings, sentence):
    with pytest.raises(UserError, match="`quant_delay` is 2"):
        Qat({"network": nn.Linear(2, 2)}, 4, delay=2)
    with pytest.raises(UserError, match=sentence):
        dataclasses.replace(SMALL, **settings).checked()


def test_scales_of_dead_inputs_and_weights_are_one():
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight[0] = 0
    seen(layer, 4, torch.zeros(1, 2))
    (frozen,) = frozen_layers(layer)
    assert frozen.weight.scale[0, 0, 0] == 1 and frozen.input.scale.tolist() == [[[1]]]
    assert torch.isfinite(layer(torch.ones(1, 2))).all()
    assert frozen.weight.scale[0, 0, 1] == codes(layer.weight[1].detach(), Quantizer(4)).grid.scale.item()
