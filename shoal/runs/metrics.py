"""Reading metrics.jsonl, the log of a run."""

import json
from pathlib import Path
from typing import Any

from shoal.errors import UserError

LARGE = 64 * 2**20
"""Bytes of a log from which on lines are left out when it is read: memory and time would be those of gigabytes."""
EVALUATIONS = 10_000
"""Lines with evaluations that are never left out."""


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`. A partial line, from a process killed while writing, is skipped.

    Of a log of n times 64 MB, only every n-th line is read, those with evaluations and the last one.
    """
    path = Path(path)
    read: list[dict[str, Any]] = []
    some, evaluations, line, unread = False, 0, b"", False
    try:
        with path.open("rb") as file:
            stride = -(-path.stat().st_size // LARGE) or 1
            for number, line in enumerate(file):
                some = some or bool(line.endswith(b"\n") and line.strip())
                evaluated = stride > 1 and evaluations < EVALUATIONS and b'"evaluate/' in line
                evaluations += evaluated
                unread = number % stride != 0 and not evaluated
                if not unread and isinstance(entry := _parse(line), dict):
                    read.append(entry)
    except OSError as error:
        raise UserError(f"Cannot read the metrics {path}: {error.strerror or error}.") from error
    if unread and isinstance(entry := _parse(line), dict):
        read.append(entry)
    if some and not read:  # after the last line break: a partial line or nothing
        raise UserError(f"{path} is not a metrics.jsonl: none of its lines is a JSON object.")
    return read


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line.decode(errors="replace"))
    except ValueError:
        return None
