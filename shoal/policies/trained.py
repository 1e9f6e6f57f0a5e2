"""What every trained policy can do: act, and be evaluated in its world. No torch here.

Shape letters: E copies, N agents, O observation, A action.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.envs.base import VectorEnv
from shoal.errors import UserError, whole_number
from shoal.training.play import Evaluation, play, random_act

if TYPE_CHECKING:
    from shoal.policies.widths import WidthTable
    from shoal.quantization.export import Exported

Array = NDArray[np.float32]
PolicyKind = Literal["run", "zip", "onnx"]
MOST_COPIES, MOST_IMAGES = 100, 8
"""Copies of a world that an evaluation plays in parallel; fewer with image observations."""


class TrainedPolicy(ABC):
    """A trained policy and its world.

    Attributes:
        kind: run, zip or onnx.
        name: the path that it was loaded from.
        precision: float32, or the precision of an exported file.
        agents: number of agents, N.
        observation_size: length of the longest observation, O.
        action_size: length of the longest action vector, A.
        samples: supported values of `sample`, the default first: False takes the most likely action, True samples.

    """

    kind: PolicyKind
    name: str
    precision: str = "float32"
    agents: int
    observation_size: int
    action_size: int
    samples: tuple[bool, ...]
    most_copies: int = MOST_COPIES

    @property
    @abstractmethod
    def env(self) -> str:
        """The name of its world."""

    @abstractmethod
    def make_env(self, copies: int = 1, seed: int = 0) -> VectorEnv:
        """Make copies of its world; a `UserError` if the policy does not fit it."""

    @abstractmethod
    def respond(self, observation: Array, sample: bool) -> Array:
        """Actions (E, N, A) in the world's units for its observations (E, N, O)."""

    @abstractmethod
    def reseed(self, seed: int) -> None:
        """Reseed the noise of sampled actions."""

    def act(self, observation: ArrayLike, sample: bool = False) -> Array:
        """The actions for an observation, as `env.step` expects them: choices one-hot, boxes in the world's units.

        Args:
            observation: (O,) for a single agent, (N, O) for a team, or (E, N, O) for many copies.
            sample: sample from the policy's distribution instead of taking the most likely action.

        Returns:
            (A,), (N, A) or (E, N, A).

        """
        observation = np.asarray(observation, np.float32)
        expected = (self.agents, self.observation_size)
        rows = observation[None, None] if observation.ndim == 1 else observation[None]
        rows = observation if observation.ndim == 3 else rows
        if rows.shape[1:] != expected:
            alone = f"({expected[1]},), " if self.agents == 1 else ""
            raise UserError(
                f"The observation has the shape {observation.shape}, but the policy in '{self.name}' takes "
                f"{alone}{expected} or (copies, {expected[0]}, {expected[1]})."
            )
        self._check_sample(sample)
        shape = (*observation.shape[:-1], self.action_size)
        return self.respond(rows, sample).reshape(shape) if len(rows) else np.zeros(shape, np.float32)

    def evaluate(
        self,
        episodes: int = 100,
        seed: int = 1,
        sample: bool | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> Evaluation:
        """Play whole episodes in its world.

        Args:
            episodes: number of episodes.
            seed: random seed of the episodes and of all noise.
            sample: sample actions instead of taking the most likely ones; None: the policy's default.
            advance: called with the number of finished episodes.

        Returns:
            The mean return per agent, and the half-width of its 95 % confidence interval.

        """
        sample = self.samples[0] if sample is None else sample
        self._check_sample(sample)
        self.reseed(seed)
        return self._played(lambda observation: self.respond(observation, sample), episodes, seed, advance)

    def evaluate_random(
        self, episodes: int = 100, seed: int = 1, advance: Callable[[int], None] | None = None
    ) -> Evaluation:
        """Evaluate a team that acts uniformly at random in the same episodes."""
        return self._played(None, episodes, seed, advance)

    def export(self, *args: Any, **options: Any) -> "Exported":
        """Write an ONNX file, checked against this policy: see `TorchPolicy.export`."""
        raise UserError(f"'{self.name}' is already an exported file; export the run or the zip that it was made from.")

    def quantize(self, *args: Any, **options: Any) -> "WidthTable":
        """Returns, share of unchanged actions and bytes at low precision: see `TorchPolicy.quantize`."""
        raise UserError(f"'{self.name}' is an exported file; quantize the run or the zip that it was made from.")

    def _check_sample(self, sample: bool) -> None:
        if sample and True not in self.samples:
            raise UserError(f"The policy in '{self.name}' has no distribution to sample actions from.")

    def _played(
        self,
        act: Callable[[Array], Array] | None,
        episodes: int,
        seed: int,
        advance: Callable[[int], None] | None,
    ) -> Evaluation:
        whole_number("episodes", episodes, 1, 10**7)
        whole_number("seed", seed, 0, 2**62)
        env = self.make_env(min(episodes, self.most_copies), seed)
        try:
            return play(env, act or random_act(env.spec, seed), episodes, advance)
        finally:
            env.close()
