"""A run is a folder: config.json, metrics.jsonl (append only), events.* (TensorBoard), checkpoints/, result.json.

One process at a time may write into it: it holds a lock on the folder, which the system releases however it ends.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from shoal.errors import UserError
from shoal.runs import disk
from shoal.runs.checkpoint import Checkpoints
from shoal.system.files import absolute, finite, replace_file
from shoal.training.config import CONFIG, TrainConfig
from shoal.training.early import CHECKPOINTS, METRICS
from shoal.training.early import RESULT as RESULT  # others look for it here
from shoal.training.early import check_free as check_free
from shoal.training.early import file_name as file_name
from shoal.training.world_file import WORLD

BLOCK = 2**20
"""Bytes that are read at once."""


def writing(path: Path) -> contextlib.AbstractContextManager[None]:
    """Turn disk errors inside the block into one message about `path`."""
    return disk.sentence(f"'{path}' cannot be written")


def new_run(config: TrainConfig, start: Path = Path()) -> "RunFolder":
    """Create and lock the folder of a new run of a team; relative paths begin at `start`."""
    return new_folder(config.out, f"{config.env}-{config.algorithm}-seed{config.seed}", start)


def new_folder(out: str | None, name: str, start: Path = Path()) -> "RunFolder":
    """Create and lock the folder of a new run: the one asked for, or one under runs/ that is called `name`."""
    if out is not None:
        folder = RunFolder(start / out, make=True)
        try:
            check_free(folder.path)
        except UserError:
            folder.close()
            raise
        return folder
    name = file_name(name)
    number = 1
    while True:
        path = start / "runs" / f"{name}-{number}"
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            try:
                path.mkdir()  # whoever creates it owns it
            except FileExistsError:
                number += 1
            else:
                return RunFolder(path)


class RunFolder:
    """The files of one run, locked for writing until it is closed."""

    def __init__(self, path: Path, make: bool = False) -> None:
        self.path = path = absolute(path)
        self.checkpoints = Checkpoints(path / CHECKPOINTS)
        with writing(path):
            if make:
                path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UserError(f"The run in '{path}' is being trained by another process.") from None
        self._new = not (path / CONFIG).exists()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def write(self, name: str, text: str) -> None:
        """Write a whole file atomically: under a temporary name first."""
        with writing(self.path / name):
            replace_file(self.path / name, text.encode(), self.path / f".{name}.new")

    def discard(self, log: "MetricsLog") -> None:
        """Undo a new run that failed before its first step: delete its files, and the folder if it is empty then."""
        if not self._new:
            return
        for path in (self.path / CONFIG, self.path / WORLD, *log.paths):
            disk.delete(path)
        with contextlib.suppress(OSError):
            self.path.rmdir()


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
        self,
        folder: Path,
        tensorboard: bool,
        keep_bytes: int = 0,
        counter: str = "episode",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
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
                self._events = EventsFile(folder, after(last, counter))
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
                found = numbers(clean)
                step = int(found.pop(self._counter))
                self._events.add(found, step)

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


def after(line: bytes, counter: str) -> int:
    """The first step behind the last line; 0 if it is damaged."""
    try:
        return int(json.loads(line)[counter]) + 1 if line else 1
    except (ValueError, KeyError, TypeError):
        return 0


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """All numbers of a line, also those in lists and objects: `return_agents` [1, 2] is return_agents/0 and /1."""
    found: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, int | float):
            found[key] = value
        elif isinstance(value, Mapping | list):
            parts = value if isinstance(value, Mapping) else {str(k): part for k, part in enumerate(value)}
            found |= {f"{key}/{name}": part for name, part in numbers(parts).items()}
    return found
