"""Compiled code must not be older than its sources."""

import hashlib
from pathlib import Path

from shoal.replay import gather


def test_helpers_are_the_ones_that_were_compiled_in():
    folder = Path(gather.__file__).parent
    sources = b"".join((folder / f"{name}.py").read_bytes() for name in ("half", "intrinsics"))
    assert hashlib.sha256(sources).hexdigest()[:16] == gather.HELPERS
