"""Durable file operations, and operating-system errors as one-sentence messages."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.errors import UserError, counted

SEAL = "sha256"  # key of the checksum that a JSON object holds of itself


class Damaged(Exception):
    """A file is not as it was written; the message says which and how."""


@contextlib.contextmanager
def sentence(beginning: str) -> Iterator[None]:
    """Turn operating-system errors inside the block into a `UserError` that starts with `beginning`."""
    try:
        yield
    except Damaged as error:
        raise UserError(f"{beginning}: {error}.") from error
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise UserError(f"{beginning}: {error.strerror or error}{where}.") from error


def sealed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its own checksum added."""
    return {**fields, SEAL: sha256(json.dumps(fields, sort_keys=True).encode())}


def unsealed(value: Any) -> dict[str, Any]:
    """The object without its checksum; a `ValueError` unless it matches."""
    fields = {name: field for name, field in value.items() if name != SEAL} if isinstance(value, dict) else {}
    if not fields or value.get(SEAL) != sealed(fields)[SEAL]:
        raise ValueError("its checksum is wrong")
    return fields


def sha256(data: bytes) -> str:
    """The SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def read(path: Path, size: int | None = None, checksum: str | None = None) -> bytes:
    """The bytes of a file; raises `Damaged` unless they can be read and have this size and SHA-256, where given."""
    try:
        if not path.is_file():
            raise Damaged(f"{path.name} is {'not a file' if path.exists() else 'missing'}")
        present = path.stat().st_size
        if size is not None and present != size:
            raise Damaged(f"{path.name} has {counted(present, 'byte')} instead of {size:,}")
        data = path.read_bytes()
    except PermissionError:  # the file may well be intact
        raise
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {error.strerror}") from error
    if checksum is not None and sha256(data) != checksum:
        raise Damaged(f"{path.name} has a wrong checksum")
    return data


def read_sealed(path: Path) -> dict[str, Any]:
    """The JSON object in a file, without its checksum; raises `Damaged` unless it is as it was written."""
    try:
        return unsealed(json.loads(read(path)))
    except (ValueError, RecursionError) as error:
        raise Damaged(str(error)) from None


def write(path: Path, data: bytes) -> None:
    """Write a new file and sync it to disk; its name is durable after `sync` of its folder."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """Sync a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder in an existing one, unless it exists."""
    if not path.is_dir():
        os.mkdir(path)
        sync(path.parent)


def names(folder: Path) -> list[str]:
    """The names in a folder, sorted; empty if there is no such folder."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def file_size(path: Path) -> int | None:
    """Size of a file in bytes; None if there is no such file."""
    return path.stat().st_size if path.is_file() else None


def delete(path: Path) -> None:
    """Delete a file, or a folder in its place. Failures are ignored."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            os.unlink(path)
