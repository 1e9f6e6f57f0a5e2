"""What the loop asks of the team that learns and of the replay it learns from, whichever implementation they are of."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from shoal.envs.base import Step
from shoal.training.checkpoint import RingStore


class Replay(RingStore, Protocol):
    """Takes every step of every copy; a checkpoint can save it."""

    def __len__(self) -> int:
        """Live transitions of all copies."""
        ...

    def begin(self, observation: ArrayLike) -> None:
        """Take the first observation of the run (E, N, O)."""
        ...

    def add(self, actions: ArrayLike, step: Step) -> None:
        """Add one transition to every copy: the actions (E, N, A) as played and what came of them."""
        ...


class Learner(Protocol):
    """A team of agents; its state is handed out and taken back in the stacked form of `shoal.algorithms`."""

    device: torch.device
    losses: tuple[str, ...]
    """What `update` returns, by name."""
    targets: dict[str, str]
    """Names of target networks, each with that of its online one."""

    def act(self, observation: NDArray[np.float32], explore: bool = True) -> NDArray[np.float32]:
        """Actions (E, N, A) for observations (E, N, O): noisy as in training, or the most likely ones."""
        ...

    def progress(self, samples: int) -> None:
        """The run has collected so many samples: what decays with them goes on."""
        ...

    def to_world(self, actions: NDArray[np.float32]) -> NDArray[np.float32]:
        """Actions in the world's units."""
        ...

    def update(
        self, ring: Any, sampler: Any, rng: np.random.Generator, phase: Callable[[str], None]
    ) -> dict[str, Tensor]:
        """Draw what to learn from, update all agents once, and return each agent's losses (N,)."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """All networks' parameters by name, targets included."""
        ...

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take over what `weights` returned."""
        ...

    def optimizer_state(self) -> dict[str, Tensor]:
        """All optimizers' moments by name."""
        ...

    def load_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `optimizer_state` returned."""
        ...

    def random_state(self) -> dict[str, Tensor]:
        """The states of the noise generators."""
        ...

    def load_random_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `random_state` returned."""
        ...
