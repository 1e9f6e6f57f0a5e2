"""Training Stable-Baselines3 models for low precision: what the callback does, and what their zips say of it."""

import gymnasium
import numpy as np
import pytest
import torch

from shoal.errors import UserError
from shoal.policies.baselines_model import read_zip, to_policy, trained_network
from tests.policies.zips import make, saved


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_callback_trains_quantized_and_marks_the_zip(tmp_path, algorithm):
    from shoal.quantization.callback import QatCallback

    short = {"n_steps": 32, "batch_size": 32, "n_epochs": 1} if algorithm == "ppo" else {"learning_starts": 16}
    theirs = make(algorithm, "CartPole-v1", **short)
    callback = QatCallback(bits=4, delay=0.5)
    switched, kept = [], []
    step = callback._on_step

    def watched():
        step()
        switched.append(bool(callback.qat.on))
        kept.append({len(layer._kept) for layer in callback.qat.layers.values() if layer._kept is not None})
        return True

    callback._on_step = watched
    theirs.learn(96, callback=callback)
    assert switched[:47] == [False] * 47 and all(switched[48:])
    assert kept[0] == {0} and 1 in kept[-1]  # quantized once a rollout
    assert all(layer._kept is None for layer in callback.qat.layers.values())
    path = saved(theirs, tmp_path / "trained.zip")
    ours = read_zip(path)
    assert ours.trained_bits == 4
    states = torch.randn(100, 4)
    trained = trained_network(ours)
    with torch.no_grad():
        expected = theirs.predict(states.numpy(), deterministic=True)[0]
        assert (trained(states).argmax(-1).numpy() == expected).all()
        assert not torch.allclose(trained(states), ours.network(states), atol=1e-3)
        outputs = to_policy(ours, None, None).outputs(states.numpy()[:, None], np.float32)[:, 0]
    np.testing.assert_allclose(outputs, trained(states).detach(), atol=float(np.abs(outputs).max()) / 15)
    again = type(theirs).load(path, env=gymnasium.make("CartPole-v1"), device="cpu")  # plain for its own library
    more = QatCallback(bits=4, delay=0.0)
    begun, start = [], more._on_rollout_start
    more._on_rollout_start = lambda: (begun.append(ranges_of(more.qat)), start())
    again.learn(32, callback=more)
    assert ours.trained_ranges.items() <= begun[0].items()  # goes on with what was seen before
    assert all(float(layer.seen) > 0 for name, layer in more.qat.layers.items() if name.partition(".")[2] in ours.names)
    if algorithm == "dqn":
        assert not any("target" in name for name in callback.qat.layers)


@pytest.mark.parametrize(
    ("algorithm", "env", "played"),
    [
        ("ppo", "CartPole-v1", {"mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net"}),
        ("ddpg", "Pendulum-v1", {"actor.mu.0", "actor.mu.2", "actor.mu.4"}),
        ("dqn", "CartPole-v1", {"q_net.q_net.0", "q_net.q_net.2", "q_net.q_net.4"}),
    ],
)
def test_callback_can_leave_critics_in_full_precision(tmp_path, algorithm, env, played):
    from shoal.quantization.callback import QatCallback

    short = {"n_steps": 16, "batch_size": 16, "n_epochs": 1} if algorithm == "ppo" else {"learning_starts": 8}
    theirs = make(algorithm, env, **short)
    callback = QatCallback(bits=4, delay=0.0, critics=False)
    theirs.learn(32, callback=callback)
    assert {name.removeprefix("policy.") for name in callback.qat.layers} == played
    ours = read_zip(saved(theirs, tmp_path / "actors.zip"))
    assert ours.trained_bits == 4 and set(ours.trained_ranges) == played
    everything = QatCallback(bits=4, delay=0.0)
    make(algorithm, env, **short).learn(16, callback=everything)
    more = {name.removeprefix("policy.") for name in everything.qat.layers} - played
    assert bool(more) == (algorithm != "dqn")  # which has no critic beside what it plays


def test_second_learn_continues_quantized_or_is_refused(tmp_path):
    from stable_baselines3.common.callbacks import CallbackList, StopTrainingOnMaxEpisodes

    from shoal.quantization.callback import QatCallback

    theirs = make("ddpg", "Pendulum-v1", learning_starts=8)
    theirs.learn(32, callback=QatCallback(bits=4, delay=0.5))
    path = saved(theirs, tmp_path / "first.zip")
    again = type(theirs).load(path, env=gymnasium.make("Pendulum-v1"), device="cpu")
    stop = StopTrainingOnMaxEpisodes(1)  # after 200 of 1,000 steps: before the delay is over
    again.learn(1000, callback=CallbackList([QatCallback(bits=4, delay=0.5), stop]))
    assert read_zip(saved(again, tmp_path / "more.zip")).trained_bits == 4
    plain = type(theirs).load(path, env=gymnasium.make("Pendulum-v1"), device="cpu")
    assert read_zip(saved(plain, tmp_path / "same.zip")).trained_bits == 4
    plain.learn(16)
    with pytest.raises(UserError, match=r"trained for 4 bits and then again without QatCallback.*del model\.shoal_qat"):
        read_zip(saved(plain, tmp_path / "stale.zip"))
    del plain.shoal_qat
    assert read_zip(saved(plain, tmp_path / "plain.zip")).trained_bits is None


def ranges_of(qat):
    return {name.removeprefix("policy."): (float(layer.low), float(layer.high)) for name, layer in qat.layers.items()}
