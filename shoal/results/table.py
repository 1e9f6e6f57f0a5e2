"""Tables with units."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Column:
    """A column's name, unit and number format."""

    name: str
    unit: str = ""
    format: str = ""
    """Format specification of numbers, such as .1f; by default four significant digits."""

    @property
    def heading(self) -> str:
        """The name with the unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def texts(self, values: Sequence[Value]) -> list[str]:
        """The column as text, its numbers in one notation: with exponents if one of them needs that."""
        texts = [self.text(value) for value in values]
        exponents = ["e" in text for text, value in zip(texts, values, strict=True) if isinstance(value, float)]
        if not any(exponents):
            return texts
        numbers = [isinstance(value, float) and value for value in values]
        return [f"{value:.2e}" if value else text for value, text in zip(numbers, texts, strict=True)]

    def text(self, value: Value) -> str:
        if value is None:
            return "–"
        if isinstance(value, str | bool):
            return str(value)
        if self.format:
            text = format(value, self.format)
            few_digits = self.format.endswith("g") and "e+" in text and abs(value) < 1e6
            return f"{value:,.0f}" if few_digits else text  # 2,480 instead of 2.48e+03
        if isinstance(value, float):
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        return f"{value:,}"


def share_text(share: float) -> str:
    """A share as a percentage with three significant digits, or "<0.001%"."""
    return "0" if share == 0 else "<0.001%" if share < 1e-5 else f"{100 * share:.3g}%"


def estimate_text(mean: float | None, half: float | None, digits: int = 2) -> str:
    """A mean with the half-width of its interval, as far as they are known."""
    if mean is None:
        return "–"
    text = f"{mean:z,.{digits}f}"
    return text if half is None or half != half else f"{text} ± {half:,.{digits}f}"


@dataclass(frozen=True)
class Table:
    """Rows of values under named columns."""

    title: str
    columns: list[Column]
    rows: list[list[Value]]

    @classmethod
    def of(cls, title: str, rows: Sequence[Mapping[Any, Any]], named: Mapping[str, Column] | None = None) -> "Table":
        """A table from rows that all have the same keys: columns, or names of columns, perhaps of those in `named`."""
        columns = [
            key if isinstance(key, Column) else (named or {}).get(key, Column(key.replace("_", " ")))
            for key in (rows[0] if rows else ())
        ]
        return cls(title, columns, [list(row.values()) for row in rows])

    @classmethod
    def of_texts(cls, title: str, lines: Sequence[tuple[str, ...]]) -> "Table":
        """A table of texts with the first line as its header."""
        return cls(title, [Column(name) for name in lines[0]], [list(line) for line in lines[1:]])

    def records(self) -> list[dict[str, Value]]:
        """The rows, each value under its column's heading."""
        return [dict(zip((column.heading for column in self.columns), row, strict=True)) for row in self.rows]
