"""Shoal's own networks in an emulation: the same bits as a loop over agents."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms import LearnConfig, make_team
from shoal.algorithms.minibatch import as_tensors
from shoal.errors import UserError
from shoal.networks.critics import JointCritics
from shoal.networks.layout import Random
from shoal.networks.stacked import StackedMLP
from shoal.numerics import emulate, parse_mac
from shoal.quantization.qat import Qat
from tests.algorithms.plain import Net, critic_nets
from tests.algorithms.test_oracle import make_batch, make_spec
from tests.numerics.macs import numbers

UNITS = {"forward": "E4M3*E5M2:5+E6M7", "grad_input": "E5M2:5+Q8.13", "grad_weight": "E5M2:5+E6M5"}
CPU = torch.device("cpu")


def tensor(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.from_numpy(numbers(shape, seed, 1))


@pytest.mark.parametrize("inside", [True, False])
def test_stacks_equal_loops_over_networks(inside: bool) -> None:
    x, sizes = tensor((3, 7, 5), 1), (5, 20, 6, 1)
    network = StackedMLP([np.ones((3, size), bool) for size in sizes], Random(0))
    parameters = list(network.flat)
    with torch.no_grad():
        for k, values in enumerate(parameters, 2):
            values.copy_(tensor(tuple(values.shape), k))
    g = tensor((3, 7, 1), 20)

    def stacked() -> tuple[Tensor, ...]:
        rows = x.clone().requires_grad_()
        with emulate(**UNITS) as emulation:
            out = network(rows)
            if inside:
                return out, *torch.autograd.grad(out, (rows, *parameters), g)
        gradients = torch.autograd.grad(out, (rows, *parameters), g)
        assert all(row.emulated for row in emulation.coverage())
        assert emulation.by_role["grad_weight"].macs == emulation.by_role["grad_input"].macs == emulation.macs / 3
        return out, *gradients

    def looped() -> list[Tensor]:
        found = []
        for c in range(3):
            rows, net = (x[c] * 1).requires_grad_(), Net([])
            net.p = [p[c] if p.shape[1] > 1 else p[c, 0] for p in parameters]
            net.p = [p.detach().clone().requires_grad_() for p in net.p]
            with emulate(**UNITS):
                out = nn.functional.linear(rows, net.p[0].mT, net.p[1]).relu()
                out = nn.functional.linear(out, net.p[2].mT, net.p[3]).relu()
                out = nn.functional.linear(out, net.p[4].mT, net.p[5])
            found.append((out, *torch.autograd.grad(out, (rows, *net.p), g[c])))
        return [torch.stack(parts) for parts in zip(*found, strict=True)]

    for n, (mine, theirs) in enumerate(zip(stacked(), looped(), strict=True)):
        if n in (3, 5, 7):  # biases' gradients are sums in float32
            torch.testing.assert_close(mine[:, 0], theirs)
        else:
            assert torch.equal(mine, theirs), n


def test_shared_critics_equal_loops_over_critics() -> None:
    spec = make_spec(3, True)
    critics = JointCritics(spec, (12, 8), 1, Random(0))
    joint = tensor((9, 21), 3)
    with emulate(**UNITS):
        q = critics(joint)
        q.square().sum().backward()
    for i, (net,) in enumerate(critic_nets(critics)):
        with emulate(**UNITS):
            one = net(joint)[:, 0]
            one.square().sum().backward()
        assert torch.equal(one, q[i, 0])
        assert torch.equal(net.p[0].grad, critics.first.grad[:, i])
        for k, weight in enumerate(critics.rest.weights):
            assert torch.equal(net.p[2 + 2 * k].grad, weight.grad[i])


def test_a_team_learns_through_the_unit() -> None:
    """Every product of an update is counted where it belongs, and changes what is learnt."""
    spec, rows = make_spec(3, True), 32
    n, o, a, j, h, k = 3, 4, 3, 21, 16, 8
    actors, critics = o * h + h * k + k * a, j * h + h * k + k

    def learn(mac: str | None) -> tuple[dict[str, Tensor], object]:
        config = LearnConfig(hidden=(h, k), batch=rows, first_layer="dense")
        team = make_team(spec, config, 0, CPU)
        batch = as_tensors(make_batch(np.random.default_rng(0), spec, 1), spec, config.discount, CPU)
        if mac is None:
            return team.learn(batch, lambda phase: None), None
        with emulate(mac) as emulation:
            return team.learn(batch, lambda phase: None), emulation

    plain, _ = learn(None)
    wide, _ = learn("fp32:1+fp32")
    narrow, emulation = learn("E5M2:5+E6M5")
    assert torch.allclose(plain["q"], wide["q"], rtol=1e-4) and torch.allclose(
        plain["p"], wide["p"], rtol=1e-3, atol=1e-5
    )
    assert torch.allclose(plain["q"], narrow["q"], rtol=0.2) and not torch.allclose(plain["q"], narrow["q"], rtol=1e-3)
    assert all(row.emulated for row in emulation.coverage())
    by_role = {name: stats.macs / (n * rows) for name, stats in emulation.by_role.items()}
    assert by_role["forward"] == 2 * actors + 3 * critics  # targets, Q loss, P loss
    assert by_role["grad_weight"] == critics + actors
    assert by_role["grad_input"] == (critics - j * h) + critics + (
        actors - o * h
    )  # nobody needs the first layers' inputs


def test_products_of_quantized_stacks_are_emulated_both_ways() -> None:
    spec, config = make_spec(2, True), LearnConfig(hidden=(8, 8), batch=32)
    actors, plain = (make_team(spec, config, 0, CPU).actors for _ in range(2))
    x = tensor((spec.agents, 7, spec.observation_size), 3)
    Qat({"actors": actors}, 4, delay=0.0)
    actors(x)
    counts = []
    for network in (actors, plain):
        with emulate(**UNITS) as emulation:
            out = network(x)
            torch.autograd.grad(out.sum(), list(network.parameters()))
        assert all(row.emulated for row in emulation.coverage())
        counts.append({role: counted.macs for role, counted in emulation.by_role.items()})
    assert counts[0] == counts[1] and set(counts[0]) == {"forward", "grad_input", "grad_weight"}


@pytest.mark.parametrize("quantized", [False, True])
def test_reused_first_layers_are_refused(quantized: bool) -> None:
    spec, config = make_spec(2, True), LearnConfig(hidden=(8, 8), batch=32)
    team = make_team(spec, config, 0, CPU)
    if quantized:
        Qat(team.networks, 4, delay=0.0)
    batch = as_tensors(make_batch(np.random.default_rng(0), spec, 1), spec, config.discount, CPU)
    with pytest.raises(UserError, match="dense"), emulate(parse_mac("E5M2:5+E6M5")):
        team.learn(batch, lambda phase: None)
