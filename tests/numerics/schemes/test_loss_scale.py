"""Loss scales: the rules of torch's GradScaler, step by step; overflow in units and casts; divergence."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shoal.errors import Diverged, UserError
from shoal.numerics import low_precision
from shoal.numerics.schemes.loss_scale import DEFAULTS, PATIENCE, LossScale, Scaler, parse_loss_scale
from tests.numerics.schemes.networks import MLP, batches, bits, differences, side_by_side, start, train


@pytest.mark.parametrize(
    ("rule", "growth", "backoff", "interval"),
    [("", 2.0, 0.5, 2000), (", growth=4, interval=3", 4.0, 0.5, 3), (", backoff=0.125, interval=2", 2.0, 0.125, 2)],
)
def test_dynamic_scale_matches_torch_grad_scaler(rule: str, growth: float, backoff: float, interval: int) -> None:
    """Scale, skipped steps and weights, on gradients with infinities and NaN here and there."""
    random = torch.Generator().manual_seed(0)
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    models[1].load_state_dict(models[0].state_dict())
    ours, theirs = (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models)
    training = low_precision(models[0], ours, "float32", loss_scale=f"dynamic{rule}")
    scaler = torch.amp.GradScaler("cpu", growth_factor=growth, backoff_factor=backoff, growth_interval=interval)
    skipped = 0
    for step in range(40):
        x = torch.randn(4, 3, generator=random)
        if step % 7 == 5 or 20 <= step < 23:
            x[1, 2] = (math.inf, -math.inf, math.nan)[step % 3]
        with training:
            loss = models[0](x).square().mean()
        took = training.step(loss)
        before = models[1].weight.clone()
        theirs.zero_grad()
        scaler.scale(models[1](x).square().mean()).backward()
        scaler.step(theirs)
        scaler.update()
        skipped += torch.equal(before, models[1].weight)
        assert took == (not torch.equal(before, models[1].weight))
        assert (training.scale, training.skipped) == (scaler.get_scale(), skipped)
        assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))
    assert skipped > 5 and training.steps == 40 - skipped


def test_defaults_match_torch_grad_scaler() -> None:
    scaler, usual = torch.amp.GradScaler("cpu"), DEFAULTS["dynamic"]
    theirs = (scaler.get_scale(), scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval())
    assert (usual.start, usual.growth, usual.backoff, usual.interval) == theirs


# ---- every field, against plain.py ---------------------------------------------------------------------------------

FIXED = "E5M2:5+Q8.13"
RULES = {
    "kind": ("dynamic, start=2e4, interval=2", "adaptive, start=2e4, interval=2"),
    "start": ("dynamic, start=4096", "dynamic, start=1e6"),
    "growth": ("dynamic, start=16, interval=1", "dynamic, start=16, interval=1, growth=8"),
    "backoff": ("dynamic, start=1e6", "dynamic, start=1e6, backoff=0.25"),
    "interval": ("dynamic, start=16, interval=2", "dynamic, start=16, interval=1"),
    "tolerance": ("dynamic, start=2e4", "dynamic, start=2e4, tolerance=0.5"),
}


@pytest.mark.parametrize("field", RULES)
def test_every_field_of_a_loss_scale_matters(field: str) -> None:
    """Sums that saturate in Q8.13 make a step overflow, though all gradients are finite."""
    assert RULES.keys() == {one.name for one in dataclasses.fields(LossScale)}
    base, changed = RULES[field]
    training = side_by_side(MLP, FIXED, 3, scale=changed)
    without = start(MLP, FIXED, scale=base)
    train(without, batches(MLP, 3))
    assert (training.scale, training.skipped) != (without.scale, without.skipped) or field == "growth"
    assert training.scale != without.scale or training.skipped != without.skipped
    assert all(own.grad.isfinite().all() for own in training.model.parameters())


@pytest.mark.parametrize(
    "scheme",
    [
        "bf16; activation_gradients=E4M3, overflow=saturate",
        "bf16; weight_gradients=E4M3, overflow=saturate",
        "bf16; weight_gradients=fp16",
    ],
)
def test_overflowing_casts_of_gradients(scheme: str) -> None:
    training = side_by_side(MLP, scheme, 2, scale="dynamic, start=1e7")
    assert training.skipped == 2 and training.scale == 2.5e6


def test_gradients_that_round_to_infinity() -> None:
    """A constant scale looks at them only."""
    training = side_by_side(MLP, "bf16; weight_gradients=fp16", 1, scale=1e7)
    assert training.skipped == 1


COARSE = "E2M1F/tensor, rounding=toward-zero"


@pytest.mark.parametrize(
    "scheme", ["fp8-seb", "s2fp8", f"bf16; activation_gradients={COARSE}; weight_gradients={COARSE}"]
)
def test_casts_with_shared_exponents_do_not_overflow(scheme: str) -> None:
    training = side_by_side(MLP, scheme, 1, scale="dynamic, start=1e7, tolerance=0")
    assert training.skipped == 0
    saturated = {row.role for row in training.by_layer() if row.saturated}
    assert COARSE not in scheme or {"activation_gradients", "weight_gradients"} <= saturated


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_non_finite_gradients_are_seen_before_rounding(bad: float) -> None:
    """E4M3F has neither infinities nor NaN, so the gradients are looked at before they are rounded."""
    training = start(MLP, "fp8-seb")
    (x, y), *_ = batches(MLP, 1)
    with training:
        loss = (training.model(x) - y).square().mean()
    training.optimizer.zero_grad()
    training.backward(loss)
    training.model[2].bias.grad[1] = bad
    before = training.model[2].weight.clone()
    assert not training.update()
    assert torch.equal(training.model[2].weight, before) and training.skipped == 1


def test_several_backward_passes_before_an_update() -> None:
    """Gradients add up, and an overflow in any of the passes counts; the next update looks at its own passes only."""
    training = start(MLP, FIXED, scale="dynamic, start=1024")
    (x, y), *_ = batches(MLP, 1)
    taken = []
    for sizes in ((1e4, 1e-3), (1e-3, 1e-3), (1e-3, 1e4)):
        training.optimizer.zero_grad()
        for size in sizes:
            with training:
                loss = (training.model(x) - y).square().mean() * size
            training.backward(loss)
        taken.append(training.update())
    assert taken == [False, True, False] and training.scale == 256
    both = [start(MLP, "bf16", scale=64) for _ in range(2)]
    for _ in range(2):
        with both[0]:
            loss = (both[0].model(x) - y).square().mean()
        both[0].backward(loss)
    with both[1]:
        loss = (both[1].model(x) - y).square().mean() * 2
    both[1].backward(loss)
    for training in both:
        assert training.update()
    assert torch.allclose(both[0].model[0].weight, both[1].model[0].weight)


def test_constant_scale_changes_only_small_gradients() -> None:
    plain, scaled = start(MLP, "float32"), start(MLP, "float32", scale=1024)
    for training in (plain, scaled):
        train(training, batches(MLP, 2))
    assert not differences(bits(plain), bits(scaled))  # a power of two
    narrow = [start(MLP, "bf16; activation_gradients=E4M3(bias=4)", scale=scale) for scale in ("none", 64)]
    for training in narrow:
        train(training, batches(MLP, 1))
    lost = [sum(row.underflowed for row in one.by_layer() if row.role == "activation_gradients") for one in narrow]
    assert lost[0] > lost[1] and narrow[1].scale == 64 and narrow[0].scale == 1


# ---- the rules by themselves ---------------------------------------------------------------------------------------


def test_adaptive_scale_skips_only_non_finite_steps() -> None:
    scaler = Scaler(parse_loss_scale("adaptive, interval=2"))
    taken = [
        scaler.judge(finite, share) for finite, share in ((True, 0), (True, 0), (True, 0.01), (False, 0), (True, 0))
    ]
    assert taken == [True, True, True, False, True] and scaler.scale == 512
    assert (scaler.taken, scaler.skipped) == (4, 1)


def test_tolerance_is_a_fraction() -> None:
    scaler = Scaler(parse_loss_scale("dynamic, tolerance=0.25"))
    assert scaler.judge(True, 0.25) and not scaler.judge(True, 0.26)
    assert Scaler(parse_loss_scale(8)).judge(True, 1.0) and Scaler(parse_loss_scale("none")).judge(True, 1.0)


def test_limits_of_the_scale() -> None:
    up = Scaler(parse_loss_scale("dynamic, interval=1, growth=1048576"))
    assert all(up.judge(True, 0) for _ in range(30)) and up.scale == 2.0**100


@pytest.mark.parametrize("rule", ["none", "64"])
def test_a_constant_scale_diverges_after_skipped_steps_in_a_row(rule: str) -> None:
    scaler = Scaler(parse_loss_scale(rule))
    for _ in range(PATIENCE - 1):
        assert not scaler.judge(False, 0)
    assert scaler.judge(True, 0)
    for _ in range(PATIENCE - 1):
        assert not scaler.judge(False, 0)
    with pytest.raises(Diverged, match="The gradients of the last 20 steps are not finite"):
        scaler.judge(False, 0)


def test_a_changing_scale_diverges_below_one() -> None:
    scaler = Scaler(parse_loss_scale("dynamic"))
    for _ in range(PATIENCE):  # 2^16 to 2^-4: the last twenty were skipped, but it has just fallen below 1
        try:
            scaler.judge(True, 1)
        except Diverged as diverged:
            assert str(diverged) == "The loss scale has fallen to 0.06 and the last 20 steps overflowed all the same"
            break
    else:
        pytest.fail("it did not diverge")
    high = Scaler(parse_loss_scale("dynamic, start=1e20"))
    assert not any(high.judge(True, 1) for _ in range(PATIENCE + 10))


def test_diverged_training_raises() -> None:
    training = start(MLP, "E5M2:5+E6M5", scale="adaptive, start=8")
    (x, y), *_ = batches(MLP, 1)
    with pytest.raises(Diverged, match="has fallen to"):
        train(training, [(x, y * math.nan)] * 30)
    assert training.skipped == PATIENCE


# ---- names ---------------------------------------------------------------------------------------------------------


@given(
    kind=st.sampled_from(["dynamic", "adaptive"]),
    start=st.floats(1e-30, 1e30),
    growth=st.floats(1, 100),
    backoff=st.floats(0.001, 1),
    interval=st.integers(1, 10**9),
    tolerance=st.floats(0, 1),
)
@settings(max_examples=30, deadline=None)
def test_names_are_read_back(
    kind: str, start: float, growth: float, backoff: float, interval: int, tolerance: float
) -> None:
    rule = LossScale(kind, start, growth, backoff, interval, tolerance)
    assert parse_loss_scale(repr(rule)) == rule
    fixed = LossScale("fixed", start)
    assert parse_loss_scale(repr(fixed)) == fixed == parse_loss_scale(start)


def test_short_names() -> None:
    names = ("none", "1024", "dynamic", "adaptive", "dynamic, interval=500, tolerance=0")
    assert [repr(parse_loss_scale(name)) for name in names] == [*names]
    assert parse_loss_scale(DEFAULTS["none"]) is DEFAULTS["none"]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("often", "'often' is not a loss scale"),
        ("1024, interval=3", "'1024' is not a loss scale"),
        ("none, interval=3", "has fields, which only dynamic and adaptive loss scales have"),
        ("dynamic, speed=3", "'speed' is not known; choose one of: start, growth, backoff, interval, tolerance"),
        ("dynamic, start=high", "start of the loss scale is 'high', but must be a number"),
        ("dynamic, interval=2.5", "interval of the loss scale is 2.5, but must be a whole number"),
        ("dynamic, interval=1e400", "interval of the loss scale is inf, but must be a whole number"),
        ("dynamic, interval=0", "interval of the loss scale is 0, but must be at least 1"),
        ("dynamic, growth=0.5", "growth of the loss scale is 0.5"),
        ("dynamic, backoff=2", "backoff of the loss scale is 2"),
        ("dynamic, tolerance=-1", "tolerance of the loss scale is -1"),
        ("nan", "The loss scale is nan, but must be from 1e-30 to 1e+30"),
        ("0", "The loss scale is 0"),
        (-2.0, "The loss scale is -2.0"),
        (True, "A loss scale is a number or a text, not True"),
        (None, "A loss scale is a number or a text, not None"),
    ],
)
def test_wrong_names_are_refused(wrong: object, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        parse_loss_scale(wrong)  # type: ignore[arg-type]
    assert sentence in str(error.value) and str(error.value).endswith(".") and "\n" not in str(error.value)


def test_a_changing_scale_needs_counts() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(UserError, match="looks at overflows, which stats=False does not count"):
        low_precision(model, torch.optim.SGD(model.parameters()), "bf16", loss_scale="dynamic", stats=False)
    low_precision(model, torch.optim.SGD(model.parameters()), "bf16", loss_scale=8, stats=False)
