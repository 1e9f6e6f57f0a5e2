"""TensorBoard's event file, written synchronously: no extra thread, and a full disk is an ordinary error."""

import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.record_writer import RecordWriter

TAGS = {
    "return_mean": "return/mean",
    "return_prey": "return/prey",
    "return_ci95": "return/ci95",
    "loss": "loss/train",
    "train_loss": "loss/train_set",
    "test_loss": "loss/test_set",
    "seconds": "time/total",
    "steps_per_second": "time/steps_per_second",
    "env_steps": "time/env_steps",
    "updates": "time/updates",
}
"""Where numbers of metrics.jsonl stand in TensorBoard's tree, if not under their own names."""


def tag(key: str) -> str:
    """The tag of a number in TensorBoard: return/…, loss/…, time/…; what has no place of its own is in train/…"""
    if key.startswith("evaluate/"):  # the same tree once more
        return f"evaluate/{tag(key.removeprefix('evaluate/')).removeprefix('train/')}"
    if "/" in key:
        place = re.sub("^return_ci95/", "return/ci95/", key)
    else:
        place = TAGS.get(key, f"train/{key}")
    return text(re.sub(r"\s+", "_", place))


def text(name: str) -> str:
    """The text without the bytes of a file name that are none in UTF-8, which protocol buffers refuse."""
    return name.encode(errors="surrogatepass").decode(errors="replace")


class EventsFile:
    """One `events.*` file; TensorBoard reads all of them in a folder."""

    def __init__(self, folder: Path, purge_step: int) -> None:
        """Earlier files' events from `purge_step` on are superseded by this file; 0: none."""
        self.path = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._file = self.path.open("ab")
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if purge_step:
            start = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=time.time(), step=purge_step, session_log=start))

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Add scalars by their names in metrics.jsonl, at this step."""
        summary = Summary(value=[Summary.Value(tag=tag(name), simple_value=value) for name, value in values.items()])
        self._write(Event(wall_time=time.time(), step=step, summary=summary))

    def add_settings(self, settings: Mapping[str, Any]) -> None:
        """Add hyperparameters, for TensorBoard's HPARAMS page; lists as text, None left out."""
        flat = {k: " ".join(map(str, v)) if isinstance(v, list) else v for k, v in settings.items()}
        known = {k: text(v) if isinstance(v, str) else v for k, v in flat.items() if isinstance(v, str | int | float)}
        self._write(Event(wall_time=time.time(), summary=hparams_pb(known, trial_id=text(str(self.path.parent)))))

    def _write(self, event: Event) -> None:
        self._records.write(event.SerializeToString())
        self._file.flush()

    def close(self) -> None:
        """Close the file; every event was flushed when it was added."""
        self._file.close()
