"""TensorBoard's event file, written synchronously: no extra thread, and a full disk is an ordinary error."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.record_writer import RecordWriter


class EventsFile:
    """One `events.*` file; TensorBoard reads all of them in a folder."""

    def __init__(self, folder: Path, purge_step: int) -> None:
        """Earlier files' events from `purge_step` on are superseded by this file; 0: none."""
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        self._file = self.path.open("ab")
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if purge_step:
            start = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=time.time(), step=purge_step, session_log=start))

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Add scalars by tag, at this step."""
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self._write(Event(wall_time=time.time(), step=step, summary=summary))

    def add_settings(self, settings: Mapping[str, Any]) -> None:
        """Add hyperparameters, for TensorBoard's HPARAMS page; lists as text, None left out."""
        texts = {
            name: " ".join(map(str, value)) if isinstance(value, list) else value for name, value in settings.items()
        }
        known = {name: value for name, value in texts.items() if isinstance(value, str | int | float)}
        self._write(Event(wall_time=time.time(), summary=hparams_pb(known, trial_id=str(self.path.parent))))

    def _write(self, event: Event) -> None:
        self._records.write(event.SerializeToString())
        self._file.flush()

    def close(self) -> None:
        """Close the file; every event was flushed when it was added."""
        self._file.close()
