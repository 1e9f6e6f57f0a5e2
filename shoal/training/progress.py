"""What a person sees while a team trains: a live bar on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from shoal.training.config import TrainConfig

if TYPE_CHECKING:
    from shoal.training.loop import Training

LINE_EVERY = 10.0  # seconds between lines where there is no terminal
REFRESH = 0.2  # seconds between looks at the numbers


class TwoLines(Progress):
    """A progress bar with a line of text below it."""

    below = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        """The bar, then the text."""
        yield from super().get_renderables()
        yield Text(self.below, style="dim")


class ProgressDisplay:
    """Bar with return, steps per second, share of time per phase and time left; on standard error."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self._next = self._next_line = 0.0
        self._gone = False  # the terminal went away: the run does not mind
        self._progress: TwoLines | None = None
        self._task = TaskID(0)
        self._started = (time.perf_counter(), 0)

    def begin(self, config: TrainConfig, folder: Path, episode: int) -> None:
        """Say what is trained and show the bar."""
        self._started = (time.perf_counter(), episode)
        self._next_line = time.perf_counter() + LINE_EVERY
        verb = f"Going on at episode {episode:,}" if episode else "Training"
        self.tell(f"{verb}: {config.algorithm} on {config.env}, {config.episodes:,} episodes, into {folder}")
        if self.console.is_terminal and not self._gone:
            self._progress = TwoLines(
                TextColumn("episode {task.completed:,.0f}/{task.total:,.0f}"),
                BarColumn(bar_width=10),
                TimeRemainingColumn(compact=True),
                TextColumn("left  {task.fields[figures]}"),
                console=self.console,
                auto_refresh=False,  # no thread of its own: it is drawn when there is something new
            )
            self._task = self._progress.add_task("train", total=config.episodes, completed=episode, figures="")
            self._write(self._progress.start)

    def tell(self, sentence: str) -> None:
        """Print a sentence above the bar."""
        self._write(lambda: self.console.print(sentence, highlight=False, soft_wrap=True, markup=False))

    def advance(self, training: "Training") -> None:
        """Bring the display up to date, if it is time."""
        now = time.perf_counter()
        if now < self._next or self._gone:
            return
        self._next = now + REFRESH
        if self._progress is not None:
            progress, figures = self._progress, summary(training)
            progress.below = shares(training)
            self._write(lambda: progress.update(self._task, completed=training.episodes, figures=figures, refresh=True))
        elif now >= self._next_line:
            self._next_line = now + LINE_EVERY
            since, first = self._started
            rate = (training.episodes - first) / (now - since)
            left = f", {(training.config.episodes - training.episodes) / rate:,.0f} s left" if rate > 0 else ""
            done = f"episode {training.episodes:,} of {training.config.episodes:,}"
            self.tell(f"{done}: {summary(training)}{left}  ({shares(training)})")

    def end(self) -> None:
        """Take the bar down."""
        if self._progress is not None:
            self._write(self._progress.stop)

    def _write(self, action: Callable[[], object]) -> None:
        try:
            if not self._gone:
                action()
        except OSError:
            self._gone = True
            sys.stderr = open("/dev/null", "w")  # noqa: SIM115  later writers must not fail either


def summary(training: "Training") -> str:
    """Return per agent of the last hundred episodes, and steps per second."""
    recent = [episode.team for episode in list(training.last)[-100:]]
    figures = f"return {sum(recent) / len(recent):,.1f}  " if recent else ""
    return figures + f"{training.samples / training.clock.total():,.0f} steps/s"


def shares(training: "Training") -> str:
    """Where the time goes, in a few words."""
    seconds = training.clock.by_phase()
    total = sum(seconds.values()) or 1.0
    return "  ".join(f"{phase} {spent / total:.0%}" for phase, spent in seconds.items() if spent / total >= 0.005)
