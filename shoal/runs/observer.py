"""What watches a run: nothing, warnings only, or a display of its progress (`shoal.runs.display`)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


class Observer:
    """An observer that shows nothing; others override what they show."""

    def begin(self, training: Any, folder: Path) -> None:
        """The run starts, or resumes at `training.done`."""

    def tell(self, sentence: str) -> None:
        """A warning for the user."""

    def note(self, sentence: str) -> None:
        """A message about how the run goes, e.g. why something takes long: not for a quiet run."""

    def advance(self, training: Any) -> None:
        """Called after every step and every update; cheap unless there is something to show."""

    def aside(self, doing: str, total: int) -> Callable[[int], None]:
        """Something else is done before training continues; the returned function is called with how much was done."""
        return lambda count: None

    def evaluate(self, episodes: int) -> Callable[[int], None]:
        """Evaluation of this many episodes starts; the returned function is called with the number of finished ones."""
        return lambda count: None

    def end(self) -> None:
        """The run has ended."""


class Quiet(Observer):
    """Shows no progress, but passes warnings on."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def tell(self, sentence: str) -> None:
        """Pass it on."""
        self._say(sentence)
