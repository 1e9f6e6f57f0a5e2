"""Pooled critics: what they must not depend on, and their quantized form. Their numbers: algorithms/test_oracle.py."""

import pytest
import torch

from shoal.networks.layout import Random
from shoal.networks.pooled import PooledCritics
from shoal.quantization.layers import find_layers
from tests.algorithms.test_oracle import make_spec
from tests.networks.test_stacked import randn
from tests.quantization.test_qat import seen

N, O, A = 4, 4, 3


def turned(joint, order):
    """The joint rows of the same agents in another order."""
    observations, actions = joint[:, : N * O].view(-1, N, O), joint[:, N * O :].view(-1, N, A)
    return torch.cat([observations[:, order].flatten(1), actions[:, order].flatten(1)], 1)


def test_values_move_with_the_agents():
    critics, joint, order = (
        PooledCritics(make_spec(N, True), (6, 5), 2, Random(0), shared=True),
        randn(7, N * 7),
        [2, 0, 3, 1],
    )
    torch.testing.assert_close(critics(turned(joint, order)), critics(joint)[order])


@pytest.mark.parametrize("heads", [1, 2])
def test_own_action_as_played_gives_the_value_of_the_rows(heads):
    """Also in 4 bits, where layers and inputs of both passes are rounded alike."""
    critics, joint = PooledCritics(make_spec(N, True), (6, 5), heads, Random(0)), randn(7, N * 7)
    played = joint[:, N * O :].view(-1, N, A).transpose(0, 1)
    torch.testing.assert_close(critics.of_own_action(joint, played), critics(joint))
    seen(critics, 4, joint)
    assert [layer.name for layer in find_layers(critics)] == ["first", "rest.0", "rest.1"]
    torch.testing.assert_close(critics.of_own_action(joint, played), critics(joint))
    with pytest.raises(RuntimeError, match="does not require grad"):
        critics.of_own_action(joint, played).sum().backward()
