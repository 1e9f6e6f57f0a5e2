"""A run is a folder: config.json, metrics.jsonl (append only), events.* (TensorBoard), checkpoints/, result.json.

One process at a time may write into it: it holds a lock on the folder, which the system lets go of however it ends.
"""

import contextlib
import fcntl
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from shoal.errors import UserError
from shoal.training import disk
from shoal.training.checkpoint import Checkpoints
from shoal.training.config import TrainConfig

OURS = ("config.json", "result.json", "metrics.jsonl", "checkpoints")


def writing(path: Path) -> contextlib.AbstractContextManager[None]:
    """What the disk refuses inside the block becomes one sentence about `path`."""
    return disk.sentence(f"'{path}' cannot be written")


def check_free(folder: Path) -> None:
    """Refuse a folder in which a new run would overwrite something."""
    with writing(folder):  # a name may be too long, a folder above closed to us
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--out '{folder}' is a file, but must be a folder.")
        if any((folder / name).exists() for name in OURS):
            raise UserError(f"'{folder}' already holds a run: continue it with --resume, or choose another --out.")


def new_run(config: TrainConfig) -> "RunFolder":
    """The folder of a new run, made and locked: the one asked for, or a fresh name under runs/."""
    if config.out is not None:
        folder = RunFolder(Path(config.out), make=True)
        try:
            check_free(folder.path)
        except UserError:
            folder.close()
            raise
        return folder
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{config.env}-{config.algorithm}-seed{config.seed}")
    number = 1
    while True:
        path = Path("runs") / f"{name}-{number}"
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            try:
                path.mkdir()  # whoever makes it has it
            except FileExistsError:
                number += 1
            else:
                return RunFolder(path)


class RunFolder:
    """The files of one run, locked for writing until it is closed."""

    def __init__(self, path: Path, make: bool = False) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")
        with writing(path):
            if make:
                path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UserError(f"The run in '{path}' is being trained by another process.") from None
        self._new = not (path / "config.json").exists()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let others write."""
        os.close(self._lock)

    @property
    def result(self) -> dict[str, Any] | None:
        """What result.json holds; None while the run is not finished."""
        path = self.path / "result.json"
        try:
            held = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"'{path}' cannot be read: {error}.") from None
        if not isinstance(held, dict):
            raise UserError(f"'{path}' does not hold a JSON object.")
        return held

    def write(self, name: str, text: str) -> None:
        """Write a whole file under a temporary name and put it in its place."""
        with writing(self.path / name):
            temporary = self.path / f".{name}.new"
            temporary.unlink(missing_ok=True)  # of a writer that was killed
            try:
                disk.write(temporary, text.encode())
                temporary.replace(self.path / name)
            finally:
                disk.delete(temporary)

    def discard(self, log: "MetricsLog") -> None:
        """Take back a new run that failed before its first step: what it wrote, and the folder if it is empty then."""
        if not self._new:
            return
        for path in (self.path / "config.json", *log.paths):
            disk.delete(path)
        with contextlib.suppress(OSError):
            self.path.rmdir()


class MetricsLog:
    """metrics.jsonl: one JSON object a line, flushed at once; TensorBoard gets the same numbers."""

    def __init__(self, folder: Path, tensorboard: bool, keep_bytes: int = 0, purge_step: int = 0) -> None:
        """Lines behind `keep_bytes` are of a time that a resumed run lives through again: they are dropped."""
        self.path = folder / "metrics.jsonl"
        self.lost = False  # lines that should be there are not
        with writing(self.path):
            self._file = self.path.open("a+b")
            self.lost = self._file.seek(0, os.SEEK_END) < keep_bytes
            if self.lost:
                self._file.seek(0)
                keep_bytes = self._file.read().rfind(b"\n") + 1
            self._file.truncate(keep_bytes)
            self._file.seek(keep_bytes)
        self._events = None
        if tensorboard:
            from shoal.training.events import EventsFile

            with writing(folder):
                self._events = EventsFile(folder, purge_step)

    @property
    def paths(self) -> list[Path]:
        """The files that it writes."""
        return [self.path] if self._events is None else [self.path, self._events.path]

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    def add(self, line: Mapping[str, Any]) -> None:
        """Append one line; numbers that are not finite become null."""
        clean = finite(line)
        with writing(self.path):
            self._file.write((json.dumps(clean) + "\n").encode())
            self._file.flush()
        if self._events is not None:
            with writing(self._events.path):
                numbers = {key: value for key, value in clean.items() if isinstance(value, int | float)}
                del numbers["episode"]
                tags = {key if "/" in key else f"train/{key}": value for key, value in numbers.items()}
                self._events.add(tags, line["episode"])

    def sync(self) -> None:
        """Wait until all lines are on the disk, before a checkpoint counts on them."""
        with writing(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close both files; every line was flushed when it was added, so nothing is lost if that fails."""
        for file in (self._file, self._events):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with None where a number is not finite, however deep: JSON has no other word for it."""
    return {key: _finite(value) for key, value in values.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return finite(value)
    if isinstance(value, list | tuple):
        return [_finite(element) for element in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
