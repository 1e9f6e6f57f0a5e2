"""Tables fit into the room there is: texts are wrapped before columns are moved, and every part names its rows."""

import re

import pytest

from shoal.numerics.describe import describe_name
from shoal.results import Column, Table
from shoal.results.layout import INDENT, layout
from shoal_papers.cells import Options
from shoal_papers.mac import frameworks

TEXT = "Sun et al., Hybrid 8-bit Floating Point (HFP8) Training and Inference, NeurIPS 2019"


def widths(parts):
    """Characters of each part with its borders."""
    return [sum(column.width + 3 for column in part) + 1 for part in parts]


def words(text):
    return text.split()


@pytest.mark.parametrize("room", [60, 80, 120, 200])
@pytest.mark.parametrize(
    "table",
    [*describe_name("hfp8", None).tables, *frameworks.Frameworks().run(True, lambda *_: None, Options()).tables],
    ids=lambda table: table.title,
)
def test_tables_of_texts_fit_and_keep_every_word(table, room):
    parts = layout(table, room)
    assert max(widths(parts)) <= room
    assert all(words(part[0].heading) == words(table.columns[0].heading) for part in parts)  # names its rows
    found = {" ".join(words(column.heading)): column.cells for part in parts for column in part}
    for number, column in enumerate(table.columns):
        cells = [" ".join(words(cell)) for cell in found[column.heading]]
        assert cells == [" ".join(words(str(row[number]))) for row in table.rows]
    if len(table.columns) == 2 or room >= 120:
        assert len(parts) == 1


def test_the_first_column_stays_whole_beside_a_long_text():
    table = Table.of("T", [{"role": "gradients of activations", "source": TEXT}, {"role": "a", "source": "b"}])
    ((role, source),) = layout(table, 60)
    assert role.cells == ["gradients of activations", "a"] and source.cells[1] == "b"
    first, *rest = source.cells[0].split("\n")
    assert rest and all(line.startswith(INDENT) for line in rest) and not first.startswith(" ")


def test_headings_are_folded_before_cells_are_wrapped():
    table = Table.of("T", [{"name": "a text of words", "time of a whole update": 1.5}])
    ((name, time),) = layout(table, 32)
    assert name.cells == ["a text of words"] and time.heading == "time of a\nwhole\nupdate"


def test_numbers_and_short_texts_are_moved_rather_than_wrapped():
    table = Table.of("T", [{"team": f"t {k}", **{f"{m}": "-12.25 ± 3.50" for m in "abcdefg"}} for k in range(2)])
    parts = layout(table, 60)
    assert len(parts) > 1 and max(widths(parts)) <= 60
    assert [column.heading for part in parts for column in part if column.heading != "team"] == list("abcdefg")
    assert all(part[0].cells == ["t 0", "t 1"] for part in parts)
    assert not any("\n" in cell for part in parts for column in part for cell in column.cells)


def test_wide_first_column_is_repeated():
    rows = [{"command": f"{TEXT} {k}", "why": f"{TEXT}, {k}", **{f"number {n}": 1e6 for n in range(6)}} for k in (1, 2)]
    parts = layout(Table.of("T", rows), 60)
    assert len(parts) > 1 and max(widths(parts)) <= 60
    assert all(words(part[0].cells[0]) == words(f"{TEXT} 1") and len(part) > 1 for part in parts)


def test_missing_texts_do_not_prevent_wrapping():
    ((_, why),) = layout(Table("T", [Column("a"), Column("why")], [["x", None], ["y", TEXT]]), 40)
    assert why.words and why.cells[0] == "–" and re.sub(r"\s+", " ", why.cells[1]) == TEXT


@pytest.mark.parametrize("rows", [[], [{}]])
def test_empty_table(rows):
    assert layout(Table.of("T", rows), 80) == [[]]
