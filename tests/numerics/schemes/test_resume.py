"""A training that is saved and loaded, or evaluated in between, continues with the same bits."""

import copy

import pytest
import torch

from shoal.numerics import LowPrecision
from tests.numerics.schemes.networks import (
    ATTENTIVE,
    CONVNET,
    MLP,
    Batch,
    Network,
    batches,
    bits,
    differences,
    start,
    train,
)

STOCHASTIC = "hfp8; weights=E4M3(bias=4), rounding=stochastic; inputs=E4M3(bias=4), rounding=stochastic"
CASES: dict[str, tuple[Network, str, str, str]] = {
    "float32": (MLP, "float32", "adam", "none"),
    "stochastic casts": (CONVNET, STOCHASTIC, "adam", "64"),
    "stochastic unit": (MLP, "E5M2:5+E6M5, rounding=stochastic", "sgd", "adaptive, interval=2"),
    "hysteresis": (MLP, "fp134", "sgd", "dynamic, interval=2"),
    "hysteresis, one exponent for all": (MLP, "bf16; weights=E3M2, rounding=hysteresis", "sgd", "none"),
    "averages": (CONVNET, "swalp; average_after=2; average_every=2", "sgd", "64"),
    "compensation": (MLP, "bf16; master=bf16, rounding=stochastic; state=bf16; update=compensated", "adamw", "64"),
    "scale that backs off": (MLP, "E5M2:5+Q8.13", "sgd", "dynamic, start=1e9, interval=3"),
    "attention": (ATTENTIVE, "bm8", "adam", "adaptive"),
}


def continued(training: LowPrecision, case: str) -> LowPrecision:
    """A new model, optimizer and training that have been loaded from the old ones."""
    saved = copy.deepcopy((training.model.state_dict(), training.optimizer.state_dict(), training.state()))
    network, scheme, optimizer, scale = CASES[case]
    new = start(network, scheme, optimizer, scale)
    train(new, batches(network, 1))  # what it has done before does not matter
    new.model.load_state_dict(saved[0])
    new.optimizer.load_state_dict(saved[1])
    new.load_state(saved[2])
    return new


def future(training: LowPrecision, data: list[Batch]) -> list[torch.Tensor]:
    """Everything after some more steps."""
    losses = train(training, data)
    numbers = torch.tensor([training.scale, training.steps, training.skipped, training.averages], dtype=torch.float64)
    state = [*bits(training).values(), *training.state().values()]
    return [*losses, numbers, *state, *(torch.tensor(row[2:]) for row in training.by_layer())]


def assert_same(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    assert len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("done", [2])
def test_resume_is_bit_identical(case: str, done: int) -> None:
    network, scheme, optimizer, scale = CASES[case]
    data = batches(network, done + 2)
    training = start(network, scheme, optimizer, scale)
    train(training, data[:done])
    new = continued(training, case)
    assert_same(future(training, data[done:]), future(new, data[done:]))


@pytest.mark.parametrize("case", ["stochastic casts", "hysteresis", "averages"])
def test_resume_between_forward_pass_and_step(case: str) -> None:
    """The rounded weights of the forward pass are those of the next one, too, as the weights have not changed."""
    network, scheme, optimizer, scale = CASES[case]
    data = batches(network, 4)
    training = start(network, scheme, optimizer, scale)
    train(training, data[:1])
    with training:
        training.model(data[1][0])
    new = continued(training, case)
    assert_same(future(training, data[2:]), future(new, data[2:]))


@pytest.mark.parametrize("case", CASES)
def test_evaluation_does_not_change_state(case: str) -> None:
    network, scheme, optimizer, scale = CASES[case]
    data = batches(network, 4)
    plain, watched = (start(network, scheme, optimizer, scale) for _ in range(2))
    for n, batch in enumerate(data):
        train(plain, [batch])
        state = watched.state()
        for _ in range(2):
            with watched.evaluating():
                before = {name: own.clone() for name, own in watched.model.named_parameters()}
                watched.model.eval()
                watched.model(data[n - 1][0])
                watched.model.train()
                assert not torch.is_grad_enabled()
        assert state.keys() == watched.state().keys()
        assert all(torch.equal(value, watched.state()[name]) for name, value in state.items())
        for name, own in watched.model.named_parameters():
            assert torch.equal(before[name], watched._mean[name] if watched.averages else own)
        with watched:
            loss = (watched.model(batch[0]) - batch[1]).square().mean()
        if not watched.averages:  # with averages weights change, which autograd allows only after the step
            with watched.evaluating():
                watched.model.eval()
                watched.model(batch[0])
                watched.model.train()
        watched.step(loss)
    assert not differences(bits(plain), bits(watched))
    assert plain.by_layer() == watched.by_layer() and plain.metrics() == watched.metrics()
    assert_same([*plain.state().values()], [*watched.state().values()])


def test_averaged_weights_are_used_only_in_evaluation() -> None:
    training = start(MLP, "float32; average_after=2")
    own = training.model[0].weight
    data, kept = batches(MLP, 4), []
    for batch in data:
        train(training, [batch])
        kept.append(own.detach().clone())
        assert training.averages == (len(kept) >= 2)
    mean = (2 * ((kept[1] + kept[2]) / 2) + kept[3]) / 3
    with training.averaged():
        assert torch.equal(own, mean) and not torch.equal(own, kept[3])
        with training.evaluating():
            assert torch.equal(own, mean)
    assert torch.equal(own, kept[3])
    with pytest.raises(ZeroDivisionError), training.evaluating():
        assert torch.equal(own, mean)
        raise ZeroDivisionError
    assert torch.equal(own, kept[3]) and torch.is_grad_enabled()
