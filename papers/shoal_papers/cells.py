"""Cells of a study: tasks of a few minutes, the result of each stored in its own file.

A study that is stopped by its budget, by Ctrl-C or by the machine resumes where it was when it is started again with
the same folder. A cell's file holds its settings: with other settings it is computed again. It also says when and on
which machine it was computed, because finished cells may be committed.
"""

import importlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.errors import UserError, counted
from shoal.results import Provenance
from shoal.runs import disk
from shoal.system.calls import ChildPool
from shoal.system.child import Ended
from shoal.system.files import finite, write_whole
from shoal.system.processors import usable_processors
from shoal.waiting import Advance

NAMED = 6  # unfinished cells that are named one by one
Work = Callable[[dict[str, Any], Path], dict[str, Any]]
"""A function of a module: from a cell's settings, and a folder for files that cells share, to its result."""


@dataclass(frozen=True)
class Options:
    """Options of a study."""

    out: Path = Path("runs/studies")
    """Folder for the picture, the JSON file, trained models and finished cells, which a repeated study does not run
    again."""
    budget: float = 60.0
    """Minutes after which a study starts no more cells; finished ones are kept in the folder."""
    model: str = ""
    """ptq-table: a Stable-Baselines3 zip to measure instead of models that the study trains."""
    env: str = ""
    """ptq-table: environment of that model, e.g. ALE/Breakout-v5."""
    normaliser: str = ""
    """ptq-table: observation normaliser of that model, as .npz or .safetensors; .pkl only with --trust."""
    trust: bool = False
    """ptq-table: let Stable-Baselines3 load that model and run the code in it."""
    cells: Path | None = None
    """Folder for finished cells, e.g. papers/cells; None: the folder cells in --out."""


@dataclass(frozen=True)
class StudyCell:
    """One task of a study."""

    name: str
    """Also the name of its file."""
    settings: Mapping[str, Any]
    """Everything that its result depends on."""
    seconds: float = 1.0
    """Approximate run time."""


class Cells:
    """The cells of one study: finished ones are read, others are run while the budget lasts."""

    def __init__(self, study: str, quick: bool, options: Options, advance: Advance, folder: str = "") -> None:
        """`folder`: that of several studies, which then share cells of the same name; otherwise the study's own."""
        self.study, self.shared = study, options.out
        self.folder = (options.cells or options.out / "cells") / f"{folder or study}{'-quick' if quick else ''}"
        self.budget, self.advance = options.budget, advance
        self.failed: list[str] = []
        self._made: list[Mapping[str, Any]] = []
        self._deadline = time.monotonic() + 60 * options.budget
        self.interrupted = False
        self._stopped = False
        self._finished = 0
        with disk.sentence(f"'{self.folder}' cannot be created"):
            self.folder.mkdir(parents=True, exist_ok=True)

    def run(
        self,
        cells: Sequence[StudyCell],
        work: Work,
        workers: int | None = None,
        short: bool = False,
        optional: bool = False,
        missing: str = "",
    ) -> dict[str, dict[str, Any]]:
        """The results of all finished cells by name; each worker is a process with one thread.

        Without `workers` there are as many as CPUs. `short` cells take seconds and run regardless of the budget.
        A `UserError` if none of the study is finished then, unless these are `optional`. What these need may be
        `missing`: then only finished ones are read.
        """
        results = {cell.name: result for cell in cells if (result := self._kept(cell)) is not None}
        self._finished += len(results)
        for cell in cells:
            if cell.name in results:
                self.advance(cell.seconds, f"{cell.name} (kept)")
        todo = [cell for cell in cells if cell.name not in results]
        if missing and todo:
            self.failed.append(f"Not measured: {named(todo)}; {missing}.")
            todo = []
        count = min(workers or usable_processors(), len(todo))
        if todo and not self._stopped:
            with ChildPool(count) as pool:
                try:
                    self._do(todo, work, pool, count, results, math.inf if short else self._deadline)
                except (KeyboardInterrupt, Ended) as stop:
                    pool.kill()
                    if not self._finished:
                        raise
                    self._stopped, self.interrupted = True, isinstance(stop, KeyboardInterrupt)
                    why = "Interrupted" if self.interrupted else "A cell was killed by the system"
                    self.failed.append(f"{why}: {len(results)} of {len(cells)} cells are finished.")
        if not self._finished and not optional:
            raise UserError(f"Nothing could be measured: {' '.join(self.failed)}")
        return {cell.name: results[cell.name] for cell in cells if cell.name in results}

    def machines(self) -> list[str]:
        """One sentence for each machine that computed cells of this study, with the dates."""
        dates: dict[str, list[str]] = {}
        for made in self._made:
            dates.setdefault(f"{made['processor']} ({made['processors']} used)", []).append(made["date"][:10])
        spans = {machine: sorted({min(own), max(own)}) for machine, own in dates.items()}
        return [f"Measured on {machine}, {' to '.join(span)}." for machine, span in spans.items()]

    def _do(
        self, todo: list[StudyCell], work: Work, pool: ChildPool, workers: int, results: dict[str, Any], deadline: float
    ) -> None:
        waiting: dict[Future[dict[str, Any]], StudyCell] = {}
        left = list(todo)
        self.advance(0.0, counted(len(todo), "cell"))
        while left or waiting:
            while left and len(waiting) < workers and time.monotonic() < deadline:
                cell = left.pop(0)
                name = work.__module__, work.__qualname__
                waiting[pool.submit(do_cell, *name, dict(cell.settings), str(self.shared))] = cell
            if not waiting:
                break
            for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                cell = waiting.pop(done)
                try:
                    result = finite(done.result())
                except UserError as error:
                    self.failed.append(f"{cell.name}: {error}")
                else:
                    self._keep(cell, result)
                    results[cell.name] = result
                    self._finished += 1
                self.advance(cell.seconds, cell.name)
        if left:
            further = "run the same command again to continue" if self.budget else "they run with a `budget`"
            self.failed.append(f"Not reached within {self.budget:g} min: {named(left)}; {further}.")

    def _kept(self, cell: StudyCell) -> dict[str, Any] | None:
        """The stored result of a cell with the same settings."""
        try:
            kept = json.loads(self._path(cell).read_text())
            if kept["settings"] != _plain(cell.settings):
                return None
            result = dict(kept["result"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        if "provenance" in kept:  # not in files of older versions
            self._made.append(kept["provenance"])
        return result

    def _keep(self, cell: StudyCell, result: dict[str, Any]) -> None:
        made = asdict(Provenance.here(("study", self.study)))
        self._made.append(made)
        text = json.dumps({"settings": _plain(cell.settings), "result": result, "provenance": made}, indent=1) + "\n"
        write_whole(self._path(cell), text.encode(), "the cell")

    def _path(self, cell: StudyCell) -> Path:
        return self.folder / f"{cell.name.replace('/', '-').replace(' ', '-')}.json"


def named(cells: Sequence[StudyCell]) -> str:
    """How many they are, and the names of the first."""
    names = [cell.name for cell in cells[:NAMED]] + (["…"] if len(cells) > NAMED else [])
    return f"{counted(len(cells), 'cell')} ({', '.join(names)})"


def do_cell(module: str, work: str, settings: dict[str, Any], folder: str) -> dict[str, Any]:
    """In a child process: the result of a cell."""
    return getattr(importlib.import_module(module), work)(settings, Path(folder))


def _plain(settings: Mapping[str, Any]) -> Any:
    """After a round trip through JSON."""
    return json.loads(json.dumps(settings))
