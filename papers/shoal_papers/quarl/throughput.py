"""Cells of the throughput studies: one actor of a running system, whose every pull finds a new version.

The paper's learner has a GPU of its own and is faster than the actors' pulls; a learner on the same two cores is not.
So what publishes here only publishes: each version as soon as the actor has taken the last one. The weights are always
the same, which changes nothing about the time that they take.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from shoal.bench.actorq import TASKS, one_actor, publishing, run_system
from shoal.errors import UserError, counted
from shoal.results import Column, Value
from shoal.waiting import Advance
from shoal_papers.cells import Cells, StudyCell
from shoal_papers.study import Options

STARTING = 3.0
"""Approximate seconds until an actor has played its first steps."""
STAGES = ("step", "environment", "pull", "deserialize", "load", "other")
NOT_RUN = "not run"
BUSY = 3.5
"""Load average above which other programs must have been running."""
PRECISIONS = {32: "float32", 16: "float16", 8: "int8"}


class Measured(TypedDict):
    """The result of a cell."""

    engine: str
    steps_per_second: float
    bytes_per_second: float
    bytes_per_pull: float
    pulls_per_1000: float
    """Pulls that found a new version."""
    seconds_per_1000: dict[str, float]
    """Of every stage, per 1000 steps; they add up to the whole."""
    joules_per_1000: float | None
    load_average: float | None
    """Of the machine, over the last minute."""


class CellRow(TypedDict):
    """A planned cell, run or not."""

    cell: str
    task: str
    engine: str
    precision: str
    bits: int
    pull_every: int
    measured: Measured | None


class Found(TypedDict):
    """The data of a throughput study."""

    rows: list[CellRow]
    failed: list[str]
    interrupted: bool


def cell_of(task: str, engine: str, precision: str, bits: int, pull_every: int, seconds: float) -> StudyCell:
    """One kind of actor; `bits` are those of the broadcast."""
    name = f"{task} {engine} {precision} {bits} bits pull {pull_every}"
    kind = {"engine": engine, "precision": precision, "bits": bits, "pull_every": pull_every}
    return StudyCell(name, {"task": task, **kind, "seconds": seconds}, seconds + STARTING)


def run_cells(study: str, quick: bool, options: Options, advance: Advance, cells: Sequence[StudyCell]) -> Found:
    """Run one cell at a time, since each takes two processors."""
    done = Cells(study, quick, options, advance)
    results = done.run(cells, work, workers=1)
    kind = ("task", "engine", "precision", "bits", "pull_every")
    rows = [
        {"cell": cell.name, **{name: cell.settings[name] for name in kind}, "measured": results.get(cell.name)}
        for cell in cells
    ]
    said = [*done.failed, *busy(results.values()), *done.machines()]
    return {"rows": rows, "failed": said, "interrupted": done.interrupted}  # type: ignore[typeddict-item]


def busy(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence if other programs were busy meanwhile; the system itself keeps about two processors busy."""
    loads = [load for one in results if (load := one.get("load_average") or 0.0) > BUSY]
    if not loads:
        return []
    return [
        f"The machine was busy with other things during {counted(len(loads), 'cell')} (load average up to "
        f"{max(loads):.0f}): their figures mean little; delete them and measure again when it is quiet."
    ]


def work(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run the system of one cell."""
    config = one_actor(
        TASKS[settings["task"]],
        actor_engine=settings["engine"],
        actor_precision=settings["precision"],
        broadcast_bits=settings["bits"],
        pull_every=settings["pull_every"],
        error_buffer=1e12,  # nothing is sampled, and inserts do not wait for it
    )
    passed = run_system(config, settings["seconds"], publishing, whole_pulls=True)
    if passed.replaced:
        raise UserError("the actor gave no sign of life for seconds and was replaced; measure on a quieter machine.")
    counts, spent = passed.counts, passed.spent
    names = {"step": "act", "environment": "environment", "pull": "pull", "deserialize": "deserialize"}
    stages = {stage: spent[name] for stage, name in names.items()}
    stages["load"] = spent["load"] - spent["deserialize"]
    stages["other"] = passed.seconds - sum(stages.values())
    per_1000 = 1000 / counts["steps"]
    found: Measured = {
        "engine": passed.engine,
        "steps_per_second": counts["steps"] / passed.seconds,
        "bytes_per_second": counts["bytes"] / passed.seconds,
        "bytes_per_pull": counts["bytes"] / counts["pulls"],
        "pulls_per_1000": counts["pulls"] * per_1000,
        "seconds_per_1000": {stage: seconds * per_1000 for stage, seconds in stages.items()},
        "joules_per_1000": None if passed.joules is None else passed.joules * per_1000,
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }
    return dict(found)


def network_of(task: str) -> str:
    """A task with the hidden layers of its policy."""
    return f"{task} {'×'.join(map(str, TASKS[task]['hidden']))}"


def energy_column(rows: Sequence[CellRow]) -> list[Column]:
    """The column of energy, if any cell has it."""
    known = any(row["measured"] and row["measured"]["joules_per_1000"] is not None for row in rows)
    return [Column("energy per 1000 steps", "J")] if known else []


def energy(row: CellRow) -> Value:
    """Joules per 1000 steps."""
    return row["measured"]["joules_per_1000"] if row["measured"] else None


def of_kind(rows: Sequence[CellRow], **kind: Any) -> Measured | None:
    """What was measured of the first cell with these settings; None if it was not run."""

    def fits(row: Mapping[str, Any]) -> bool:
        return all(row[name] == value for name, value in kind.items())

    return next((row["measured"] for row in rows if fits(row)), None)
