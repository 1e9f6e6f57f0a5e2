"""Reading metrics.jsonl, the log of a run."""

import json
from pathlib import Path
from typing import Any

from shoal.errors import UserError


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`. A partial line, from a process killed while writing, is skipped."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise UserError(f"Cannot read the metrics {path}: {error.strerror or error}.") from error
    read = [entry for line in lines if isinstance(entry := _parse(line), dict)]
    if any(line.strip() for line in lines[:-1]) and not read:  # after the last line break: a partial line or nothing
        raise UserError(f"{path} is not a metrics.jsonl: none of its lines is a JSON object.")
    return read


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
