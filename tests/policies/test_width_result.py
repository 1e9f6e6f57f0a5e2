"""A policy at many widths as a table and figures."""

import math
from dataclasses import replace

from shoal.policies.width_result import correction_words, return_panel, weights_panel, width_result
from shoal.policies.widths import Row, WeightHistogram, WidthTable


def row(precision, bits, what, mean, half=1.0):
    return Row(precision, bits, what, mean, half, (100 - mean) / 100, 0.9, None, 10)


ROWS = [
    row("float32", 32, "none", 100.0),
    row("8 bits", 8, "trained", 98.0, math.nan),
    row("4 bits", 4, "both", 50.0),
    row("E4M3", 8, "both", 90.0),
    row("8 bits", 8, "both", 99.0),
]


def test_widest_first_and_formats_as_rings_behind_integers_of_their_width():
    panel = return_panel(ROWS)
    assert panel.ticks == ["8", "E4M3", "4"] and panel.rings
    trained, both = panel.series
    assert trained.values == [98.0, None, None] and trained.halves == [None] * 3  # one episode has no interval
    assert both.values == [99.0, 90.0, 50.0] and both.hollow == [False, True, False]
    assert (panel.level, panel.level_half) == (100.0, 1.0)
    assert not return_panel(ROWS[:3]).rings
    assert return_panel(ROWS[:1]).series == []  # interrupted


def test_corrected_rows_are_lines_of_their_own():
    fixed = [replace(ROWS[4], corrected=True), replace(ROWS[4], corrected=True, rounding="output-error")]
    labels = [series.label for series in return_panel([*ROWS, *fixed]).series]
    assert labels == ["trained", "both", "both, bias corrected", "both, bias and rounding corrected"]
    assert correction_words(False, "output-error") == "rounding" and correction_words(False, "nearest") == "–"


def test_a_histogram_has_an_edge_more_than_counts():
    panel = weights_panel(WeightHistogram("0", [2, 3], 0.0, 1.0, -1.0, 2.0, [1, 2, 3]))
    assert panel.title == "0  (2 × 3)" and panel.series[0].at == [-1.0, 0.0, 1.0, 2.0]


def test_the_table():
    result = width_result(WidthTable("ppo.zip", "CartPole-v1", 5, 1, 10, "calibrated", ROWS, [], []), "paper")
    (table,) = result.tables
    assert table.title == "ppo.zip in CartPole-v1, 5 episodes each"
    shown = [[column.text(value) for column, value in zip(table.columns, cells, strict=True)] for cells in table.rows]
    assert shown[2] == ["4 bits", "both", "–", "50", "± 1.0", "+50.0%", "90.0%", "–", "10", "–"]
    assert (
        not result.findings
        and shown[1][4] == "–"
        and result.data["style"] == "paper"
        and result.data["rows"][0]["precision"] == "float32"
    )


def test_a_file_in_int8_that_saves_nothing_is_said_once():
    found = [replace(ROWS[0], bytes=400, file_bytes=2000), replace(ROWS[4], bytes=100, file_bytes=2600)]
    table = WidthTable("ppo.zip", "CartPole-v1", 5, 1, 10, "calibrated", [*found, found[1]], [], [])
    (sentence,) = width_result(table, "standard").findings
    assert "int8 file (2,600 bytes, 100 of them weights) is not smaller than the float32 one (2,000 bytes)" in sentence
    smaller = replace(table, rows=[found[0], replace(found[1], file_bytes=1999)])
    assert not width_result(smaller, "standard").findings
