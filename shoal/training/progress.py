"""What the progress display of a team's training shows: returns, steps per second, share of time per phase."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shoal.errors import counted
from shoal.runs.observer import Display
from shoal.training.returns import columns, means

if TYPE_CHECKING:
    from shoal.training.loop import Training

MOST_GROUPS = 3  # whose returns fit beside the bar


class ProgressDisplay(Display):
    """A bar with returns, or how far updates catch up; steps per second, share of time per phase and time left."""

    def __init__(self) -> None:
        super().__init__()
        self._learns = False

    def title(self, training: "Training") -> str:
        config = training.config
        return f"{config.algorithm} on {config.env}, {counted(config.episodes, 'episode')}"

    def metrics(self, training: "Training") -> str:
        return catching_up(training) or summary(training)

    def below(self, training: "Training") -> str:
        return timing(training, self.console.width if self.has_bar else math.inf)

    def advance(self, training: Any) -> None:
        if not self._learns and training.updates:
            self._learns = True
            self._line_soon()  # all updates that the warm-up owes come now
        super().advance(training)


def catching_up(training: "Training") -> str:
    """The updates made of those that are due when the warm-up ends: episodes stand still meanwhile. Else nothing."""
    config = training.config
    if not 0 < training.updates < config.warmup // config.samples_per_update or (config.actors and not config.lockstep):
        return ""
    due = training.samples // config.samples_per_update
    return f"catching up after the warm-up: update {training.updates:,} of {due:,}"


def summary(training: "Training") -> str:
    """Returns of the last hundred episodes and of the last evaluation."""
    metrics, recent = [], list(training.last)[-100:]
    if recent:
        groups = means(columns(training.env.spec, recent)["groups"])
        metrics.append("return " + by_group(sum(episode.team for episode in recent) / len(recent), groups))
    if (latest := training.milestones.latest) is not None:
        groups = {name: estimate.mean for name, estimate in latest.groups.items()}
        metrics.append("evaluation " + by_group(latest.mean, groups))
    return "  ".join(metrics)


def by_group(mean: float, groups: Mapping[str, float | None]) -> str:
    """The returns of the groups as text where there are a few, else the team's mean."""
    if 1 < len(groups) <= MOST_GROUPS:
        return ", ".join(f"{name} {value:,.1f}" for name, value in groups.items())
    return f"{mean:,.1f}"


def timing(training: "Training", width: float = math.inf) -> str:
    """Steps/s and the share of time per phase; to fit into `width`, the shortest phases are counted as other."""
    speed = f"{training.samples / training.clock.total():,.0f} steps/s"
    seconds = dict(training.clock.by_phase())
    total = sum(seconds.values()) or 1.0
    while True:
        shares = [f"{phase} {spent / total:.0%}" for phase, spent in seconds.items() if spent / total >= 0.005]
        if len(text := "  ".join([speed, *shares])) <= width or len(seconds) <= 2:
            return text
        shortest = min((phase for phase in seconds if phase != "other"), key=lambda phase: seconds[phase])
        seconds["other"] = seconds.get("other", 0.0) + seconds.pop(shortest)
