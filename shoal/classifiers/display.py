"""What the progress display of a classifier's training shows."""

from typing import TYPE_CHECKING

from shoal.runs.observer import Display

if TYPE_CHECKING:
    from shoal.classifiers.training import ClassifierTraining


class ClassifierDisplay(Display):
    """A bar with accuracy, loss, loss scale, share of saturated accumulations and time left."""

    def title(self, training: "ClassifierTraining") -> str:
        """Model, data and scheme."""
        config = training.config
        return f"{config.model} on {config.data} in {config.scheme}"

    def metrics(self, training: "ClassifierTraining") -> str:
        """Accuracy after the last epoch, and the loss."""
        accuracy = training.measured.get("accuracy")
        reached = "" if accuracy is None else f"accuracy {accuracy:.1%}  "
        return f"{reached}loss {training.recent_loss:.3f}"

    def below(self, training: "ClassifierTraining") -> str:
        """Epoch, loss scale, skipped steps and saturated accumulations."""
        metrics = training.precision.metrics()
        words = [f"epoch {min(training.epoch + 1, training.config.epochs)} of {training.config.epochs}"]
        if (scale := metrics.get("scale")) is not None and scale != 1:
            words.append(f"scale {scale:,g}")
        if skipped := metrics.get("skipped"):
            words.append(f"skipped {skipped:,.0f}")
        if macs := metrics.get("mac/macs"):
            words.append(f"saturated {metrics.get('mac/saturated', 0.0) / macs:.2%}")
        return "  ".join(words)
