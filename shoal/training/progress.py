"""What a person sees while a team trains: a live bar on a terminal, a line now and then elsewhere."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from shoal.errors import counted, printable
from shoal.training.config import TrainConfig
from shoal.training.loop import Training
from shoal.training.observer import Silent

LINE_EVERY = 10.0  # seconds between lines where there is no terminal
REFRESH = 0.2  # seconds between looks at the numbers


class Quiet(Silent):
    """An observer that shows no progress, but says what a person should know."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def tell(self, sentence: str) -> None:
        """Say it."""
        self._say(sentence)


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
        self._bar = self.console.is_terminal and not self.console.is_dumb_terminal
        self._progress: TwoLines | None = None
        self._task = TaskID(0)
        self._playing: Progress | None = None
        self._training: Training | None = None
        self._started = (time.perf_counter(), 0)

    def begin(self, config: TrainConfig, folder: Path, episode: int) -> None:
        """Say what is trained and show the bar."""
        self._started = (time.perf_counter(), episode)
        self._next_line = time.perf_counter() + LINE_EVERY
        verb = f"Going on at episode {episode:,}" if episode else "Training"
        self.tell(f"{verb}: {config.algorithm} on {config.env}, {counted(config.episodes, 'episode')}, into {folder}")
        if self._bar and not self._gone:
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
        self._write(lambda: self.console.print(printable(sentence), highlight=False, soft_wrap=True, markup=False))

    def note(self, sentence: str) -> None:
        """Print it likewise."""
        self.tell(sentence)

    def advance(self, training: "Training") -> None:
        """Bring the display up to date, if it is time."""
        self._training = training
        now = time.perf_counter()
        if now < self._next or self._gone:
            return
        self._next = now + REFRESH
        if self._progress is not None:
            self._draw(self._progress, training)
        elif now >= self._next_line:
            self._next_line = now + LINE_EVERY
            since, first = self._started
            rate = (training.episodes - first) / (now - since)
            left = f", {(training.config.episodes - training.episodes) / rate:,.0f} s left" if rate > 0 else ""
            done = f"episode {training.episodes:,} of {training.config.episodes:,}"
            self.tell(f"{done}: {summary(training)}{left}  ({shares(training)})")

    def _draw(self, progress: TwoLines, training: "Training") -> None:
        progress.below = shares(training)
        figures = summary(training)
        self._write(lambda: progress.update(self._task, completed=training.episodes, figures=figures, refresh=True))

    def evaluate(self, episodes: int) -> Callable[[int], None]:
        """Leave the bar as training left it, and show another for the evaluation."""
        self.end()
        if not self._bar or self._gone:
            return lambda count: None
        playing = self._playing = Progress(console=self.console, transient=True, auto_refresh=False)
        task = playing.add_task("playing trained and random teams", total=episodes)
        self._write(playing.start)

        def advance(count: int) -> None:
            due = time.perf_counter() >= self._next
            self._next += REFRESH if due else 0.0
            self._write(lambda: playing.update(task, advance=count, refresh=due))

        return advance

    def end(self) -> None:
        """Draw the last figures and take the bars down."""
        if self._progress is not None:
            if self._training is not None:
                self._draw(self._progress, self._training)
            self._write(self._progress.stop)
        if self._playing is not None:
            self._write(self._playing.stop)
        self._progress = self._playing = None

    def _write(self, action: Callable[[], object]) -> None:
        try:
            if not self._gone:
                action()
        except OSError:
            self._gone = True
            gone, sys.stderr = sys.stderr, open(os.devnull, "w")  # noqa: SIM115  later writers must not fail either
            if sys.stdout is gone:  # nor others' prints, which go to the same place
                sys.stdout = sys.stderr


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
