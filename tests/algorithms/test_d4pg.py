"""Distributions on atoms, against a plain loop over the atoms and against exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from shoal.algorithms.d4pg import project
from tests.algorithms.plain_deep import plain_projection

F = Fraction


@pytest.mark.parametrize(
    ("probability", "reward", "discount", "expected"),
    [
        ([F(1, 2), F(1, 2), F(0)], F(0), F(1), [F(1, 2), F(1, 2), F(0)]),  # nothing moves
        ([F(1, 4), F(1, 2), F(1, 4)], F(1, 2), F(0), [F(0), F(1, 2), F(1, 2)]),  # a true end: only the reward
        ([F(0), F(0), F(1)], F(1), F(1), [F(0), F(0), F(1)]),  # beyond the last atom
        ([F(1), F(0), F(0)], F(-7), F(1), [F(1), F(0), F(0)]),  # beyond the first
        ([F(1, 3), F(1, 3), F(1, 3)], F(1, 4), F(1, 2), [F(1, 12), F(7, 12), F(1, 3)]),
    ],
)
def test_projection_of_exact_cases(probability, reward, discount, expected):
    """Three atoms at -1, 0 and 1."""
    assert plain_projection(probability, reward, discount, [F(-1), F(0), F(1)]) == expected
    row = torch.tensor([[[float(p) for p in probability]]], dtype=torch.float64)
    found = project(row, torch.tensor([[float(reward)]]).double(), float(discount), -1.0, 1.0)
    assert found[0, 0].tolist() == pytest.approx([float(p) for p in expected], abs=1e-15)


@pytest.mark.parametrize(("low", "high", "count"), [(-150.0, 150.0, 51), (-3.0, 0.5, 2), (0.0, 7.0, 12)])
def test_projection_matches_a_loop_over_atoms(low, high, count):
    rng = np.random.default_rng(0)
    probability = torch.from_numpy(rng.dirichlet(np.ones(count), size=(2, 30)))
    reward = torch.from_numpy(rng.normal(size=(2, 30)) * (high - low) / 2)
    discount = torch.from_numpy(rng.choice([0.0, 0.95, 0.99**5, 1.0], size=(2, 30)))
    found = project(probability, reward, discount, low, high)
    atoms = [low + k * (high - low) / (count - 1) for k in range(count)]
    for n in range(2):
        for b in range(30):
            plain = plain_projection(probability[n, b].tolist(), float(reward[n, b]), float(discount[n, b]), atoms)
            assert found[n, b].tolist() == pytest.approx(plain, abs=1e-12)
    assert found.sum(-1).numpy() == pytest.approx(1.0)
    inside = ((reward.abs() < 0.1 * (high - low)) & (discount == 0)).numpy()
    values = torch.linspace(low, high, count).double()
    mean = (found * values).sum(-1).numpy()
    assert mean[inside] == pytest.approx(reward.numpy()[inside].clip(low, high), abs=1e-5)  # the mean is kept


def test_scalar_and_per_row_discounts_agree():
    probability, reward = torch.rand(3, 4, 5).softmax(-1), torch.randn(3, 4)
    each = project(probability, reward, torch.full((3, 4), 0.9), -2.0, 2.0)
    torch.testing.assert_close(project(probability, reward, 0.9, -2.0, 2.0), each)
    torch.testing.assert_close(project(probability, reward, torch.full((1, 4), 0.9), -2.0, 2.0), each)
