"""Columns write their values; rows carry their columns."""

from typing import Annotated, TypedDict

import pytest

from shoal.results import Column, Table


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        (Column("a"), None, "–"),
        (Column("a"), "3 *", "3 *"),
        (Column("a"), True, "True"),
        (Column("a"), 12_345, "12,345"),
        (Column("a"), 12_345.6, "12,346"),
        (Column("a"), 0.123456, "0.1235"),
        (Column("a", format=".1%"), 0.12345, "12.3%"),
        (Column("a", format="+z.1%"), -1e-9, "+0.0%"),
        (Column("a", "ms", ",.1f"), 1234.56, "1,234.6"),
        (Column("a", "ms", ",.1f"), "3 *", "3 *"),
        (Column("a", "ms", ",.1f"), None, "–"),
    ],
)
def test_values_in_words(column, value, text):
    assert column.text(value) == text


class Row(TypedDict):
    agents: int
    update_ms: Annotated[float, Column("update", "ms", ".1f")]
    of_goal: float | None


def test_columns_of_typed_rows_and_of_names():
    rows: list[Row] = [{"agents": 3, "update_ms": 1.25, "of_goal": None}, {"agents": 6, "update_ms": 2.0, "of_goal": 1}]
    table = Table.of("T", rows, Row)
    assert [column.heading for column in table.columns] == ["agents", "update, ms", "of goal"]
    assert table.rows == [[3, 1.25, None], [6, 2.0, 1]]
    assert table.records()[0] == {"agents": 3, "update, ms": 1.25, "of goal": None}
    assert Table.of("T", [], Row).columns == table.columns
    mixed = Table.of("T", [{Column("x", "%"): 1, "y_z": 2}])
    assert mixed.columns == [Column("x", "%"), Column("y z")]
    assert Table.of("T", []) == Table("T", [], [])


def test_texts():
    table = Table.of_texts("T", [("a", "b"), ("1", "2")])
    assert table.records() == [{"a": "1", "b": "2"}]
