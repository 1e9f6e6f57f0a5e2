"""What a user reads while waiting: nothing for two seconds, then a line, then one every ten seconds.

Threads print the lines, because the work that is waited for may not come back for a long time.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

FIRST, EVERY = 2.0, 10.0
"""Seconds until the first line, and between lines."""


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


class ProgressLines:
    """Lines with the share of the work that is done and the time left, where there is no terminal for a bar."""

    def __init__(self, say: Callable[[str], None], label: str, total: float) -> None:
        self._say, self._label, self._total = say, label, total
        self._done, self._doing, self._since = 0.0, "", time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "ProgressLines":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def advance(self, amount: float, doing: str = "") -> None:
        """So much more of the work is done; `doing` describes what is being done now."""
        self._done += amount
        self._doing = doing

    def _run(self) -> None:
        wait = FIRST
        while not self._over.wait(wait):
            self._say(self.line(time.monotonic() - self._since))
            wait = EVERY

    def line(self, seconds: float) -> str:
        """How far the work is after this many seconds."""
        share = min(1.0, self._done / self._total) if self._total else 0.0
        left = f"about {seconds * (1 / share - 1):,.0f} s left" if share else f"{seconds:,.0f} s so far"
        return ", ".join(part for part in (f"{self._label}: {share:.0%}", self._doing, left) if part)
