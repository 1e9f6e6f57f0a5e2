"""Running the code blocks of a page."""

import sys
from pathlib import Path


def run_blocks(blocks):
    """Run (title, code) one after the other in the working directory; a block with a title is a file."""
    names = {"__name__": "example"}
    for title, code in blocks:
        if title:
            Path(title).write_text(code)
        else:
            exec(compile(code, "docs", "exec"), names)
    for title, _ in blocks:
        sys.modules.pop(Path(title).stem, None)
