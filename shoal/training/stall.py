"""Notices an environment that does not return from its step: a run would wait for it without a word."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.runs.interrupt import Interrupt
from shoal.waiting import BackgroundThread

if TYPE_CHECKING:
    from shoal.training.loop import Training

LOOK = 0.5
"""Seconds between looks."""
LONG = 30.0
"""Seconds in one step after which the user is told."""
GIVE_UP = 300.0
"""Seconds in one step after which a run that was asked to stop does so without saving."""


class StallWatch(BackgroundThread):
    """A thread that tells if a step takes long, and ends it where somebody waits for the run to stop."""

    def __init__(self, training: "Training", tell: Callable[[str], None], interrupt: Interrupt) -> None:
        super().__init__()
        self._training, self._tell, self._interrupt = training, tell, interrupt

    def _run(self) -> None:
        samples, since, told = -1, time.monotonic(), False
        while not self._over.wait(LOOK):
            stepping = self._training.clock.phase == "environment"
            if not stepping or self._training.samples != samples:
                samples, since, told = self._training.samples, time.monotonic(), False
                continue
            stuck = time.monotonic() - since
            if stuck > LONG and not told:
                told = True
                self._tell(f"{self._where()} for {LONG:.0f} s; Ctrl-C twice ends the run, --resume continues it.")
            if stuck > GIVE_UP and self._interrupt.signal is not None:
                self._tell(f"{self._where()} for {GIVE_UP:.0f} s: stopping without saving; --resume continues the run.")
                self._interrupt.abandon()
                return

    def _where(self) -> str:
        """What does not return; a worker that is waited for is named."""
        worker = getattr(self._training.env, "awaited", "")
        return f"{self._training.config.env} has not returned from step(){f' in {worker}' if worker else ''}"
