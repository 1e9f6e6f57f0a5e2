"""metrics.jsonl, the log of a run: written line by line, with TensorBoard's events beside it, and read."""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import UserError
from shoal.runs.folder import METRICS, writing
from shoal.system.files import finite

LARGE = 64 * 2**20
"""Bytes of a log from which on lines are left out when it is read: memory and time would be those of gigabytes."""
EVALUATIONS = 10_000  # lines with evaluations that are never left out
BLOCK = 2**20  # bytes that are read at once


class LogMark(NamedTuple):
    """The length and checksum of metrics.jsonl when a checkpoint was written."""

    size: int = 0
    sha256: str = hashlib.sha256().hexdigest()

    def damage(self, folder: Path) -> str | None:
        """A message if the lines up to this mark are missing or changed."""
        path, size, digest = folder / METRICS, 0, hashlib.sha256()
        if path.is_dir():
            return f"'{path}' is a folder, but must be a file."
        try:
            if path.is_file():  # and not, say, a pipe
                with path.open("rb") as file:
                    while block := file.read(min(BLOCK, self.size - size)):
                        digest.update(block)
                        size += len(block)
        except OSError as error:
            return f"'{path}' cannot be read: {error.strerror or error}."
        if size < self.size:
            return f"'{path}' has lost lines that were written before the checkpoint; the remaining ones are kept."
        if digest.hexdigest() != self.sha256:
            return f"'{path}' is damaged: lines before the checkpoint are not as they were written."
        return None


class MetricsLog:
    """metrics.jsonl: one JSON object per line, flushed immediately; TensorBoard gets the same numbers."""

    def __init__(
        self, folder: Path, tensorboard: bool, keep_bytes: int = 0, counter: str = "episode",
        settings: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Lines after `keep_bytes` are dropped: a resumed run will write them again.

        `counter` is the key of a line that TensorBoard has as its x axis, `settings` are the run's hyperparameters.
        """
        self.path, self._counter = folder / METRICS, counter
        with writing(self.path):
            self._file = self.path.open("a+b")
            self._file.seek(0)
            self._sha256, last = hashlib.sha256(), b""
            while (left := keep_bytes - self._file.tell()) and (line := self._file.readline(left)):
                if not line.endswith(b"\n") and len(line) < left:  # lines were lost, and this is a part of one
                    self._file.seek(-len(line), os.SEEK_CUR)
                    break
                self._sha256.update(line)
                last = line
            self._file.truncate()
        self._events = None
        if tensorboard:
            from shoal.runs.events import EventsFile

            with writing(folder):
                self._events = EventsFile(folder, _step_after(last, counter))
                if settings is not None:
                    self._events.add_settings(settings)

    @property
    def paths(self) -> list[Path]:
        """The files that the log writes."""
        return [self.path] if self._events is None else [self.path, self._events.path]

    @property
    def mark(self) -> LogMark:
        """The length written so far, and its checksum."""
        return LogMark(self._file.tell(), self._sha256.hexdigest())

    def add(self, line: Mapping[str, Any]) -> None:
        """Append one line; non-finite numbers become null."""
        clean = finite(line)
        text = (json.dumps(clean) + "\n").encode()
        with writing(self.path):
            self._file.write(text)
            self._file.flush()
        self._sha256.update(text)
        if self._events is not None:
            with writing(self._events.path):
                values = scalars(clean)
                self._events.add(values, step=int(values.pop(self._counter)))

    def sync(self) -> None:
        """Sync all lines to disk, before a checkpoint refers to them."""
        with writing(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close both files; every line was flushed when it was added, so nothing is lost if closing fails."""
        for file in (self._file, self._events):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()


def _step_after(line: bytes, counter: str) -> int:
    """The first step behind the last line; 0 if it is damaged."""
    try:
        return int(json.loads(line)[counter]) + 1 if line else 1
    except (ValueError, KeyError, TypeError):
        return 0


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """All numbers of a line, also those in lists and objects: `return_agents` [1, 2] is return_agents/0 and /1."""
    numbers: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, int | float):
            numbers[key] = value
        elif isinstance(value, Mapping | list):
            parts = value if isinstance(value, Mapping) else {str(k): part for k, part in enumerate(value)}
            numbers |= {f"{key}/{name}": part for name, part in scalars(parts).items()}
    return numbers


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`. A partial line, from a process killed while writing, is skipped.

    Of a log of n times 64 MB, only every n-th line is read, those with evaluations and the last one.
    """
    path = Path(path)
    read: list[dict[str, Any]] = []
    some, evaluations, line, unread = False, 0, b"", False
    try:
        with path.open("rb") as file:
            stride = -(-path.stat().st_size // LARGE) or 1
            for number, line in enumerate(file):
                some = some or bool(line.endswith(b"\n") and line.strip())
                evaluated = stride > 1 and evaluations < EVALUATIONS and b'"evaluate/' in line
                evaluations += evaluated
                unread = number % stride != 0 and not evaluated
                if not unread and isinstance(entry := _parse(line), dict):
                    read.append(entry)
    except OSError as error:
        raise UserError(f"Cannot read the metrics {path}: {error.strerror or error}.") from error
    if unread and isinstance(entry := _parse(line), dict):
        read.append(entry)
    if some and not read:  # after the last line break: a partial line or nothing
        raise UserError(f"{path} is not a metrics.jsonl: none of its lines is a JSON object.")
    return read


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line.decode(errors="replace"))
    except ValueError:
        return None
