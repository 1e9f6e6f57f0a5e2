"""Columns write their values; rows carry their columns."""

import pytest

from shoal.results import Column, Table, share_text


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
def test_formatting_of_values(column, value, text):
    assert column.text(value) == text


def test_columns_share_a_notation():
    assert Column("a").texts([0.04, 0.0, None, 4e-5, 3, "x"]) == ["4.00e-02", "0", "–", "4.00e-05", "3", "x"]
    assert Column("a", "%", ".2g").texts([0.04, 4e-5]) == ["4.00e-02", "4.00e-05"]
    assert Column("a", "%", ".2g").texts([7.65, 213.0, 0.0]) == ["7.7", "213", "0"]  # no exponent needed
    assert Column("a", format=".3g").texts([82.2, 18_300.0, 4e7]) == ["8.22e+01", "1.83e+04", "4.00e+07"]
    assert Column("a").texts([0.04, 12.5, "one"]) == ["0.04", "12.5", "one"]
    assert Column("a", format=".1%").texts([0.04, 4e-5]) == ["4.0%", "0.0%"]


def test_columns_of_names_some_of_which_are_described():
    rows = [{"agents": 3, "update_ms": 1.25, "of_goal": None}, {"agents": 6, "update_ms": 2.0, "of_goal": 1}]
    table = Table.of("T", rows, {"update_ms": Column("update", "ms", ".1f"), "other": Column("unused")})
    assert [column.heading for column in table.columns] == ["agents", "update, ms", "of goal"]
    assert table.rows == [[3, 1.25, None], [6, 2.0, 1]]
    assert table.records()[0] == {"agents": 3, "update, ms": 1.25, "of goal": None}
    mixed = Table.of("T", [{Column("x", "%"): 1, "y_z": 2}])
    assert mixed.columns == [Column("x", "%"), Column("y z")]
    assert Table.of("T", []) == Table("T", [], [])


def test_text_columns():
    table = Table.of_texts("T", [("a", "b"), ("1", "2")])
    assert table.records() == [{"a": "1", "b": "2"}]


def test_shares_have_one_notation():
    shares = (0, 1, 0.9996, 0.12345, 0.0004, 1.23e-4, 4.3e-5, 1e-5, 9e-6)
    assert [share_text(share) for share in shares] == [
        "0", "100%", "100%", "12.3%", "0.04%", "0.0123%", "0.0043%", "0.001%", "<0.001%",
    ]  # fmt: skip
