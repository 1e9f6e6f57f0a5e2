"""`python -m shoal`: the same as `shoal`."""

import contextlib
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # `python -m` puts the working directory on the path of modules; it is taken off, unless Shoal itself is there.
    with contextlib.suppress(OSError):  # it may be gone
        if sys.path[0] == os.getcwd() != str(Path(__file__).parent.parent):
            del sys.path[0]
    from shoal.cli import main  # only now: what it imports must not come from there either

    sys.exit(main())
