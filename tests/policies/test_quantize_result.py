"""A policy at many widths as a table and figures."""

import math
from dataclasses import replace

from shoal.policies.quantize import (
    WeightHistogram,
    WidthRecord,
    WidthTable,
    return_panel,
    weights_panel,
    width_result,
)
from shoal.quantization.export import correction_words


def row(precision, bits, what, mean, half=1.0):
    return WidthRecord(precision, bits, what, mean, half, (100 - mean) / 100, 0.9, None, 10)


ROWS = [
    row("float32", 32, "none", 100.0),
    row("8 bits", 8, "trained", 98.0, math.nan),
    row("4 bits", 4, "both", 50.0),
    row("E4M3", 8, "both", 90.0),
    row("8 bits", 8, "both", 99.0),
]


def test_widths_are_plotted_widest_first():
    panel = return_panel(ROWS)
    assert panel.ticks == ["8", "E4M3", "4"] and panel.rings
    trained, both = panel.series
    assert trained.values == [98.0, None, None] and trained.halves == [None] * 3  # one episode has no interval
    assert both.values == [99.0, 90.0, 50.0] and both.hollow == [False, True, False]
    assert (panel.level, panel.level_half) == (100.0, 1.0)
    assert not return_panel(ROWS[:3]).rings
    assert return_panel(ROWS[:1]).series == []  # interrupted


def test_corrected_rows_are_separate_lines():
    fixed = [replace(ROWS[4], corrected=True), replace(ROWS[4], corrected=True, rounding="output-error")]
    labels = [series.label for series in return_panel([*ROWS, *fixed]).series]
    assert labels == ["trained", "both", "both, bias corrected", "both, bias and rounding corrected"]
    assert correction_words(False, "output-error") == "rounding" and correction_words(False, "nearest") == "–"


def test_histogram_has_one_more_edge_than_counts():
    panel = weights_panel(WeightHistogram("0", [2, 3], 0.0, 1.0, -1.0, 2.0, [1, 2, 3]))
    assert panel.title == "0  (2 × 3)" and panel.series[0].at == [-1.0, 0.0, 1.0, 2.0]


def test_table_of_widths():
    result = width_result(WidthTable("ppo.zip", "CartPole-v1", 5, 1, 10, "calibrated", ROWS, [], []), "paper")
    (table,) = result.tables
    assert table.title == "ppo.zip in CartPole-v1, 5 episodes each"
    shown = [[column.text(value) for column, value in zip(table.columns, cells, strict=True)] for cells in table.rows]
    assert shown[2] == ["4 bits", "both", "–", "50.00", "± 1.00", "+50.0%", "90.0%", "–", "10", "–"]
    assert (
        not result.findings
        and shown[1][4] == "–"
        and result.data["style"] == "paper"
        and result.data["rows"][0]["precision"] == "float32"
    )
    small = [replace(one, return_mean=one.return_mean / 1000, return_ci95=0.00123) for one in ROWS]
    (table,) = width_result(WidthTable("run", "world", 5, 1, 10, "calibrated", small, [], []), "paper").tables
    assert [table.columns[3].text(table.rows[2][3]), table.rows[2][4]] == ["0.0500", "± 0.0012"]


def test_files_without_savings_are_reported_once_per_precision():
    full = replace(ROWS[0], bytes=400, file_bytes=2000)
    small = replace(ROWS[4], bytes=100, file_bytes=2600)
    fixed = replace(small, corrected=True, file_bytes=2650)  # as `shoal export` writes it
    packed = [replace(row("4 bits", bits, "weights", 50.0), bytes=60, file_bytes=2400 + bits) for bits in (4, 2)]
    table = WidthTable("ppo.zip", "CartPole-v1", 5, 1, 10, "calibrated", [full, small, fixed, *packed], [], [])
    int8, two = width_result(table, "standard").findings
    assert "int8 file (2,650 bytes, 100 of them weights) is not smaller than the float32 one (2,000 bytes)" in int8
    assert "The 2-bit packed file (2,402 bytes, 60 of them weights) is not smaller" in two
    smaller = replace(table, rows=[full, replace(small, file_bytes=1999)])
    assert not width_result(smaller, "standard").findings
