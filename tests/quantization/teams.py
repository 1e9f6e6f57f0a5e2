"""A tiny training, and worlds that are only sizes, for teams to be exported."""

from pathlib import Path

import numpy as np

from shoal import TrainConfig
from shoal.envs.base import EnvSpec
from shoal.inference.options import ExportOptions
from shoal.policies.run import RunPolicy
from shoal.quantization.export import Job, write

SMALL = TrainConfig(
    env="cooperative-navigation", agents=3, episodes=40, warmup=200, batch=32, hidden=(16, 16), copies=5,
    evaluate_episodes=0, tensorboard=False, checkpoint_every=20, threads=1,
)  # fmt: skip


def box_spec(agents=2):
    names = tuple(f"agent_{n}" for n in range(agents))
    high = np.float32([[2.0, 3.0, 1.0], [1.0, 5.0, 0.0]][:agents])
    low = np.float32([[-2.0, 1.0, -1.0], [-1.0, -5.0, 0.0]][:agents])
    return EnvSpec("toy", names, (4, 3)[:agents], (3, 2)[:agents], False, action_low=low, action_high=high)


def choice_spec():
    return EnvSpec("toy", ("a", "b", "c"), (4, 3, 5), (3, 2, 4), True)


def states_for(spec, batch=64):
    x = np.random.default_rng(0).standard_normal((batch, spec.agents, spec.observation_size)).astype(np.float32)
    return x * (np.arange(spec.observation_size)[None] < np.array(spec.observation_sizes)[:, None])


def team_outputs(team, states):
    """(B, N, U), as PyTorch computes them."""
    return RunPolicy(team, SMALL, Path("run")).outputs(states).numpy()


def export_policy(
    policy, path, precision, states, outputs, bits=None, single=False, metadata=None, visited=None, **options
):
    """Check a policy's file and write it; uncorrected unless the states that it `visited` are given."""
    options = ExportOptions(precision, bits, single, **options)
    return write([Job(policy, path, states, outputs, visited)], options, metadata or {})[0]
