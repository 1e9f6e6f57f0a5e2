"""Ctrl-C, SIGTERM and SIGHUP ask a run to stop; it saves its state and stops at the next safe point."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopped(KeyboardInterrupt):
    """A signal arrived while there was nothing to save."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def stop_at_signals() -> None:
    """Make every signal that asks a program to stop raise `Stopped`, as Ctrl-C raises KeyboardInterrupt."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    if threading.current_thread() is threading.main_thread():  # handlers can only be set there
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, stop)


class Interrupt:
    """Within this context signals are only recorded; a second Ctrl-C takes effect immediately."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise Stopped(number)
        self.signal = self.signal or number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
