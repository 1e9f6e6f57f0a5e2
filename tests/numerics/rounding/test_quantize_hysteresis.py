"""Hysteresis rounding: the result moves only when the number has reached a further value of the format."""

import numpy as np
import pytest
import torch

from shoal.errors import UserError
from shoal.numerics import quantize
from shoal.numerics.rounding.exact import round_exact
from tests.numerics.numbers import assert_same, scalar


@pytest.mark.parametrize("name", ["E3M4", "E5M2", "E5M2:5", "Q4.4"])
def test_hysteresis_moves_only_when_the_next_value_is_reached(name: str) -> None:
    """500 random walks of 200 steps, each step about half a spacing."""
    format = scalar(name)
    rng = np.random.default_rng(0)
    values = format.values()
    w = rng.uniform(-2, 2, 500).astype(np.float32)
    state = quantize(w, name, "hysteresis")
    assert_same(state, quantize(w, name), w)
    for step in range(200):
        w = w + (rng.standard_normal(500) * 0.03).astype(np.float32)
        new = quantize(w, name, "hysteresis", previous=state)
        if step % 40 == 0:
            both = zip(w, state, strict=True)
            exact = [round_exact(float(v), format, "hysteresis", previous=float(last)) for v, last in both]
            assert_same(new, np.array(exact, np.float32), w)
        # What the new result has to be: the furthest value between the old result and w, both ends included.
        low, high = np.minimum(state, w), np.maximum(state, w)
        reached = np.where(
            w > state, values[np.searchsorted(values, high, side="right") - 1], values[np.searchsorted(values, low)]
        )
        assert np.array_equal(new, reached)
        state = new


def test_hysteresis_keeps_values_of_the_format() -> None:
    values = scalar("E3M4").values().astype(np.float32)
    for previous in (0.1, -100.0, 100.0):
        assert np.array_equal(quantize(values, "E3M4", "hysteresis", previous=np.full_like(values, previous)), values)


def test_small_oscillations_are_suppressed() -> None:
    """Around a tie rounding to nearest flips with every step; hysteresis stays."""
    w = np.where(np.arange(100) % 2 == 0, 1.12, 1.13).astype(np.float32)
    nearest = quantize(w, "E5M2")
    state, kept = quantize(w[:1], "E5M2", "hysteresis"), []
    for value in w:
        state = quantize(np.array([value]), "E5M2", "hysteresis", previous=state)
        kept.append(float(state[0]))
    assert len(set(nearest.tolist())) == 2 and len(set(kept)) == 1


def test_start_and_tensor_kinds() -> None:
    w = torch.tensor([[1.2, -1.2], [0.3, 300.0]])
    assert torch.equal(quantize(w, "E5M2", "hysteresis", start="down"), quantize(w, "E5M2", "down"))
    state = quantize(w, "E5M2", "hysteresis")
    again = quantize(w, "E5M2", "hysteresis", previous=state, out=w)
    assert again.data_ptr() == w.data_ptr() and torch.equal(again, state)
    with pytest.raises(UserError):
        quantize(w, "E5M2", "hysteresis", start="up")
    with pytest.raises(UserError):
        quantize(w, "E5M2", "hysteresis", previous=state[0])
