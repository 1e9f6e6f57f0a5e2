"""Tables that fit into a number of characters: headings are folded, then texts wrapped, and only then columns moved.

Columns that still do not fit go into a further part of the table, which begins with those that name the rows again.
"""

import itertools
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shoal.errors import printable
from shoal.results.table import Table

NARROWEST_HEADING = 7  # headings are folded to no less than this
READABLE = 16  # texts are wrapped to no less than this, if columns can be moved into another part instead
INDENT = "  "  # before all lines of a wrapped text but the first


@dataclass(frozen=True)
class Texts:
    """A column as it is printed; lines end with a newline character."""

    heading: str
    cells: list[str]
    words: bool  # it has nothing but words, which can be wrapped
    names: bool  # it can tell rows apart: words or whole numbers

    @property
    def width(self) -> int:
        """Of the longest line."""
        return _longest((self.heading, *self.cells))

    def folded(self, width: int) -> "Texts":
        """The heading on as many lines as this width asks for, if cells and words are not wider anyway."""
        width = max(width, _longest(re.split(" |(?<=-)", self.heading)), _longest(self.cells))
        return replace(self, heading=textwrap.fill(self.heading, width, break_long_words=False))

    def wrapped(self, width: int) -> "Texts":
        """Cells of words, and then the heading, on as many lines as this width asks for."""
        wrap = textwrap.TextWrapper(width, subsequent_indent=INDENT, break_on_hyphens=False, replace_whitespace=False)
        cells = [wrap.fill(text) if len(text) > width else text for text in self.cells] if self.words else self.cells
        return replace(self, cells=cells).folded(width)

    def least(self, floor: int) -> int:
        """The smallest width to which it can be wrapped without breaking a word; cells to no less than `floor`."""
        words = [INDENT + word for text in self.cells for word in text.split()] if self.words else self.cells
        cells = min(_longest(self.cells), max(floor, _longest(words)))
        return max(cells, replace(self, cells=[]).folded(NARROWEST_HEADING).width)


def layout(table: Table, room: int) -> list[list[Texts]]:
    """The columns of the table's parts; one part if possible."""
    columns = [_texts(table, number) for number in range(len(table.columns))]
    return [_fitted(part, room) for part in _parts(columns, room)]


def _texts(table: Table, number: int) -> Texts:
    column, values = table.columns[number], [row[number] for row in table.rows]
    words = all(isinstance(value, str | None) for value in values) and set(values) != {None}
    names = all(isinstance(value, str | int) for value in values)
    return Texts(column.heading, [printable(text) for text in column.texts(values)], words, names)


def _parts(columns: list[Texts], room: int) -> list[list[Texts]]:
    """The columns in parts that fit, if they can be made to; each begins with the columns that name the rows."""

    def fits(chosen: Sequence[Texts], room: int = room) -> bool:
        return _total(column.least(READABLE) for column in chosen) <= room

    if fits(columns):
        return [columns]
    names = _names(columns)
    while len(names) > 1 and (not fits(names, room // 2) or len(names) == len(columns)):
        names.pop()
    parts = [names]
    for column in columns[len(names) :]:
        if parts[-1] is not names and not fits([*parts[-1], column]):
            parts.append(names)
        parts[-1] = [*parts[-1], column]
    return parts


def _names(columns: Sequence[Texts]) -> list[Texts]:
    """The first columns of words or whole numbers, as many as it takes to tell all rows apart; at least one."""
    names = list(columns[:1])
    for column in itertools.takewhile(lambda column: column.names, columns[1:]):
        rows = list(zip(*(name.cells for name in names), strict=True))
        if len(set(rows)) == len(rows):
            break
        names.append(column)
    return names


def _fitted(columns: list[Texts], room: int) -> list[Texts]:
    """The columns with headings folded, and then cells wrapped, no more than they must be to fit."""
    longest = _longest(column.heading for column in columns)
    for width in range(max(longest, NARROWEST_HEADING), NARROWEST_HEADING - 1, -1):
        folded = [column.folded(width) for column in columns]
        if _total(column.width for column in folded) <= room:
            return folded
    widest, first = max(column.width for column in columns), columns[0].width
    keep = first if first <= room // 2 else 0  # the names of the rows stay whole if they can
    for floor, kept in ((READABLE, keep), (READABLE, 0), (0, 0)):
        least = [column.least(floor) for column in columns]
        least[0] = max(least[0], kept)
        for width in range(widest, 0, -1):
            widths = [min(column.width, max(width, low)) for column, low in zip(columns, least, strict=True)]
            if _total(widths) <= room:
                return [column.wrapped(width) for column, width in zip(columns, widths, strict=True)]
    return [column.wrapped(column.least(0)) for column in columns]


def _total(widths: Iterable[int]) -> int:
    """Of a table whose columns have these widths, with their borders."""
    return sum(width + 3 for width in widths) + 1


def _longest(texts: Iterable[str]) -> int:
    """Characters of the longest line."""
    return max((len(line) for text in texts for line in text.split("\n")), default=0)
