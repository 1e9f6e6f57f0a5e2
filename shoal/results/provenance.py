"""Where a result comes from."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from shoal import __version__
from shoal.processors import processor_name, usable_processors

PACKAGES = ("numba", "numpy", "onnxruntime", "torch")


@dataclass(frozen=True)
class Provenance:
    """The command that made a result, and the software and the machine that ran it."""

    command: str
    version: str
    """Of Shoal."""
    date: str
    processors: int
    """That this process may use."""
    processor: str
    """The model's name."""
    memory_bytes: int | None
    """Of the machine; None where the system does not tell."""
    packages: dict[str, str]
    """Versions of the libraries that decide times and numbers."""

    @classmethod
    def here(cls, words: Sequence[str]) -> "Provenance":
        """Of the command with these words, run now on this machine."""
        import importlib.metadata  # takes a while, and most commands have no result

        now = datetime.now(UTC).isoformat(timespec="seconds")
        packages = {name: importlib.metadata.version(name) for name in PACKAGES}
        return cls(
            shlex.join(["shoal", *words]),
            __version__,
            now,
            usable_processors(),
            processor_name()[0],
            _memory(),
            packages,
        )


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
