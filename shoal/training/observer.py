"""Who watches a run: the progress display, or nobody."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shoal.training.config import TrainConfig

if TYPE_CHECKING:
    from shoal.training.loop import Training


class Observer(Protocol):
    """Who watches a run: the progress display, or nobody."""

    def begin(self, config: TrainConfig, folder: Path, episode: int) -> None:
        """The run starts, or goes on, at this episode."""

    def tell(self, sentence: str) -> None:
        """Something the user should know."""

    def note(self, sentence: str) -> None:
        """Why it takes as long as it does."""

    def advance(self, training: "Training") -> None:
        """Called after every step of all copies and after every update; cheap unless there is something to show."""

    def evaluate(self, episodes: int) -> Callable[[int], None]:
        """Training is over and this many episodes are played; what is returned is told how many more are done."""

    def end(self) -> None:
        """Nothing more will come."""


class Silent:
    """An observer that shows nothing."""

    def begin(self, config: TrainConfig, folder: Path, episode: int) -> None:
        """Nothing to show."""

    def tell(self, sentence: str) -> None:
        """Nobody to tell."""

    def note(self, sentence: str) -> None:
        """Nobody waits."""

    def advance(self, training: "Training") -> None:
        """Nothing to show."""

    def evaluate(self, episodes: int) -> Callable[[int], None]:
        """Nothing to show."""
        return lambda count: None

    def end(self) -> None:
        """Nothing to close."""
