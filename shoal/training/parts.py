"""The parts of a run, for any implementation: the interfaces that the loop uses, and their builders."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.base import Arrays
from shoal.algorithms.precision import FULL, Precision
from shoal.envs.base import VectorEnv
from shoal.replay import Sampler
from shoal.runs.checkpoint import RingStore
from shoal.training.collector import Rows
from shoal.training.config import TrainConfig
from shoal.training.returns import Episode

if TYPE_CHECKING:
    from shoal.training.learner import Learner


class Replay(Rows, RingStore, Protocol):
    """Stores every step of every copy; can be saved in a checkpoint."""

    def __len__(self) -> int:
        """Live transitions of all copies."""
        ...


class Collecting(Protocol):
    """Fills the ring, in this process or with the help of others, and counts samples and whole episodes."""

    env: VectorEnv
    episodes: int
    samples: int

    def begin(self) -> None:
        """The run begins, or goes on."""
        ...

    def step(self, phase: Callable[[str], None]) -> list[Episode]:
        """Some more transitions; returns the episodes that ended with them. `phase` is told what begins."""
        ...

    def close(self) -> None:
        """Nothing more will be asked for."""
        ...

    def metrics(self) -> dict[str, float | str | None]:
        """What else to log, by name."""
        ...

    def summary(self) -> str:
        """A sentence for the end of the run; may be empty."""
        ...

    def state(self) -> tuple[dict[str, NDArray], dict[str, Any]]:
        """Arrays and counters; the world and the rows have states of their own."""
        ...

    def load_state(self, arrays: dict[str, NDArray], counters: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        ...


class LearningTeam(Protocol):
    """A team of agents; its state has the stacked format of `shoal.algorithms`."""

    losses: tuple[str, ...]
    """Names of the losses that `update` returns."""
    targets: dict[str, str]
    """Names of target networks, each with that of its online network."""

    def act(self, observation: NDArray[np.float32], explore: bool = True) -> NDArray[np.float32]:
        """Actions (E, N, A) for observations (E, N, O): noisy as in training, or the most likely ones."""
        ...

    def progress(self, samples: int) -> None:
        """The run has collected so many samples: what decays with them goes on."""
        ...

    def to_world(self, actions: NDArray[np.float32]) -> NDArray[np.float32]:
        """Actions in the world's units."""
        ...

    def update(self, ring: Any, sampler: Any, rng: np.random.Generator, phase: Callable[[str], None]) -> Arrays:
        """Draw mini-batches, update all agents once, and return each agent's losses (N,)."""
        ...

    def weights(self) -> Arrays:
        """All networks' parameters by name, targets included."""
        ...

    def load_weights(self, weights: Mapping[str, NDArray]) -> None:
        """Restore what `weights` returned."""
        ...

    def optimizer_state(self) -> Arrays:
        """All optimizers' moments by name."""
        ...

    def load_optimizer_state(self, state: Mapping[str, NDArray]) -> None:
        """Continue from what `optimizer_state` returned."""
        ...

    def random_state(self) -> Arrays:
        """The states of the noise generators."""
        ...

    def load_random_state(self, state: Mapping[str, NDArray]) -> None:
        """Continue from what `random_state` returned."""
        ...


@dataclass
class Parts:
    """The parts that an implementation builds from a configuration; nothing has been played yet."""

    config: TrainConfig
    """The configuration, with the settings that the implementation fixes."""
    env: VectorEnv
    team: LearningTeam
    ring: Replay
    sampler: Sampler
    precision: Precision = FULL
    collector: "Collecting | None" = None
    """None: one that plays in this process."""
    learner: "Learner | None" = None
    """None: one that owes an update for every so many samples."""
    note: str = ""
    """A sentence on how the run learns."""


class Implementation(Protocol):
    """A module that builds the parts of a run."""

    def compile_loops(self, config: TrainConfig) -> None:
        """Compile everything that such a run calls."""
        ...

    def build_parts(self, config: TrainConfig) -> Parts:
        """Build world, team, ring and sampler; invalid settings are detected here."""
        ...
