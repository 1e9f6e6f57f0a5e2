"""The result type, with where it comes from and a JSON form that can be read back."""

import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

from shoal import __version__
from shoal.errors import UserError
from shoal.results.figure import Figure, Panel, Series
from shoal.results.table import Column, Table
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

        command, now = shlex.join(["shoal", *words]), datetime.now(UTC).isoformat(timespec="seconds")
        packages = {name: importlib.metadata.version(name) for name in PACKAGES}
        memory = None
        with contextlib.suppress(AttributeError, ValueError, OSError):
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return cls(command, __version__, now, usable_processors(), processor_name()[0], memory, packages)


@dataclass(frozen=True)
class Result:
    """Tables, findings and figures, the data behind them, and their provenance."""

    name: str
    title: str
    tables: list[Table] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    """Sentences; in studies they compare with the papers and say whether their claims hold."""
    figures: list[Figure] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    """The measured data, as plain values."""
    provenance: Provenance | None = None

    def made_by(self, *words: str) -> "Result":
        """A copy with its provenance: this command line, run now on this machine."""
        return replace(self, provenance=Provenance.here(words))

    def to_json(self, nested: bool = False) -> dict[str, Any]:
        """Plain values; the data at top level, or `nested` under the key `data`."""
        stored = {
            "name": self.name,
            "title": self.title,
            "tables": [[table.title, table.records()] for table in self.tables],
            "columns": [[asdict(column) for column in table.columns] for table in self.tables],
            "findings": self.findings,
            "figures": [asdict(figure) for figure in self.figures],
            "provenance": self.provenance and asdict(self.provenance),
        }
        return stored | {"data": self.data} if nested else self.data | stored

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Result":
        """The inverse of `to_json`; from files of older versions only the data."""
        names = {"columns", *(field.name for field in fields(cls))}
        data = stored.get("data", {key: value for key, value in stored.items() if key not in names})
        if "columns" not in stored:
            return cls(str(stored.get("name", "")), str(stored.get("title", "")), data=data)
        try:
            tables = [
                Table(title, [Column(**column) for column in columns], [list(record.values()) for record in records])
                for (title, records), columns in zip(stored["tables"], stored["columns"], strict=True)
            ]
            figures = [_figure(figure) for figure in stored["figures"]]
            provenance = stored["provenance"] and Provenance(**stored["provenance"])
            return cls(stored["name"], stored["title"], tables, list(stored["findings"]), figures, data, provenance)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"This is not a result that Shoal wrote: {error!r} is missing or wrong.") from None


def _figure(stored: dict[str, Any]) -> Figure:
    panels = [Panel(**{**panel, "series": [Series(**one) for one in panel["series"]]}) for panel in stored["panels"]]
    return Figure(**{**stored, "panels": panels})
