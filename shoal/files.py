"""Files that are whole or not there: written under a temporary name, then renamed."""

import contextlib
import os
from pathlib import Path

from shoal.errors import UserError


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
