"""Ctrl-C, SIGTERM and SIGHUP ask a run to stop; it saves its state and stops at the next safe point."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

PATIENCE = 2.0  # seconds from a signal until a run that is still busy says so
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
BUSY = "Stopping after the current step; press Ctrl-C again to quit immediately without saving."


class Stopped(KeyboardInterrupt):
    """A signal arrived while there was nothing to save."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _handle_with(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Let this handle every signal that asks a program to stop; returns the previous handlers."""
    if threading.current_thread() is not threading.main_thread():  # handlers can only be set there
        return {}
    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # ignored under nohup
    return {number: signal.signal(number, handler) for number in heeded}


def stop_at_signals() -> None:
    """Make every signal that asks a program to stop raise `Stopped`, as Ctrl-C raises KeyboardInterrupt."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    _handle_with(stop)


class Interrupt:
    """Within this context signals are only recorded; a second Ctrl-C takes effect immediately.

    `tell` is called if the context is still not left a while after a signal.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.signal: int | None = None
        self._abandoned = False
        self._before: dict[int, Any] = {}
        self._reminder = threading.Timer(PATIENCE, tell, [BUSY])
        self._reminder.daemon = True

    def __enter__(self) -> "Interrupt":
        self._before = _handle_with(self._note)
        return self

    @property
    def asked(self) -> bool:
        """Whether a signal has come by now."""
        return self.signal is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._abandoned or (self.signal is not None and number == signal.SIGINT):
            raise Stopped(number)
        if self.signal is None:
            self.signal = number
            self._reminder.start()

    def abandon(self) -> None:
        """From another thread, after a signal: do not wait for the next safe point."""
        assert self.signal is not None
        self._abandoned = True
        signal.pthread_kill(threading.main_thread().ident or 0, self.signal)  # Ctrl-C may be ignored, as under nohup

    def __exit__(self, *error: object) -> None:
        self._reminder.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)
