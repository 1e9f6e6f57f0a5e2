"""Files that are whole or not there: written under a temporary name, then renamed."""

import os
from pathlib import Path

from shoal.errors import UserError


def write_whole(path: str | Path, content: bytes) -> Path:
    """Put `content` into the file at `path`, replacing what was there only once all of it is on the disk."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"Cannot write the picture {path}: {error.strerror or error}.") from error
    return path
