"""numba's decorators with a cache of Shoal's own: compiled code is kept in the user's cache folder, not in the package.

The folder is `$SHOAL_CACHE`, `$XDG_CACHE_HOME/shoal` or `~/.cache/shoal`. It has one file per function and types of
arguments, named by a hash of everything that the machine code depends on, the function's file and all files of Shoal
that this imports among it, and written in one step: processes that compile at once do not disturb each other. Only
whole files that nobody else can have written are loaded, because they are pickles. Where a file cannot be kept, code is
compiled in memory, and the process says so once.
"""

import functools
import hashlib
import itertools
import os
import pickle
import re
import secrets
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite  # type: ignore[import-untyped]
import numba
import numpy as np
from numba.core import sigutils
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import NullCache
from numba.core.ccallback import CFunc
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from shoal import __version__

PACKAGE = Path(__file__).parent
SUFFIX = ".compiled"
UNUSED_DAYS = 30  # files that were not read for so long are deleted: other versions of Shoal, numba or Python left them
TOLD = "SHOAL_CACHE_TOLD"  # set once the user knows that nothing is kept; child processes inherit it


def _number_functions() -> None:
    """Let numba count the functions that it compiles from a random number, so that names of machine code differ.

    They are made of the function's name and that count. Counted from 1 in every process, a function from the cache may
    call a function that is named as one that this process has compiled, but does something else: another closure of the
    same text. The linker would take the one that is there already.
    """
    FunctionIdentity._unique_ids = itertools.count(secrets.randbits(62))


_number_functions()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_number_functions)


def njit(*arguments: Any, cache: bool = False, key: str = "", **options: Any) -> Any:
    """numba's `njit`; with `cache`, compiled code is kept in the cache folder.

    `key` tells functions apart whose closures hold other compiled functions, in place of what the closures hold.
    """
    decorator = numba.njit(*arguments, **options)

    def cached(function: Any) -> Any:
        dispatcher = decorator(function)
        dispatcher._cache = DiskCache(function, key)
        return dispatcher

    return cached if cache else decorator


def cfunc(signature: Any, **options: Any) -> Callable[[Any], Any]:
    """numba's `cfunc`, kept in the cache folder."""

    def decorator(function: Any) -> Any:
        callback: Any = CFunc(function, sigutils.normalize_signature(signature), locals={}, options=options)
        callback._cache = DiskCache(function)
        callback.compile()
        return callback

    return decorator


class DiskCache(NullCache):
    """The cache of one function, as numba's dispatchers use it."""

    def __init__(self, function: Any, key: str = "") -> None:
        self.function, self.key = function, key

    @property
    def cache_path(self) -> str | None:
        """The folder, if there is one."""
        try:
            return str(cache_folder())
        except OSError:
            return None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function for these types of arguments, or None."""
        target_context.refresh()  # as numba's own cache does: what is loaded may refer to it
        try:
            path = self._path(sig, target_context.codegen())
            payload = _read(path)
            return payload and CompileResult._rebuild(target_context, *pickle.loads(payload))
        except Exception:  # a file that cannot be loaded is compiled again and replaced
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the function that was compiled for these types of arguments."""
        name = self.function.__qualname__
        assert not data.lifted and not data.library.has_dynamic_globals, f"{name} refers to addresses of this process"
        try:
            _write(self._path(sig, data.codegen), dumps(data._reduce()))
        except OSError as error:
            _tell_once(error.strerror or str(error))

    def _path(self, sig: Any, codegen: Any) -> Path:
        """The file for these types of arguments."""
        function, code = self.function, self.function.__code__
        name = f"{function.__module__}.{function.__qualname__}".removeprefix("shoal.")
        versions = (__version__, sys.version, numba.__version__, llvmlite.__version__, np.__version__)
        closure = self.key or dumps(tuple(cell.cell_contents for cell in function.__closure__ or ()))
        processor = codegen.magic_tuple()
        key = repr((versions, source_hash(code.co_filename), name, code.co_firstlineno, closure, processor, sig))
        plain = re.sub(r"[^A-Za-z0-9_.]", "", name)
        return cache_folder() / f"{plain}-{hashlib.sha256(key.encode()).hexdigest()}{SUFFIX}"


# ---- the key: what a function is compiled from -----------------------------------------------------------------------


@functools.cache
def source_hash(file: str, package: Path = PACKAGE) -> str:
    """Hash of a file and of all files of the package that it imports, directly or not.

    numba's own cache looks only at the function's file, and would go on running a function of another file, or using a
    constant from there, as it was.
    """
    contents = {Path(file): Path(file).read_bytes()}
    waiting = list(contents)
    while waiting:
        for path in imported(contents[waiting.pop()].decode(), package) - contents.keys():
            contents[path] = path.read_bytes()
            waiting.append(path)
    hashes = (hashlib.sha256(contents[path]).digest() for path in sorted(contents))
    return hashlib.sha256(b"".join(hashes)).hexdigest()


def imported(source: str, package: Path) -> set[Path]:
    """The files of the package from which a module imports; by its text, since parsing all of them would take long.

    The package's own `__init__.py` is never among them: it has the version, which is part of the key anyway.
    """
    pattern = rf"^\s*(?:from|import) +{package.name}((?:\.\w+)*)(?: +import +(\([^)]*\)|[^\n]*))?"
    paths: set[Path] = set()
    for module, names in re.findall(pattern, source, re.MULTILINE):
        base = package.joinpath(*module.split("."))
        parts = [_file(base / name) for name in re.findall(r"(\w+)(?: +as +\w+)?", re.sub(r"#.*", "", names))]
        if base != package and (None in parts or not parts):
            parts.append(_file(base))
        paths.update(part for part in parts if part is not None)
    return paths


def _file(module: Path) -> Path | None:
    """The file of a module or of a package, if it is one."""
    return next((path for path in (module.with_suffix(".py"), module / "__init__.py") if path.is_file()), None)


# ---- the folder ------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where compiled code is kept; an OSError if there is no place."""
    asked, cache = os.environ.get("SHOAL_CACHE"), os.environ.get("XDG_CACHE_HOME", "")
    try:
        return _absolute(asked or (f"{cache}/shoal" if os.path.isabs(cache) else f"{Path.home()}/.cache/shoal"))
    except RuntimeError:
        raise FileNotFoundError(0, "there is no home folder") from None


@functools.cache
def _absolute(folder: str) -> Path:
    """Once per process, because an environment may change the working directory."""
    return Path(os.path.abspath(folder)) / "compiled"


def _read(path: Path) -> bytes | None:
    """What `_write` was given, if the file is whole and nobody else can have written it."""
    # not following a link, whose target may be any file of this user's, nor waiting for a pipe
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISREG(status.st_mode) or others or status.st_uid not in (0, os.geteuid()):
            return None
        content = file.read()
    payload = content[hashlib.sha256().digest_size :]
    return payload if content == _checksum(path, payload) + payload else None


def _write(path: Path, payload: bytes) -> None:
    """Put a file into the folder, whole or not at all; it is not synced, since a damaged one is compiled again."""
    folder = path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if path.lstat().st_uid not in (0, os.geteuid()):  # would be written over in turns
            raise PermissionError(0, "its files belong to another user")
    handle, temporary = tempfile.mkstemp(suffix=SUFFIX, dir=folder)
    try:
        with open(handle, "wb") as file:
            file.write(_checksum(path, payload) + payload)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    _delete_unused(folder)


def _checksum(path: Path, payload: bytes) -> bytes:
    """Of the name as well, so that no file passes for another."""
    return hashlib.sha256(path.name.encode() + payload).digest()


@functools.cache  # once per process
def _delete_unused(folder: Path) -> None:
    """Delete files that nobody has read for a long time."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            age = time.time() - max(status.st_atime, status.st_mtime)
            if entry.name.endswith(SUFFIX) and age > UNUSED_DAYS * 86400:
                os.unlink(entry)


def _tell_once(reason: str) -> None:
    """Tell the user why every run compiles again."""
    if TOLD in os.environ:
        return
    os.environ[TOLD] = "1"
    with suppress(OSError):  # no folder at all
        reason = f"{cache_folder()} cannot be written ({reason})"
    warnings.warn(f"Compiled code is not kept for later runs: {reason}; name a folder in SHOAL_CACHE.", stacklevel=1)
