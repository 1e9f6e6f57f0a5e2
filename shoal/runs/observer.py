"""What watches a run: nothing, warnings only, or a display of its progress, always on standard error."""

import os
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal import waiting
from shoal.system.files import shown
from shoal.system.streams import worded

if TYPE_CHECKING:
    from rich.console import Console

    from shoal.runs.bar import TwoLines

REFRESH = 0.2  # seconds between refreshes


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
        self._say(sentence)


class Display(Observer):
    """A bar with a line of text below it and sentences above it on a terminal, an occasional line elsewhere.

    Subclasses say what is trained and what is shown. Rich is imported when there is something to show: a run that is
    refused does without.
    """

    def __init__(self) -> None:
        self._next = self._next_line = 0.0
        self._gone = False  # the terminal is gone; the run continues
        self._bar: TwoLines | None = None
        self._training: Any = None
        self._started = (time.perf_counter(), 0)

    def title(self, training: Any) -> str:
        """What is trained."""
        raise NotImplementedError

    def metrics(self, training: Any) -> str:
        """How well, in phrases with two spaces between them."""
        raise NotImplementedError

    def below(self, training: Any) -> str:
        """What else is shown, in a line of its own."""
        raise NotImplementedError

    @cached_property
    def console(self) -> "Console":
        """Where it is shown."""
        from rich.console import Console

        return Console(stderr=True)

    @cached_property
    def has_bar(self) -> bool:
        """Whether the console can redraw a bar."""
        return self.console.is_terminal and not self.console.is_dumb_terminal

    def begin(self, training: Any, folder: Path) -> None:
        verb = f"Resuming at {training.counter} {training.done:,}" if training.done else "Training"
        self.tell(f"{verb}: {self.title(training)}, into {shown(folder)}")
        self._start(training.counter, training.total, training.done)

    def tell(self, sentence: str) -> None:
        self._write(lambda: self.console.print(worded(sentence), highlight=False, soft_wrap=True, markup=False))

    def note(self, sentence: str) -> None:
        self.tell(sentence)

    def advance(self, training: Any) -> None:
        self._training = training
        if self._due():
            self._draw()

    def aside(self, doing: str, total: int) -> Callable[[int], None]:
        self._line_soon()
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if self._training is not None and self._due():
                self._draw(f"{doing} {min(done, total):,} of {total:,}")

        return advance

    def evaluate(self, episodes: int) -> Callable[[int], None]:
        """Keep the training bar as it is, and show another for the evaluation."""
        self.end()
        label, done = "evaluating trained and random teams: episode", 0
        self._start(label, episodes, 0, transient=True)

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if self._due():
                self._show(label, episodes, done, "", "")

        return advance

    def end(self) -> None:
        if self._bar is not None:
            if self._training is not None:
                self._draw()
            self._write(self._bar.stop)
        self._bar = self._training = None

    def _start(self, unit: str, total: int, done: int, transient: bool = False) -> None:
        """Show the bar, which counts steps of this kind."""
        self._started = (time.perf_counter(), done)
        self._next_line = time.perf_counter() + waiting.FIRST
        if self.has_bar and not self._gone:
            from shoal.runs.bar import TwoLines

            self._bar = TwoLines(self.console, unit, total, done, transient)
            self._write(self._bar.start)

    def _due(self) -> bool:
        """Whether it is time to show something new."""
        now = time.perf_counter()
        if now < self._next or self._gone:
            return False
        self._next = now + REFRESH
        if self._bar is None:
            if now < self._next_line:
                return False
            self._next_line = now + waiting.EVERY
        return True

    def _line_soon(self) -> None:
        """Something begins that may take long: without a terminal, have a line if it does."""
        self._next_line = min(self._next_line, time.perf_counter() + waiting.FIRST)

    def _draw(self, doing: str = "") -> None:
        training = self._training
        metrics = doing or self.metrics(training)
        self._show(training.counter, training.total, training.done, metrics, self.below(training))

    def _show(self, unit: str, total: int, done: int, metrics: str, below: str) -> None:
        """Draw the bar, or print a line with the same contents."""
        if (bar := self._bar) is not None:
            self._write(lambda: bar.draw(done, metrics, below))
            return
        since, first = self._started
        rate = (done - first) / (time.perf_counter() - since)
        left = f"{(total - done) / rate:,.0f} s left" if rate > 0 else ""
        known = ", ".join(part for part in (metrics, left) if part)
        self.tell(f"{unit} {done:,} of {total:,}: {known}" + (f"  ({below})" if below else ""))

    def _write(self, action: Callable[[], object]) -> None:
        try:
            if not self._gone:
                action()
        except OSError:
            self._gone = True
            gone, sys.stderr = sys.stderr, open(os.devnull, "w")  # noqa: SIM115  later writers must not fail either
            if sys.stdout is gone:  # nor others' output, which goes to the same place
                sys.stdout = sys.stderr
