"""What every team of the engine has, in torch or in native code: a world, settings, actions, and mini-batches."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.config import LearnConfig
from shoal.envs.base import EnvSpec
from shoal.errors import UserError, counted
from shoal.networks.layout import Kind
from shoal.replay import Batch, Returns, Ring, Sampler

Phase = Callable[[str], None]
"""Told the name of the phase that begins now."""
Arrays = dict[str, NDArray]
"""A part of a team's state by name; stacked, see `networks/layout.py`."""


class BaseTeam:
    """All agents of a world, with the settings that they learn by."""

    losses: tuple[str, ...]
    """What `update` returns, by name."""
    targets: dict[str, str]
    """Names of target networks, each with that of its online one."""

    def __init__(self, spec: EnvSpec, config: LearnConfig) -> None:
        self.spec, self.config = spec, config
        self.targets = {}
        self.samples = 0  # that the run has collected so far; see `progress`

    @property
    def kind(self) -> Kind:
        """What the policies' outputs are."""
        raise NotImplementedError

    @property
    def hard(self) -> bool:
        """Whether samples of choices are one-hot, with the straight-through gradient."""
        gumbel = self.config.gumbel
        return gumbel == "straight-through" or (gumbel == "auto" and not self.spec.soft_actions)

    @property
    def exploration(self) -> float:
        """How much noise rollouts have: of boxes its standard deviation, in half-widths of the box."""
        return self.config.exploration_noise

    def progress(self, samples: int) -> None:
        """The run has collected so many samples: what decays with them goes on."""
        self.samples = samples

    def to_world(self, actions: NDArray[np.float32]) -> NDArray[np.float32]:
        """Actions in the world's units."""
        return self.spec.to_world(actions)

    def draw(self, ring: Ring, sampler: Sampler, rng: np.random.Generator) -> Batch | Returns:
        """The transitions that an update learns from."""
        config = self.config
        minibatches = 1 if config.minibatch == "shared" else self.spec.agents
        return ring.sample(sampler, config.batch, rng, minibatches, config.n_step, config.discount)

    def rollout_arrays(self) -> list[NDArray]:
        """The policies that play: weight (N, in, out), bias (N, 1, out), weight, bias, …"""
        raise NotImplementedError


def check_choices(spec: EnvSpec, algorithm: str) -> None:
    """Refuse boxes to DQN."""
    if algorithm == "dqn" and not spec.discrete:
        raise UserError(
            f"--algorithm dqn picks one of several choices, but the actions of {spec.name} are boxes; "
            "choose d4pg, maddpg or masac."
        )


def check_weights(own: Mapping[str, NDArray], given: Mapping[str, NDArray]) -> None:
    """Refuse weights of other names or shapes than a team's own."""
    if missing := own.keys() - given.keys():
        raise UserError(f"The weights lack '{min(missing)}': they are of another algorithm or number of layers.")
    for name, array in own.items():
        if array.shape != given[name].shape:
            raise UserError(
                f"The weights '{name}' have shape {given[name].shape}, but this team needs {array.shape}: "
                "the number of agents or the sizes of the world differ."
            )


def target_entropies(spec: EnvSpec, config: LearnConfig) -> list[float]:
    """The entropy that each agent's learned temperature aims at: half of the largest, or minus the size of a box."""
    return [_target_entropy(size, spec.discrete, config.target_entropy) for size in spec.action_sizes]


def _target_entropy(size: int, discrete: bool, asked: float | None) -> float:
    if asked is None:
        return 0.5 * math.log(size) if discrete else -float(size)
    largest = math.log(size) if discrete else math.inf
    if asked >= largest:
        raise UserError(
            f"--target-entropy is {asked}, but the largest possible is {largest:.3f}, "
            f"of {counted(size, 'choice')}: the temperature would grow without end."
        )
    return asked
