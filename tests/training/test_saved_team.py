"""Weights alone: what was written comes back, whatever is damaged is found, and the previous file survives a crash."""

import os

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.runs import disk
from shoal.training.saved_team import BEST, read_weights, write_weights

WEIGHTS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.array(3.5)}


@pytest.fixture
def path(tmp_path):
    write_weights(tmp_path / BEST, WEIGHTS, {"episode": 7, "settings": {"seed": 1}})
    return tmp_path / BEST


def test_weights_file_round_trips(path):
    held = read_weights(path)
    assert held.episode == 7 and held.meta["settings"] == {"seed": 1} and held.parts["weights"].keys() == WEIGHTS.keys()
    for name, array in WEIGHTS.items():
        assert np.array_equal(held.parts["weights"][name], array) and held.parts["weights"][name].shape == array.shape
    assert os.listdir(path.parent) == [path.name]


def test_every_damaged_byte_is_found(path):
    """Except in what a reader of the format ignores: a flipped byte never gives other weights or facts."""
    data = path.read_bytes()
    before = read_weights(path)
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        try:
            held = read_weights(path)
        except disk.Damaged:
            continue
        assert held.meta == before.meta
        assert all(np.array_equal(held.parts["weights"][name], array) for name, array in WEIGHTS.items())


def test_failed_write_keeps_the_previous_file(path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match="cannot be written: No space left"):
        write_weights(path, {"a": np.zeros(1)}, {"episode": 8})
    monkeypatch.undo()
    assert read_weights(path).episode == 7 and os.listdir(path.parent) == [path.name]
