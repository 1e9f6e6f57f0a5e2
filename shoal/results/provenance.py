"""Where a result comes from."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from shoal import __version__
from shoal.system.processors import processor_name, usable_processors

PACKAGES = ("numba", "numpy", "onnxruntime", "torch")


@dataclass(frozen=True)
class Provenance:
    """The command that made a result, and the software and the machine that ran it."""

    command: str
    version: str
    """Version of Shoal."""
    date: str
    processors: int
    """CPUs that this process may use."""
    processor: str
    """Model name of the CPU."""
    memory_bytes: int | None
    """Memory of the machine; None if unknown."""
    packages: dict[str, str]
    """Versions of the libraries that influence times and results."""

    @classmethod
    def here(cls, words: Sequence[str]) -> "Provenance":
        """The provenance of this command line, run now on this machine."""
        import importlib.metadata  # slow to import, and most commands have no result

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
