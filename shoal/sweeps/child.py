"""One run of a sweep, in a process of its own: `python -m shoal.sweeps.child SETTINGS`.

It tells how far it is by lines of JSON on standard output, saves its state at signals as `shoal train` does, and also
when the sweep itself is killed.
"""

import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import UserError
from shoal.runs.interrupt import stop_at_signals
from shoal.system.child import STOPS, end_with_parent
from shoal.system.processes import prepare
from shoal.system.streams import answers_only, print_json
from shoal.training.config import TrainConfig

if TYPE_CHECKING:
    from shoal.training.loop import Training

TELL_EVERY = 0.5  # seconds


def main(words: list[str]) -> int:
    """Train as told; the exit code is that of `shoal train`."""
    told = json.loads(words[0])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the sweep, which sends SIGTERM
    stop_at_signals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)  # the sweep has held them until now
    end_with_parent(signal.SIGTERM)  # and so save, however the sweep ends
    if os.getppid() != told["parent"]:
        return 130
    prepare()
    with answers_only():
        try:
            return _train(TrainConfig(**told["settings"]), told["resume"])
        except UserError as error:
            print_json({"error": str(error)})
            return 2
        except KeyboardInterrupt:  # nothing to save yet
            return 130


def _train(config: TrainConfig, resume: bool) -> int:
    from shoal.api import train
    from shoal.training.observer import Silent

    class Telling(Silent):
        """Tells the sweep about progress and warnings."""

        due = 0.0

        def begin(self, config: TrainConfig, folder: Path, episode: int) -> None:
            print_json({"episode": episode, "before": True})

        def tell(self, sentence: str) -> None:
            print_json({"warning": sentence})

        def advance(self, training: "Training") -> None:
            if (now := time.monotonic()) >= self.due:
                self.due = now + TELL_EVERY
                print_json({"episode": training.episodes})

    result = train(_asked(config) if resume else config, resume, Telling(), trust=True)
    return 128 + result.signal if result.signal is not None else 0


def _asked(config: TrainConfig) -> TrainConfig:
    """A resumed run keeps its settings; the sweep has compared them."""
    return TrainConfig(out=config.out, env=config.env, env_options=config.env_options, threads=config.threads)


def told(config: TrainConfig, resume: bool) -> str:
    """What the sweep passes to such a process."""
    settings: dict[str, Any] = dataclasses.asdict(config)
    return json.dumps({"settings": settings, "resume": resume, "parent": os.getpid()})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
