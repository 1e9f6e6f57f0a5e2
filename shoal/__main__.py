"""`python -m shoal`: the same as `shoal`."""

import contextlib
import os
import sys
from pathlib import Path


def leave_working_directory() -> None:
    """Take the working directory off the path of modules, where `python -m` puts it, unless Shoal itself is there."""
    with contextlib.suppress(OSError):  # it may be gone
        if sys.path[0] == os.getcwd() != str(Path(__file__).parent.parent):
            del sys.path[0]


if __name__ == "__main__":
    leave_working_directory()
    from shoal.cli import main  # only now: what it imports must not come from there either

    sys.exit(main())
