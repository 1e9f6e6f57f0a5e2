"""What watches a classifier's training: nothing, warnings only, or a progress bar."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.classifiers.config import ClassifierConfig
from shoal.system.files import shown
from shoal.training.progress import Display

if TYPE_CHECKING:
    from shoal.classifiers.training import ClassifierTraining


class Observer:
    """An observer that shows nothing; others override what they show."""

    def begin(self, config: ClassifierConfig, folder: Path, step: int, steps: int) -> None:
        """The training starts, or resumes, at this step of all steps."""

    def tell(self, sentence: str) -> None:
        """A warning for the user."""

    def note(self, sentence: str) -> None:
        """A message about how the training goes: not for a quiet one."""

    def advance(self, training: "ClassifierTraining") -> None:
        """Called after every step; cheap unless there is something to show."""

    def end(self) -> None:
        """The training has ended."""


class Quiet(Observer):
    """Prints warnings only."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def tell(self, sentence: str) -> None:
        """Print it."""
        self._say(sentence)


class ClassifierDisplay(Display, Observer):
    """A bar with accuracy, loss, loss scale, share of saturated accumulations and time left."""

    def __init__(self) -> None:
        super().__init__()
        self._training: ClassifierTraining | None = None

    def begin(self, config: ClassifierConfig, folder: Path, step: int, steps: int) -> None:
        """Print what is trained and show the bar."""
        verb = f"Resuming at step {step:,}" if step else "Training"
        self.tell(f"{verb}: {config.model} on {config.data} in {config.scheme}, into {shown(folder)}")
        self._start("step", steps, step)

    def advance(self, training: "ClassifierTraining") -> None:
        """Refresh the display, if it is time."""
        self._training = training
        if self._due():
            self._draw(training)

    def _draw(self, training: "ClassifierTraining") -> None:
        self._show("step", training.steps, training.step, summary(training), emulated(training))

    def end(self) -> None:
        """Draw the final state and remove the bar."""
        if self._progress is not None and self._training is not None:
            self._draw(self._training)
        self._stop()
        self._training = None


def summary(training: "ClassifierTraining") -> str:
    """Accuracy after the last epoch, and the loss."""
    reached = "" if training.accuracy is None else f"accuracy {training.accuracy:.1%}  "
    return f"{reached}loss {training.recent_loss:.3f}"


def emulated(training: "ClassifierTraining") -> str:
    """Loss scale, skipped steps and saturated accumulations, as text."""
    metrics = training.precision.metrics()
    words = [f"epoch {min(training.epoch + 1, training.config.epochs)} of {training.config.epochs}"]
    if (scale := metrics.get("scale")) is not None and scale != 1:
        words.append(f"scale {scale:,g}")
    if skipped := metrics.get("skipped"):
        words.append(f"skipped {skipped:,.0f}")
    if macs := metrics.get("mac/macs"):
        words.append(f"saturated {metrics.get('mac/saturated', 0.0) / macs:.2%}")
    return "  ".join(words)
