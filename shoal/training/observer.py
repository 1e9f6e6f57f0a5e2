"""The interface of a run's observers, such as the progress display."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shoal.training.config import TrainConfig

if TYPE_CHECKING:
    from shoal.training.loop import Training


class Observer(Protocol):
    """The interface of a run's observers, such as the progress display."""

    def begin(self, config: TrainConfig, folder: Path, episode: int) -> None:
        """The run starts, or resumes, at this episode."""

    def tell(self, sentence: str) -> None:
        """A warning for the user."""

    def note(self, sentence: str) -> None:
        """A message about how the run goes, e.g. why something takes long: not for a quiet run."""

    def advance(self, training: "Training") -> None:
        """Called after every step of all copies and after every update; cheap unless there is something to show."""

    def aside(self, doing: str, total: int) -> Callable[[int], None]:
        """Something else is done before training goes on; the returned function is called with how much was done."""

    def evaluate(self, episodes: int) -> Callable[[int], None]:
        """Evaluation of this many episodes starts; the returned function is called with the number of finished ones."""

    def end(self) -> None:
        """The run has ended."""


class Silent:
    """An observer that shows nothing."""

    def begin(self, config: TrainConfig, folder: Path, episode: int) -> None:
        """Nothing to show."""

    def tell(self, sentence: str) -> None:
        """Nothing to show."""

    def note(self, sentence: str) -> None:
        """Nothing to show."""

    def advance(self, training: "Training") -> None:
        """Nothing to show."""

    def aside(self, doing: str, total: int) -> Callable[[int], None]:
        """Nothing to show."""
        return lambda count: None

    def evaluate(self, episodes: int) -> Callable[[int], None]:
        """Nothing to show."""
        return lambda count: None

    def end(self) -> None:
        """Nothing to close."""
