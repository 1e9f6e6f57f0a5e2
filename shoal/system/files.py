"""Files that are whole or not there, and paths that stay right if an environment changes the working directory."""

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.errors import UserError

_start = Path()  # the working directory of the command


def start_here() -> None:
    """A command begins in the present working directory."""
    global _start
    _start = working_directory()


def working_directory() -> Path:
    """The present working directory; `.` if it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        return Path()


def absolute(path: str | Path) -> Path:
    """The path from the root."""
    try:
        return Path(path).absolute()
    except OSError as error:
        raise UserError(f"'{path}' cannot be used: the working directory is gone ({error.strerror}).") from None


def shown(path: str | Path) -> str:
    """A path as the user of a command would write it: from the command's working directory, if it is below that."""
    path = Path(path)
    below = path.is_relative_to(_start) and path != _start
    return str(path.relative_to(_start) if below else path)


def write_whole(path: str | Path, content: bytes, what: str = "the picture") -> Path:
    """Put `content` into the file at `path`, replacing what was there only once all of it is on the disk."""
    path = Path(path)
    if not path.name:
        raise UserError(f"Cannot write {what} to '{path}': that is a folder, not the name of a file.")
    try:
        replace_file(path, content, path.with_name(f".{path.name}.{os.getpid()}.tmp"))
    except OSError as error:
        raise UserError(f"Cannot write {what} {path}: {error.strerror or error}.") from error
    return path


def replace_file(path: Path, content: bytes, temporary: Path) -> None:
    """Write a file under a temporary name, sync it to disk and rename it to `path`; what was there stays until then."""
    try:
        temporary.unlink(missing_ok=True)  # from a killed writer
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)  # gone already, unless something went wrong


def finite(value: Any) -> Any:
    """The same with None where a number is not finite, however deep: JSON has no other word for it."""
    if isinstance(value, Mapping):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
