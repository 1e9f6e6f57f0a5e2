"""A run is a folder: config.json, metrics.jsonl (append only), events.* (TensorBoard), checkpoints/, result.json.

One process at a time may write into it: it holds a lock on the folder, which the system releases however it ends.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from shoal.errors import UserError
from shoal.runs import disk
from shoal.system.files import absolute, finite, replace_file

if TYPE_CHECKING:
    from shoal.runs.checkpoint import Checkpoints

CONFIG, METRICS, RESULT, CHECKPOINTS = "config.json", "metrics.jsonl", "result.json", "checkpoints"
CURVE, DIAGNOSIS = "curve.png", "diagnosis.png"  # of a finished run: learning curve, diagnosis
Result = TypeVar("Result")


def file_name(text: str) -> str:
    """The text with hyphens in place of what is unusual in names of files."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)


def writing(path: Path) -> contextlib.AbstractContextManager[None]:
    """Turn disk errors inside the block into one message about `path`."""
    return disk.sentence(f"'{path}' cannot be written")


def check_free(out: str | Path) -> None:
    """Refuse a folder in which a new run would overwrite something."""
    if not str(out).strip():
        raise UserError("`out` is empty, but must be the name of a folder.")
    folder = Path(out)
    with writing(folder):  # too long a name, or a parent folder inaccessible
        if folder.exists() and not folder.is_dir():
            raise UserError(f"`out` '{folder}' is a file, but must be a folder.")
        if any((folder / name).exists() for name in (CONFIG, RESULT, METRICS, CHECKPOINTS)):
            raise UserError(f"'{folder}' already holds a run: resume it, or choose another `out`.")
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        try:
            tempfile.TemporaryFile(dir=nearest).close()  # permissions do not tell all
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(nearest)) from None


def new_folder(out: str | None, name: str, start: Path = Path()) -> "RunFolder":
    """Create and lock the folder of a new run: the one asked for, or one under runs/ that is called `name`.

    Relative paths begin at `start`.
    """
    if out is not None:
        folder = RunFolder(start / out, make=True)
        try:
            check_free(folder.path)
        except UserError:
            folder.close()
            raise
        return folder
    number = 1
    while True:
        path = start / "runs" / f"{file_name(name)}-{number}"
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            try:
                path.mkdir()  # whoever creates it owns it
            except FileExistsError:
                number += 1
            else:
                return RunFolder(path)


class RunFolder:
    """The files of one run, or of several, locked for writing until it is closed."""

    def __init__(self, path: Path, make: bool = False, kind: str = "run") -> None:
        self.path = path = absolute(path)
        with writing(path):
            if make:
                path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UserError(f"The {kind} in '{path}' is being trained by another process.") from None
        self._new = not (path / CONFIG).exists()
        self._written: set[Path] = set()

    @cached_property
    def checkpoints(self) -> "Checkpoints":
        from shoal.runs.checkpoint import Checkpoints  # imports numpy and more: not needed to refuse a run

        return Checkpoints(self.path / CHECKPOINTS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def write(self, name: str, text: str) -> None:
        """Write a whole file atomically: under a temporary name first."""
        path = self.path / name
        with writing(path):
            replace_file(path, text.encode(), self.path / f".{name}.new")
        self._written.add(path)

    def discard(self, also: Iterable[Path] = ()) -> None:
        """Undo a new run that failed before its first step: delete its files, and the folder if it is empty then."""
        if not self._new:
            return
        for path in (*self._written, *also):
            disk.delete(path)
        with contextlib.suppress(OSError):
            self.path.rmdir()


def result_json(result: Any) -> str:
    """The text of result.json for a dataclass; non-finite numbers become null."""
    return json.dumps(disk.sealed(finite(dataclasses.asdict(result))), indent=2) + "\n"


def read_result(run: Path, kind: type[Result]) -> Result | None:
    """Read result.json into this dataclass; None while the run is not finished. The run may have been moved since."""
    path = run / RESULT
    try:
        if not path.exists():
            return None
        return kind(**{**disk.read_sealed(path), "run": str(run)})
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None
    except (disk.Damaged, TypeError) as error:  # TypeError: a field is missing or unknown
        raise UserError(f"'{path}' is damaged ({error}); remove it and resume the run to recreate it.") from None
