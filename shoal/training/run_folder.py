"""A run is a folder: config.json, metrics.jsonl (append only), events.* (TensorBoard), checkpoints/, result.json."""

import contextlib
import fcntl
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.training import disk
from shoal.training.checkpoint import Checkpoints
from shoal.training.config import TrainConfig


def writing(path: Path) -> contextlib.AbstractContextManager[None]:
    """What the disk refuses inside the block becomes one sentence about `path`."""
    return disk.sentence(f"'{path}' cannot be written")


def new_folder(config: TrainConfig) -> Path:
    """The folder of a new run: the one asked for, or a fresh name under runs/."""
    if config.out is not None:
        if not config.out.strip():
            raise UserError("--out is empty, but must be the name of a folder.")
        folder = Path(config.out)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--out '{folder}' is a file, but must be a folder.")
        if (folder / "config.json").exists() or (folder / "checkpoints").exists():
            raise UserError(f"'{folder}' already holds a run: continue it with --resume, or choose another --out.")
        return folder
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{config.env}-{config.algorithm}-seed{config.seed}")
    number = 1
    while (folder := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return folder


class RunFolder:
    """The files of one run, opened for writing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")
        self._lock: int | None = None

    def lock(self) -> None:
        """Keep other processes from writing into this run; the system lets go of it however this one ends."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"The run in '{self.path}' is being trained by another process.") from None

    def unlock(self) -> None:
        """Let others write."""
        if self._lock is not None:
            os.close(self._lock)

    @property
    def result(self) -> dict[str, Any] | None:
        """What result.json holds; None while the run is not finished."""
        try:
            return dict(json.loads((self.path / "result.json").read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(f"'{self.path / 'result.json'}' cannot be read: {error}.") from None

    def create(self, config: TrainConfig) -> None:
        """Write the configuration."""
        self.write("config.json", config.to_json())

    def write(self, name: str, text: str) -> None:
        """Write a whole file under a temporary name and put it in its place."""
        with writing(self.path / name):
            temporary = self.path / f".{name}.new"
            temporary.unlink(missing_ok=True)  # of a writer that was killed
            disk.write(temporary, text.encode())
            temporary.replace(self.path / name)


class MetricsLog:
    """metrics.jsonl: one JSON object a line, flushed at once; TensorBoard gets the same numbers."""

    def __init__(self, folder: Path, tensorboard: bool, keep_bytes: int = 0, purge_step: int = 0) -> None:
        """Lines behind `keep_bytes` are of a time that a resumed run lives through again: they are dropped."""
        self.path = folder / "metrics.jsonl"
        with writing(self.path):
            self._file = self.path.open("ab")
            self._file.truncate(keep_bytes)
            self._file.seek(keep_bytes)
        self._events = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            with writing(folder):
                self._events = SummaryWriter(str(folder), purge_step=purge_step or None)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    def add(self, line: Mapping[str, Any]) -> None:
        """Append one line; numbers that are not finite become null."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        with writing(self.path):
            self._file.write((json.dumps(clean) + "\n").encode())
            self._file.flush()
        if self._events is not None:
            with writing(self.path.parent):
                for key, value in clean.items():
                    if key != "episode" and isinstance(value, int | float):
                        name = key if "/" in key else f"train/{key}"
                        self._events.add_scalar(name, value, clean["episode"])

    def close(self) -> None:
        """Close both files; every line was flushed when it was added, so nothing is lost if that fails."""
        with contextlib.suppress(OSError):
            self._file.close()
        if self._events is not None:
            self._events.close()
