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
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"Cannot write {what} {path}: {error.strerror or error}.") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)  # gone already, unless something went wrong
    return path
