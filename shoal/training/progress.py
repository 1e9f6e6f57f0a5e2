"""The progress display of a training: a live bar on a terminal, an occasional line elsewhere."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from shoal import waiting
from shoal.errors import counted
from shoal.system.files import shown
from shoal.system.streams import worded
from shoal.training.config import TrainConfig
from shoal.training.loop import Training
from shoal.training.observer import Silent
from shoal.training.returns import Columns, means
from shoal.waiting import ProgressLines

REFRESH = 0.2  # seconds between refreshes
MOST_GROUPS = 3  # whose returns fit beside the bar


class Quiet(Silent):
    """An observer that shows no progress, but prints warnings."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def tell(self, sentence: str) -> None:
        """Print it."""
        self._say(sentence)


class Phrases:
    """Text whose phrases, with two spaces between them, stay whole when it is wrapped."""

    def __init__(self, text: str, style: str = "") -> None:
        self.text, self.style = text, style

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Wide enough for the longest phrase, or for all."""
        longest = max(cell_len(phrase) for phrase in self.text.split("  "))
        return Measurement(longest, cell_len(self.text)).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As many phrases in a line as fit."""
        first, *rest = self.text.split("  ")
        lines = [first]
        for phrase in rest:
            if cell_len(longer := f"{lines[-1]}  {phrase}") <= options.max_width:
                lines[-1] = longer
            else:
                lines.append(phrase)
        yield Text("\n".join(lines), style=self.style)


class FiguresColumn(ProgressColumn):
    """The figures beside the bar."""

    def render(self, task: Task) -> RenderableType:
        """In several lines if they must be."""
        return Phrases(task.fields["figures"])


class TwoLines(Progress):
    """A progress bar with a line of text below it."""

    below = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        """The bar, then the text."""
        yield from super().get_renderables()
        yield Phrases(self.below, style="dim")


class Display:
    """A bar with a line of text below it on a terminal, an occasional line elsewhere; always on standard error."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self._next = self._next_line = 0.0
        self._gone = False  # the terminal is gone; the run continues
        self._bar = self.console.is_terminal and not self.console.is_dumb_terminal
        self._progress: TwoLines | None = None
        self._task = TaskID(0)
        self._started = (time.perf_counter(), 0)

    def tell(self, sentence: str) -> None:
        """Print a sentence above the bar."""
        self._write(lambda: self.console.print(worded(sentence), highlight=False, soft_wrap=True, markup=False))

    def note(self, sentence: str) -> None:
        """Print it above the bar."""
        self.tell(sentence)

    def _start(self, counted: str, total: int, done: int) -> None:
        """Show the bar, which counts things of this name."""
        self._started = (time.perf_counter(), done)
        self._next_line = time.perf_counter() + waiting.FIRST
        if self._bar and not self._gone:
            self._progress = TwoLines(
                TextColumn(f"{counted} {{task.completed:,.0f}}/{{task.total:,.0f}}"),
                BarColumn(bar_width=10),
                TimeRemainingColumn(compact=True),
                TextColumn("left"),
                FiguresColumn(),
                console=self.console,
                auto_refresh=False,  # no thread: drawn when there is something new
            )
            self._task = self._progress.add_task(counted, total=total, completed=done, figures="")
            self._write(self._progress.start)

    def _due(self) -> bool:
        """Whether it is time to show something new."""
        now = time.perf_counter()
        if now < self._next or self._gone:
            return False
        self._next = now + REFRESH
        if self._progress is None:
            if now < self._next_line:
                return False
            self._next_line = now + waiting.EVERY
        return True

    def _line_soon(self) -> None:
        """Something begins that may take long: without a terminal, have a line if it does."""
        self._next_line = min(self._next_line, time.perf_counter() + waiting.FIRST)

    def _show(self, counted: str, total: int, done: int, figures: str, below: str) -> None:
        """Draw the bar, or print a line with the same contents."""
        progress = self._progress
        if progress is not None:
            progress.below = below
            self._write(lambda: progress.update(self._task, completed=done, figures=figures, refresh=True))
            return
        since, first = self._started
        rate = (done - first) / (time.perf_counter() - since)
        left = f"{(total - done) / rate:,.0f} s left" if rate > 0 else ""
        known = ", ".join(part for part in (figures, left) if part)
        self.tell(f"{counted} {done:,} of {total:,}: {known}" + (f"  ({below})" if below else ""))

    def _stop(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._write(self._progress.stop)
        self._progress = None

    def _write(self, action: Callable[[], object]) -> None:
        try:
            if not self._gone:
                action()
        except OSError:
            self._gone = True
            gone, sys.stderr = sys.stderr, open(os.devnull, "w")  # noqa: SIM115  later writers must not fail either
            if sys.stdout is gone:  # nor others' output, which goes to the same place
                sys.stdout = sys.stderr


class ProgressDisplay(Display):
    """A bar with return, steps per second, share of time per phase and time left."""

    def __init__(self) -> None:
        super().__init__()
        self._playing: Progress | None = None
        self._lines: ProgressLines | None = None
        self._training: Training | None = None
        self._learns = False

    def begin(self, config: TrainConfig, folder: Path, episode: int) -> None:
        """Print what is trained and show the bar."""
        verb = f"Resuming at episode {episode:,}" if episode else "Training"
        self.tell(
            f"{verb}: {config.algorithm} on {config.env}, {counted(config.episodes, 'episode')}, into {shown(folder)}"
        )
        self._start("episode", config.episodes, episode)

    def advance(self, training: "Training") -> None:
        """Refresh the display, if it is time."""
        self._training = training
        if not self._learns and training.updates:
            self._learns = True
            self._line_soon()  # all updates that the warm-up owes come now
        if self._due():
            self._draw(training)

    def _draw(self, training: "Training", doing: str = "") -> None:
        below = timing(training, self.console.width if self._bar else math.inf)
        figures = doing or catching_up(training) or summary(training)
        self._show("episode", training.config.episodes, training.episodes, figures, below)

    def aside(self, doing: str, total: int) -> Callable[[int], None]:
        """Show it beside the bar, instead of the returns."""
        self._line_soon()
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if self._training is not None and self._due():
                self._draw(self._training, f"{doing} {min(done, total):,} of {total:,}")

        return advance

    def evaluate(self, episodes: int) -> Callable[[int], None]:
        """Keep the training bar as it is, and show another for the evaluation."""
        self.end()
        label = "evaluating trained and random teams"
        if not self._bar or self._gone:
            self._lines = ProgressLines(self.tell, label, episodes).__enter__()
            return self._lines
        playing = self._playing = Progress(console=self.console, transient=True, auto_refresh=False)
        task = playing.add_task(label, total=episodes)
        self._write(playing.start)

        def advance(count: int) -> None:
            due = time.perf_counter() >= self._next
            self._next += REFRESH if due else 0.0
            self._write(lambda: playing.update(task, advance=count, refresh=due))

        return advance

    def end(self) -> None:
        """Draw the final state and remove the bars."""
        if self._progress is not None and self._training is not None:
            self._draw(self._training)
        self._stop()
        if self._playing is not None:
            self._write(self._playing.stop)
        if self._lines is not None:
            self._lines.__exit__()
        self._playing = self._lines = None


def catching_up(training: "Training") -> str:
    """The updates made of those that are due when the warm-up ends: episodes stand still meanwhile. Else nothing."""
    config = training.config
    if not 0 < training.updates < config.warmup // config.samples_per_update or (config.actors and not config.lockstep):
        return ""
    due = training.samples // config.samples_per_update
    return f"catching up after the warm-up: update {training.updates:,} of {due:,}"


def summary(training: "Training") -> str:
    """Returns of the last hundred episodes and of the last evaluation."""
    figures, recent = [], list(training.last)[-100:]
    if recent:
        groups = means(Columns.of(training.env.spec, recent).groups)
        figures.append("return " + by_group(sum(episode.team for episode in recent) / len(recent), groups))
    if (latest := training.milestones.latest) is not None:
        groups = {name: estimate.mean for name, estimate in latest.groups.items()}
        figures.append("evaluation " + by_group(latest.mean, groups))
    return "  ".join(figures)


def by_group(mean: float, groups: Mapping[str, float | None]) -> str:
    """The returns of the groups as text where there are a few, else the team's mean."""
    if 1 < len(groups) <= MOST_GROUPS:
        return ", ".join(f"{name} {value:,.1f}" for name, value in groups.items())
    return f"{mean:,.1f}"


def timing(training: "Training", width: float = math.inf) -> str:
    """Steps/s and the share of time per phase; to fit into `width`, the shortest phases are counted as other."""
    speed = f"{training.samples / training.clock.total():,.0f} steps/s"
    seconds = dict(training.clock.by_phase())
    while len(text := f"{speed}  {shares(seconds)}") > width and len(seconds) > 2:
        shortest = min((phase for phase in seconds if phase != "other"), key=lambda phase: seconds[phase])
        seconds["other"] = seconds.get("other", 0.0) + seconds.pop(shortest)
    return text


def shares(seconds: Mapping[str, float]) -> str:
    """The share of time per phase, as text."""
    total = sum(seconds.values()) or 1.0
    return "  ".join(f"{phase} {spent / total:.0%}" for phase, spent in seconds.items() if spent / total >= 0.005)
