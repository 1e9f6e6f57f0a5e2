"""Cost of MAC units as tables and JSON, and in the documentation."""

import json
from pathlib import Path

import pytest

from shoal.errors import UserError
from shoal.numerics.hardware.area import fits, mac_cost
from shoal.numerics.hardware.report import compare, cost_json, fit_lines


def test_comparison_of_units() -> None:
    comparison = compare(["fp32", "E5M2:5+E6M5", "E5M2:5+Q8.13", "E5M2:5+Q8.12"])
    (table,) = comparison.tables
    fp32, e6m5, q8_13, q8_12 = table.rows
    header = [column.name for column in table.columns]
    assert len({len(row) for row in (header, *table.rows)}) == 1
    assert fp32 == ["E8M23+E8M23", "374", "–", "189", "563", "36,032", "58,420", "0.0%", "320", "4.6"]
    assert dict(zip(header, e6m5, strict=True))["system"] == "42,640"
    assert dict(zip(header, q8_13, strict=True)) | {"converter": "81", "accumulator": "55", "saved": "25.6%"} == dict(
        zip(header, q8_13, strict=True)
    )
    assert dict(zip(header, q8_12, strict=True))["accumulator"] == "54 ±2 i"
    assert any("CFG-2 to 6" in note for note in comparison.findings)
    assert len(compare(["fp32"]).findings) == 2
    assert json.loads(json.dumps(comparison.data)) == comparison.data
    assert (
        comparison.data["units"][1]["areas"]["system"] | {"luts": 42_640, "kind": "tabulated"}
        == (comparison.data["units"][1]["areas"]["system"])
    )
    assert cost_json(mac_cost("E5M2:5+E6M5"))["areas"]["converter"] is None
    assert len(fit_lines()) == 1 + len(fits())


def test_documentation_shows_the_computed_table() -> None:
    text = (Path(__file__).parents[3] / "docs" / "numerics.md").read_text(encoding="utf-8")
    for line in fit_lines()[1:]:
        assert f"| {line[1]} | {line[2]} |" in text
    for row in compare(["fp32", "E5M2:5+E6M5", "E5M2:5+Q8.13", "E5M2:5+Q11.13"]).tables[0].rows:
        assert f"| {' | '.join(map(str, row))} |" in text


def test_comparison_without_units() -> None:
    for units in ([], "E5M2:5+E6M5"):
        with pytest.raises(UserError, match="at least one MAC unit"):
            compare(units)
