"""Which runs this user trained on this machine: their worlds need no --trust.

Whoever trains a run has named its world, so the run gets a signature: of the folder's absolute path, the world's name
and options, and the file of the world's module (likewise of third-party algorithms and samplers), by a random key
outside of all run folders that only this user can read. A folder that was received, copied or moved has no valid
signature, whatever it contains, and neither has one whose world would now come from another file. Where no key can be
kept, nothing is signed, and --trust is needed.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from shoal.trust import import_from_working_directory, is_local, is_third_party, module_of

KEY_BYTES = 32


Code = Sequence[tuple[str, str]]  # names of third-party code, each with its options


def sign(folder: Path, code: Code) -> str:
    """The signature of a run in this folder that was trained with this code; empty where there is no key."""
    key = None if any(is_local(name) for name, _ in code) else _key() or _new_key()
    return _signature(key, folder, code) if key else ""


def is_signed(signature: object, folder: Path, code: Code) -> bool:
    """Whether this user signed it on this machine; its modules may then be imported from the working directory."""
    key = None if any(is_local(name) for name, _ in code) else _key()
    if not signature or key is None:
        return False
    expected = _signature(key, folder, code)
    if not hmac.compare_digest(str(signature).encode(errors="replace"), expected.encode()):
        return False
    if any(is_third_party(name) for name, _ in code):
        import_from_working_directory()
    return True


def _signature(key: bytes, folder: Path, code: Code) -> str:
    signed = [os.path.realpath(folder)]
    for name, options in code:
        signed += [name, options, _module_file(name)]
    return hmac.new(key, json.dumps(signed).encode(), hashlib.sha256).hexdigest()


def _module_file(env: str) -> str:
    """Where the world's package or module is, or would be imported from; nothing is imported.

    A package without `__init__.py` may lie in several folders, all of which count.
    """
    name = module_of(env).partition(".")[0] if is_third_party(env) else ""
    if not name:
        return ""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    with contextlib.suppress(OSError, ValueError):  # the working directory may be gone
        spec = spec or PathFinder.find_spec(name, [*sys.path, os.getcwd()]) or find_spec(name)  # installed with -e
    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
    return os.pathsep.join(os.path.realpath(place) for place in places if place)


def _key_file() -> Path:
    """Where the key is: in the user's state folder; an `OSError` where there is none."""
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state if os.path.isabs(state) else os.path.expanduser("~/.local/state"))
    if not folder.is_absolute():
        raise OSError("the user has no home folder")
    return folder / "shoal" / "key"


def _key() -> bytes | None:
    """The user's key; None if there is none, or one that others could have read or written."""
    with contextlib.suppress(OSError):
        with _key_file().open("rb") as file:
            facts, key = os.fstat(file.fileno()), file.read(KEY_BYTES + 1)
        if facts.st_uid == os.geteuid() and not facts.st_mode & 0o077 and len(key) == KEY_BYTES:
            return key
    return None


def _new_key() -> bytes | None:
    """A new key, unless another process made one at the same moment; None where it cannot be kept."""
    with contextlib.suppress(OSError):
        path = _key_file()
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # of mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)  # whole, or not there
        finally:
            os.unlink(temporary)
    return _key()
