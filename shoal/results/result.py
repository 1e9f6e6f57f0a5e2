"""One kind of result, with a JSON form that can be read again."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from shoal.errors import UserError
from shoal.results.figure import Figure, Panel, Series
from shoal.results.provenance import Provenance
from shoal.results.table import Column, Table


@dataclass(frozen=True)
class Result:
    """Tables, findings and figures, what they were made of, and where that comes from."""

    name: str
    title: str
    tables: list[Table] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    """Sentences: what was found, in the studies beside the papers' numbers and whether their claims hold."""
    figures: list[Figure] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    """What was measured, in plain values."""
    provenance: Provenance | None = None

    def made_by(self, *words: str) -> "Result":
        """The same with its provenance: the command with these words, run now on this machine."""
        return replace(self, provenance=Provenance.here(words))

    def to_json(self, nested: bool = False) -> dict[str, Any]:
        """Plain values; the data beside the rest, or `nested` under a key of their own."""
        held = {
            "name": self.name,
            "title": self.title,
            "tables": [[table.title, table.records()] for table in self.tables],
            "columns": [[asdict(column) for column in table.columns] for table in self.tables],
            "findings": self.findings,
            "figures": [asdict(figure) for figure in self.figures],
            "provenance": self.provenance and asdict(self.provenance),
        }
        return held | {"data": self.data} if nested else self.data | held

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> "Result":
        """What `to_json` gave; of files of older versions the data alone."""
        own = {"columns", *(one.name for one in fields(cls))}
        data = held.get("data", {key: value for key, value in held.items() if key not in own})
        if "columns" not in held:
            return cls(str(held.get("name", "")), str(held.get("title", "")), data=data)
        try:
            return cls(
                held["name"],
                held["title"],
                [
                    _table(title, records, columns)
                    for (title, records), columns in zip(held["tables"], held["columns"], strict=True)
                ],
                list(held["findings"]),
                [_figure(figure) for figure in held["figures"]],
                data,
                held["provenance"] and Provenance(**held["provenance"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"This is not a result that Shoal wrote: {error!r} is missing or wrong.") from None


def _table(title: str, records: list[dict[str, Any]], columns: list[dict[str, str]]) -> Table:
    return Table(title, [Column(**column) for column in columns], [list(record.values()) for record in records])


def _figure(held: dict[str, Any]) -> Figure:
    panels = [Panel(**{**panel, "series": [Series(**one) for one in panel["series"]]}) for panel in held["panels"]]
    return Figure(**{**held, "panels": panels})
