"""From the ring's arrays to what the update reads: whose column, whose rows, whose mean."""

import numpy as np
import pytest
import torch

from shoal.algorithms.minibatch import as_tensors, every_observation, put_actions
from shoal.envs.base import EnvSpec
from shoal.networks.critics import own_actions, own_observations
from shoal.replay import Batch

CPU = torch.device("cpu")
N, B, O, A = 3, 4, 2, 5


def make_spec(fixed):
    return EnvSpec("toy", ("a", "b", "c"), (O,) * N, (A,) * N, discrete=True, episode_length=9, fixed_length=fixed)


def numbered(minibatches, precision=np.float32):
    """A batch whose every number is different; everybody is there and nobody ends."""
    shape, joint = (minibatches, B), N * (O + A)
    numbers = np.arange(minibatches * B * joint, dtype=precision).reshape(*shape, joint)
    reward = np.arange(minibatches * B * N, dtype=precision).reshape(*shape, N)
    indices = np.zeros(shape, np.int64)
    return Batch(numbers, -numbers, reward, np.zeros((*shape, N), bool), np.ones((*shape, N), bool), indices, indices)


def own_batch(agent, minibatches):
    """Which of the mini-batches an agent learns from."""
    return agent if minibatches > 1 else 0


@pytest.mark.parametrize("minibatches", [1, N])
def test_independent_minibatches_use_each_agents_column(minibatches):
    gathered = numbered(minibatches)
    gathered.terminated[:] = np.random.default_rng(0).random(gathered.terminated.shape) < 0.5
    gathered.alive[:] = np.random.default_rng(1).random(gathered.alive.shape) < 0.6
    gathered.alive[:, 0] = True  # at least one row each
    batch = as_tensors(gathered, make_spec(fixed=False), 0.9, CPU)
    assert batch.joint.shape == ((B, N * (O + A)) if minibatches == 1 else (N, B, N * (O + A)))
    for i in range(N):
        m = own_batch(i, minibatches)
        there, ended = gathered.alive[m, :, i], gathered.terminated[m, :, i]
        assert batch.reward[i].tolist() == gathered.reward[m, :, i].tolist()
        assert batch.bootstrap[i].tolist() == pytest.approx(np.where(ended, 0, 0.9).tolist())
        assert batch.weight[i].tolist() == pytest.approx((there / there.sum()).tolist())
        for k in range(minibatches):
            rows = slice(k * B, (k + 1) * B)
            stays = gathered.alive[k, :, i] & ~gathered.terminated[k, :, i]
            assert batch.alive[i, rows, 0].tolist() == gathered.alive[k, :, i].tolist()
            assert batch.next_alive[i, rows, 0].tolist() == stays.tolist()


def test_fixed_length_worlds_need_no_masks():
    batch = as_tensors(numbered(1), make_spec(fixed=True), 0.9, CPU)
    assert (batch.bootstrap, batch.weight, batch.alive, batch.next_alive) == (0.9, None, None, None)
    assert batch.mean(torch.tensor([[1.0, 2, 6], [0, 0, 3]])).tolist() == [3, 1]


def test_masks_of_present_agents_change_nothing():
    """Masks that leave nobody out change no number."""
    values = torch.randn(N, B)
    masked, bare = (as_tensors(numbered(1), make_spec(fixed), 0.9, CPU) for fixed in (False, True))
    torch.testing.assert_close(masked.mean(values), bare.mean(values))
    assert (masked.bootstrap == bare.bootstrap).all()


def test_means_exclude_rows_without_the_agent():
    """Agent a was there in two rows, b in none: its mean is 0, not a division by 0; c in all."""
    gathered = numbered(1)
    gathered.alive[0, :, 0] = [True, False, True, False]
    gathered.alive[0, :, 1] = False
    batch = as_tensors(gathered, make_spec(fixed=False), 0.9, CPU)
    values = torch.tensor([[1.0, 100, 5, 100], [7, 7, 7, 7], [1, 2, 3, 6]])
    assert batch.mean(values).tolist() == [3, 0, 3]


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_tensors_have_the_dtype_of_the_batch(precision):
    batch = as_tensors(numbered(N, precision), make_spec(fixed=False), 0.9, CPU)
    tensors = (
        batch.joint,
        batch.next_joint,
        batch.reward,
        batch.bootstrap,
        batch.weight,
        batch.alive,
        batch.next_alive,
    )
    assert {t.numpy().dtype.type for t in tensors} == {precision}


def test_arrays_are_not_copied():
    gathered = numbered(1)
    batch = as_tensors(gathered, make_spec(fixed=True), 0.9, CPU)
    gathered.joint[0, 0, 0], gathered.next_joint[0, 0, 0] = 77, 78
    assert (batch.joint[0, 0], batch.next_joint[0, 0]) == (77, 78)


@pytest.mark.parametrize("minibatches", [1, N])
def test_joint_and_own_observations(minibatches):
    gathered = numbered(minibatches)
    batch = as_tensors(gathered, make_spec(fixed=True), 0.9, CPU)
    every = every_observation(batch.joint, make_spec(fixed=True))
    own_seen, own_played = own_observations(batch.joint, make_spec(True)), own_actions(batch.joint, make_spec(True))
    assert every.shape == (N, minibatches * B, O)
    for i in range(N):
        seen = gathered.joint[..., i * O : (i + 1) * O]
        played = gathered.joint[..., N * O + i * A : N * O + (i + 1) * A]
        assert every[i].tolist() == seen.reshape(-1, O).tolist()
        assert own_seen[i].tolist() == seen[own_batch(i, minibatches)].tolist()
        assert own_played[i].tolist() == played[own_batch(i, minibatches)].tolist()


@pytest.mark.parametrize("somebody_is_absent", [False, True])
@pytest.mark.parametrize("minibatches", [1, N])
def test_actions_are_written_in_place(minibatches, somebody_is_absent):
    batch = as_tensors(numbered(minibatches), make_spec(fixed=True), 0.9, CPU)
    before, rows = batch.joint.clone(), minibatches * B
    actions = 1 + torch.rand(N, rows, A)
    alive = (torch.arange(N * rows).view(N, rows, 1) % 3 > 0).float() if somebody_is_absent else None
    put_actions(batch.joint, actions, alive)
    flat = batch.joint.view(rows, -1)
    assert torch.equal(flat[:, : N * O], before.view(rows, -1)[:, : N * O])  # observations stay
    for i in range(N):
        there = 1 if alive is None else alive[i]
        assert torch.equal(flat[:, N * O + i * A : N * O + (i + 1) * A], actions[i] * there)


def test_writing_actions_into_a_copy_is_refused():
    """Rows that cannot be seen as one block are refused: what is written must arrive."""
    with pytest.raises(RuntimeError, match="view"):
        put_actions(torch.zeros(B, 2, N * (O + A)).transpose(0, 1), torch.ones(N, 2 * B, A), None)
