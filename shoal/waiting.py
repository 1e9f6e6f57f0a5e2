"""What a user reads while waiting: nothing for two seconds, then a line, then one every ten seconds or more.

Threads print the lines, because the work that is waited for may not come back for a long time.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

Advance = Callable[[float, str], None]
"""Reports progress: called with the amount of work done since the last call, and a description of the current work."""
FIRST, EVERY = 2.0, 10.0  # seconds until the first line, and between lines


@contextlib.contextmanager
def said_if_long(say: Callable[[str], None], sentence: str) -> Iterator[None]:
    """Say what is being done if it takes long."""
    timer = threading.Timer(FIRST, say, [sentence])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Progress:
    """How far the work is: called with the amount done since the last call, and perhaps with what is done now."""

    def __init__(self, label: str, total: float | None = None) -> None:
        self.label, self.total, self.done, self.doing = label, total, 0.0, ""

    def __call__(self, amount: float, doing: str = "") -> None:
        """Move it; an amount of zero with nothing else to say only means that the work is still going on."""
        if amount or doing:
            self.done, self.doing = self.done + amount, doing
            self.show()

    def expect(self, total: float) -> None:
        """Say how much work there will be, once that is known; what was called before counts as nothing."""
        self.done, self.total = 0.0, total
        self.show()

    def show(self) -> None:
        """Redraw the bar, if there is one."""

    def __str__(self) -> str:
        return f"{self.label}: {self.doing}" if self.doing else self.label


class BackgroundThread:
    """A thread that runs beside a block of work: `_run` returns soon after `_over` is set."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError


class ProgressLines(BackgroundThread, Progress):
    """Progress where there is no terminal for a bar: now and then a line with the share done and the time left."""

    def __init__(self, say: Callable[[str], None], label: str, total: float | None = None) -> None:
        BackgroundThread.__init__(self)
        Progress.__init__(self, label, total)
        self._say, self._since = say, time.monotonic()

    def _run(self) -> None:
        wait = FIRST
        while not self._over.wait(wait):
            passed = time.monotonic() - self._since
            self._say(self.line(passed))
            wait = max(EVERY, 0.1 * passed)  # the log of a night is not worth a thousand lines

    def line(self, passed: float) -> str:
        """How far the work is after this many seconds."""
        if not self.total or not 0 < self.done < self.total:
            return f"{self}: {passed:,.0f} s so far"
        left = passed * (self.total - self.done) / self.done
        return f"{self}: {self.done / self.total:.0%} done, about {left:,.0f} s left"
