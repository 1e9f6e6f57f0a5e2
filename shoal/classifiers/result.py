"""The result of a classifier's training."""

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ClassifierResult:
    """The result of a classifier's training; accuracies are shares of the test images."""

    run: str
    finished: bool
    scheme: str
    epochs: int
    """Finished epochs."""
    steps: int
    accuracy: float | None
    """After the last finished epoch; with averaged weights where the scheme has them."""
    best_accuracy: float | None
    test_loss: float | None
    train_loss: float | None
    """Mean over the last finished epoch."""
    seconds: float
    figures: dict[str, float]
    """Loss scale, skipped steps and counts of the emulated units, as in the last line of metrics.jsonl."""
    layers: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Counts of what saturated, overflowed and underflowed, by layer and role."""
    coverage: str = ""
    """Which operations the scheme reached, as a table."""
    signal: int | None = None
    """The signal that stopped an unfinished training."""
    diverged: str = ""
    """How the training diverged, in a sentence; empty if it did not."""

    @property
    def counters(self) -> dict[str, int]:
        """How much was done, by the names that a checkpoint has for it."""
        return {"steps": self.steps}

    def share(self, event: str) -> float | None:
        """Events (saturated, overflowed or underflowed) per multiply-accumulate; None where none was emulated."""
        macs = self.figures.get("mac/macs")
        return self.figures.get(f"mac/{event}", 0.0) / macs if macs else None
