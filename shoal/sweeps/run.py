"""One run of a sweep, in a child process: it sends its progress and warnings to the sweep.

At signals it saves its state as `shoal train` does, and also when the sweep itself is killed.
"""

import contextlib
import signal
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import UserError
from shoal.runs.interrupt import stop_at_signals
from shoal.system.child import Channel, Message, end_with_parent, serve
from shoal.system.processes import prepare
from shoal.training.config import TrainConfig

if TYPE_CHECKING:
    from shoal.training.loop import Training

SEND_EVERY = 0.5  # seconds


def run(spec: Message, parent: Channel) -> int:
    """Train; the exit code is that of `shoal train`."""
    prepare()
    from shoal.api import train
    from shoal.runs.observer import Observer

    def send(**message: Any) -> None:
        with contextlib.suppress(OSError):  # the sweep was killed: a signal follows, at which the run is saved
            parent.send(message)

    class Sending(Observer):
        """Sends progress and warnings to the sweep."""

        due = 0.0

        def begin(self, training: "Training", folder: Path) -> None:
            send(episode=training.episodes, before=True)

        def tell(self, sentence: str) -> None:
            send(warning=sentence)

        def advance(self, training: "Training") -> None:
            if (now := time.monotonic()) >= self.due:
                self.due = now + SEND_EVERY
                send(episode=training.episodes)

    asked = ("env", "env_options", "threads")  # a resumed run keeps the others; the sweep has compared them
    try:
        result = train(TrainConfig(**spec["settings"]), spec["resume"], Sending(), trust=True, asked=asked)
    except UserError:
        raise
    except Exception:
        traceback.print_exc()  # into the run's log
        raise
    return 128 + result.signal if result.signal is not None else 0


def save_at_signals() -> None:
    """Save and stop at signals, and when the sweep ends, however that is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the sweep, which sends SIGTERM
    stop_at_signals()
    end_with_parent(signal.SIGTERM)


if __name__ == "__main__":
    serve(run, save_at_signals)
