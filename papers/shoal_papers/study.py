"""What a study is: a title, what it measures, and the tables, findings and figures that it makes of that.

A subclass that is declared with a name, `class Growth(ProfileStudy, name="growth")`, is the study of that name. There
are two kinds: of cells (here), and of a profile (`marl/times.py`).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from shoal.results import Figure, Panel, Result, Table
from shoal.waiting import Advance
from shoal_papers.cells import Cells, Options, StudyCell

Data = Mapping[str, Any]
"""What a study has measured, as the plain values of its JSON file: `--data` shows them again later."""


class Study:
    """A table or figure of a paper, redrawn."""

    named: ClassVar[dict[str, "Study"]] = {}
    """All studies of the modules that have been imported."""
    name: str
    title: str

    def __init_subclass__(cls, name: str = "") -> None:
        """Register the study."""
        if name:
            cls.name = name
            Study.named[name] = cls()

    def length(self, quick: bool, options: Options) -> float:
        """Approximate seconds: the total of the amounts passed to `advance`."""
        raise NotImplementedError

    def run(self, quick: bool, advance: Advance, options: Options) -> Result:
        """Measure, and show it."""
        raise NotImplementedError

    def result(self, data: Data) -> Result:
        """Show what was measured before."""
        raise NotImplementedError


class CellStudy(Study):
    """A study of cells: every one takes minutes at most, and is kept in a file of its own."""

    caption = ""
    """Title of the figure, if it is not the study's."""
    folder = ""
    """Folder of the cells, if several studies share it."""
    workers: int | None = None
    """Cells that run at the same time; None: one per processor."""
    names_machines = False
    """Say on which machines the cells were measured."""

    # ---- what is measured

    def cells(self, quick: bool, options: Options) -> list[StudyCell]:
        """All cells, the most important ones first."""
        raise NotImplementedError

    @staticmethod
    def work(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Compute a cell from its settings, in a process of its own; `folder` is for files that cells share."""
        raise NotImplementedError

    def record(self, cell: StudyCell, result: dict[str, Any]) -> dict[str, Any]:
        """What the data hold of a finished cell."""
        return {"cell": cell.name, **result}

    def length(self, quick: bool, options: Options) -> float:
        """The seconds of all cells, one after the other."""
        return sum(cell.seconds for cell in self.cells(quick, options))

    def measured(self, quick: bool, advance: Advance, options: Options) -> dict[str, Any]:
        """The data of all finished cells."""
        done = Cells(self.name, quick, options, advance, self.folder)
        data = {**self.computed(done, quick, options), "failed": done.failed, "interrupted": done.interrupted}
        return data | {"machines": done.machines()} if self.names_machines else data

    def computed(self, done: Cells, quick: bool, options: Options) -> dict[str, Any]:
        """Run the cells; some studies have several kinds of them."""
        cells = self.cells(quick, options)
        return {"rows": self.records(cells, done.run(cells, self.work, self.workers))}

    def records(self, cells: Iterable[StudyCell], results: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """The records of the finished ones of these cells."""
        return [self.record(cell, results[cell.name]) for cell in cells if cell.name in results]

    # ---- what is shown

    def view(self, data: Data) -> Any:
        """The data in the form that the tables, findings and figures take."""
        return data["rows"]

    def tables(self, view: Any) -> list[Table]:
        """Tables; empty ones are left out."""
        raise NotImplementedError

    def findings(self, view: Any) -> Iterable[str]:
        """Sentences that compare with the paper and say whether its claims hold."""
        raise NotImplementedError

    def panels(self, view: Any) -> list[Panel]:
        """The panels of the only figure."""
        raise NotImplementedError

    def figures(self, view: Any) -> list[Figure]:
        """Usually a single one."""
        return [Figure(self.name, self.caption or self.title, self.panels(view))]

    def run(self, quick: bool, advance: Advance, options: Options) -> Result:
        """Run the cells, and show them."""
        return self.result(self.measured(quick, advance, options))

    def result(self, data: Data) -> Result:
        """Show the data; what could not be measured is said last."""
        view = self.view(data)
        findings = [*self.findings(view), *data.get("machines", []), *data["failed"]]
        return Result(self.name, self.title, self.tables(view), findings, self.figures(view), {**data})
