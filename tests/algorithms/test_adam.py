"""Stacked clipping and Adam are torch's own, run for one agent after the other."""

import copy

import pytest
import torch
from torch import nn

from shoal.algorithms.adam import StackedAdam, clip_gradients, move_targets

AGENTS, STEPS, RATE = 3, 12, 0.01
SHAPES = [((5, AGENTS, 4), 1), ((AGENTS, 1, 4), 0), ((AGENTS, 4, 2), 0), ((AGENTS, 1, 2), 0)]  # with the agents' axis
SIZES = torch.tensor([0.01, 1.0, 50.0], dtype=torch.float64)  # of the agents' gradients: below and above the limit


def draw(seed):
    """One array a parameter."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape, _ in SHAPES]


def gradients(step):
    """Of very different sizes, by agent and by array."""
    return [
        g * size * SIZES.view([AGENTS if d == axis else 1 for d in range(g.dim())])
        for g, size, (_, axis) in zip(draw(100 + step), (1.0, 0.01, 0.2, 3.0), SHAPES, strict=True)
    ]


def stacked_parameters():
    return [(nn.Parameter(value), axis) for value, (_, axis) in zip(draw(0), SHAPES, strict=True)]


def step_with(adam, wanted):
    """A step whose gradients are the wanted ones."""
    adam.step(sum((p * g).sum() for p, g in zip(adam.parameters, wanted, strict=True)))


def one_agent_after_the_other(clip, clip_by):
    """All agents' parameters after the same steps by torch.optim.Adam, as the stacks they came from."""
    results = []
    for agent in range(AGENTS):
        own = [nn.Parameter(p.select(axis, agent).clone()) for p, (_, axis) in zip(draw(0), SHAPES, strict=True)]
        adam = torch.optim.Adam(own, lr=RATE)
        for step in range(STEPS):
            for p, g, (_, axis) in zip(own, gradients(step), SHAPES, strict=True):
                p.grad = g.select(axis, agent).clone()
            if clip:
                for group in [[p] for p in own] if clip_by == "variable" else [own]:
                    nn.utils.clip_grad_norm_(group, clip)
            adam.step()
        results.append(own)
    return [
        torch.stack(list(agents), axis).detach()
        for agents, (_, axis) in zip(zip(*results, strict=True), SHAPES, strict=True)
    ]


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize(("clip", "clip_by"), [(0.0, "variable"), (0.5, "variable"), (0.5, "network")])
def test_equals_adam_of_each_agent(clip, clip_by, interrupted):
    adam = StackedAdam(stacked_parameters(), RATE, clip, clip_by)
    for step in range(STEPS):
        if interrupted and step == STEPS // 2:  # as from disk: another optimizer takes over
            state = {name: value.clone() for name, value in adam.state().items()}
            parameters = [
                (nn.Parameter(p.detach().clone()), a) for p, a in zip(adam.parameters, adam.axes, strict=True)
            ]
            adam = StackedAdam(parameters, RATE, clip, clip_by)
            adam.load_state(state)
        step_with(adam, gradients(step))
    # torch divides by the norm + 1e-6, so its clipped gradients are a millionth smaller
    tolerance = 1e-7 if clip else 1e-13
    for ours, theirs in zip(adam.parameters, one_agent_after_the_other(clip, clip_by), strict=True):
        torch.testing.assert_close(ours.detach(), theirs, atol=tolerance, rtol=0)


def test_clipping_modes_differ():
    """Else the comparison above would say little."""
    plain, variable, network = (one_agent_after_the_other(*o) for o in ((0, ""), (0.5, "variable"), (0.5, "network")))
    for a, b in ((plain, variable), (plain, network), (variable, network)):
        assert any((x - y).abs().max() > 1e-3 for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("by", ["variable", "network"])
def test_clipped_norms(by):
    axes = [axis for _, axis in SHAPES]
    before, after = gradients(0), gradients(0)
    clip_gradients(after, axes, 0.5, by)
    for agent in range(AGENTS):
        old, new = ([g.select(axis, agent) for g, axis in zip(gs, axes, strict=True)] for gs in (before, after))
        groups = [([a], [b]) for a, b in zip(old, new, strict=True)] if by == "variable" else [(old, new)]
        for whole, clipped in groups:
            norm, left = (torch.cat([g.flatten() for g in gs]).norm() for gs in (whole, clipped))
            assert left.item() == pytest.approx(min(norm.item(), 0.5))
            for a, b in zip(whole, clipped, strict=True):
                torch.testing.assert_close(b, a * (left / norm))  # the direction stays


def test_missing_gradients_stay_none():
    zeros = [torch.zeros(2, 3)]
    clip_gradients(zeros, [0], 0.5, "variable")
    assert not zeros[0].any()


def test_state_round_trips():
    """Saved half-way and loaded: the same bits as without a break; a fresh optimizer goes elsewhere."""
    adam = StackedAdam(stacked_parameters(), RATE, 0.5, "variable")
    for step in range(3):
        step_with(adam, gradients(step))
    assert [adam.state()[f"{k}.step"].item() for k in range(len(SHAPES))] == [3] * len(SHAPES)
    weights, state = copy.deepcopy(([p.detach() for p in adam.parameters], adam.state()))
    ends = []
    for load in (True, False):
        other = StackedAdam(
            [(nn.Parameter(w.clone()), a) for w, a in zip(weights, adam.axes, strict=True)], RATE, 0.5, "variable"
        )
        if load:
            other.load_state(state)
        step_with(other, gradients(3))
        ends.append(other.parameters)
    step_with(adam, gradients(3))
    assert all(torch.equal(a, b) for a, b in zip(adam.parameters, ends[0], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(adam.parameters, ends[1], strict=True))


@pytest.mark.parametrize("tau", [0.0, 0.01, 1.0])
def test_soft_target_update(tau):
    targets, online = draw(1), draw(2)
    expected = [(1 - tau) * t + tau * o for t, o in zip(targets, online, strict=True)]
    move_targets(targets, online, tau)
    for t, e, o, unmoved in zip(targets, expected, online, draw(2), strict=True):
        torch.testing.assert_close(t, e, atol=1e-14, rtol=0)
        assert torch.equal(o, unmoved)
