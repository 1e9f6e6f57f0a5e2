"""One renderer draws every kind of series."""

import matplotlib
import pytest
from matplotlib.figure import Figure as Canvas

from shoal.report import panels
from shoal.report.panels import draw_figure, draw_figures
from shoal.results import Figure, Panel, Result, Series
from shoal.results.figure import COLOURS, INK

TICKS = ["3", "6"]
EPISODES = list(range(50))
PANELS = [
    Panel("lines", "%", [Series("a", [1.0, None], halves=[0.1, None]), Series("b", [2.0, 3.0])], ticks=TICKS),
    Panel("level", "", [Series("a", [1.0, 2.0])], ticks=TICKS, level=1.0, level_label="full", level_half=0.5),
    Panel("rings", "", [Series("a", [1.0, 2.0], hollow=[True, False])], ticks=TICKS, points=True, rings="formats"),
    Panel("bars", "", [Series("a", [1, -2], "bars", paper=[2, None]), Series("b", [1, 1], "bars")], ticks=TICKS),
    Panel("stack", "%", [Series("a", [90, 40], "stack"), Series("b", [10, 60], "stack")], ticks=TICKS),
    Panel("band", "", [Series("a", [1.0] * 50, at=EPISODES, low=[0.5] * 50, high=[2.0] * 50)], "episode"),
    Panel("histogram", "", [Series("w", [1, 5, 2], "steps", [0.0, 1.0, 2.0, 3.0])]),
    Panel("spans", "", [Series("", [0.1, 0.01], "spans", [10, 20], low=[0.01, 0.001], texts=["1", "2"])], log=True),
]


@pytest.fixture
def canvas(monkeypatch):
    """The canvas of the last figure."""
    made = []

    class Kept(Canvas):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(matplotlib.figure, "Figure", Kept)
    return lambda: made[-1]


def test_every_panel_kind_in_one_figure(canvas, tmp_path):
    figure = Figure("all", "Everything", PANELS, key=["1  one", "2  two"])
    (path,) = draw_figures(Result("all", "", figures=[figure]), tmp_path, "-quick")
    assert path.name == "all-quick.png" and path.stat().st_size > 20_000
    below, beside = canvas().legends
    assert [text.get_text() for text in below.get_texts()] == ["a", "b", "w", "full", "formats", "papers"]
    assert [text.get_text() for text in beside.get_texts()] == figure.key
    shown = {panel.title: axes for panel, axes in zip(PANELS, canvas().axes, strict=True)}
    assert [tick.get_text() for tick in shown["lines"].get_xticklabels()] == TICKS


def test_a_long_title_stays_in_the_picture(canvas, tmp_path):
    title = (
        "Return over bits, MADDPG in pettingzoo:"
        + 3 * "some_long_module."
        + ": means of 100 episodes with 95 % intervals"
    )
    draw_figure(Figure("a", title, [Panel("", "y", [Series("x", [1.0, 2.0])])]), tmp_path / "a.png")
    box = canvas()._suptitle.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= canvas().bbox.width


def test_a_legend_of_long_labels_stays_in_the_picture(canvas, tmp_path):
    lines = [Series(f"weights, bias and rounding corrected {k}", [float(k), 2.0]) for k in range(8)]
    draw_figure(Figure("x", "", [Panel("", "", lines, ticks=TICKS)]), tmp_path / "x.png")
    inside, legend = canvas().bbox, canvas().legends[0].get_window_extent()
    assert inside.x0 <= legend.x0 < legend.x1 <= inside.x1
    draw_figure(
        Figure("x", "", [Panel("", "", [Series("a", [1, 2]), Series("b", [2, 1])], ticks=TICKS)]), tmp_path / "x.png"
    )
    assert canvas().legends[0]._ncols == 2


def test_panels_keep_their_height_under_long_legends(canvas, tmp_path):
    def heights(*labels):
        lines = [Series(label, [1.0, 2.0], at=[0, 1]) for label in labels]
        draw_figure(Figure("x", "", [Panel("", "return", lines)]), tmp_path / "x.png")
        inside, legend, (axes,) = canvas().bbox, canvas().legends[0].get_window_extent(), canvas().axes
        assert inside.x0 <= legend.x0 < legend.x1 <= inside.x1 and legend.y1 < axes.get_tightbbox().y0
        return axes.bbox.height

    few = heights("a", "b")
    assert heights(*(f"learning_rate {k}, hidden 128x128, discount 0.9" for k in range(56))) >= 0.85 * few
    texts = [text.get_text() for text in canvas().legends[0].get_texts()]
    assert len(texts) == panels.MOST_LABELS + 1 and texts[-1] == f"… and {56 - panels.MOST_LABELS} more"
    assert heights(*(f"env_options {'number_WW, ' * 40}tau {k}" for k in range(2))) >= 0.85 * few
    texts = [text.get_text() for text in canvas().legends[0].get_texts()]
    assert all(text.count("\n") == 2 and "…" in text for text in texts)
    assert [text[-5:] for text in texts] == ["tau 0", "tau 1"]  # what tells them apart is kept


def test_lines_of_one_colour_differ_in_style(canvas, tmp_path):
    lines = [Series(str(k), [k, k + 1.0], at=[0, 1]) for k in range(12)]
    colours = panels._colours([Panel("", "", [Series(str(k), []) for k in range(panels.MOST_LABELS)])])
    styles = panels._styles(colours)
    assert len({(colours[label], styles[label]) for label in colours}) == panels.MOST_LABELS
    draw_figure(Figure("x", "", [Panel("", "", lines)]), tmp_path / "x.png")
    assert [line.get_linestyle() for line in canvas().axes[0].lines] == 9 * ["-"] + 3 * ["--"]


@pytest.mark.parametrize(("numbers", "whole"), [([1, 2, 3], True), ([2], True), ([0.5, 2, 3], False)])
def test_counts_have_ticks_at_whole_numbers(canvas, tmp_path, numbers, whole):
    draw_figure(Figure("x", "", [Panel("", "", [Series("a", numbers, at=numbers)])]), tmp_path / "x.png")
    (axes,) = canvas().axes
    for ticks, (low, high) in ((axes.get_xticks(), axes.get_xlim()), (axes.get_yticks(), axes.get_ylim())):
        seen = [tick for tick in ticks if low <= tick <= high]
        assert seen and all(tick == round(tick) for tick in seen) == whole


def test_labels_of_close_marks_are_on_the_outside(canvas, tmp_path):
    heights = [2.0, 1.0, 3.0, 4.0, 1.0, 5.0]
    spans = Series("", heights, "spans", [10, 20, 90, 90.5, 60, 30], low=heights, texts=list("abcdef"))
    draw_figure(Figure("x", "", [Panel("", "", [spans])]), tmp_path / "x.png")
    above = {text.get_text(): text.xyann[1] > 0 for text in canvas().axes[0].texts}
    assert above == {"a": True, "b": False, "c": False, "d": True, "e": True, "f": False}


def test_stacks_have_the_numbers_of_their_larger_parts(canvas, tmp_path):
    stack = [Series("a", [95.0, 40.0], "stack"), Series("b", [5.0, 60.0], "stack")]
    draw_figure(Figure("x", "", [Panel("", "%", stack, ticks=TICKS, above=["A", "B"])]), tmp_path / "x.png")
    assert [text.get_text() for text in canvas().axes[0].texts] == ["95", "40", "60", "A", "B"]


def test_long_lines_have_no_markers(canvas, tmp_path):
    def markers(count, **how):
        line = Series("a", [1.5] * count, at=list(range(count)), hollow=how.pop("hollow", []))
        draw_figure(Figure("x", "", [Panel("", "", [line], **how)]), tmp_path / "x.png")
        return {drawn.get_marker() for drawn in canvas().axes[0].lines}

    assert markers(20) == {"o"} and markers(21) == {""}
    assert markers(21, points=True) == markers(21, hollow=[True] * 21) == {"o"}  # there is nothing but markers


def test_maps_label_every_share(canvas, tmp_path):
    cells = [[0.0, 0.25], [None, 3e-6]]
    maps = [Panel(name, "", [], ticks=TICKS, rows=["conv", "linear"], cells=cells) for name in ("saturated", "other")]
    draw_figure(Figure("x", "", maps), tmp_path / "x.png")
    first, second = canvas().axes
    assert [text.get_text() for text in first.texts] == ["0", "25%", "", "<0.001%"]
    assert [label.get_text() for label in first.get_yticklabels()] == ["conv", "linear"]
    assert not any(label.get_text() for label in second.get_yticklabels())  # the same rows as beside it
    tall = Panel("", "", [], ticks=TICKS, rows=["row"] * 30, cells=[[0.0, 0.1]] * 30)
    draw_figure(Figure("x", "", [maps[0], tall]), tmp_path / "x.png")
    assert canvas().get_size_inches()[1] > 7


def test_a_label_has_one_colour_in_all_panels():
    first = Panel("", "", [Series("uniform", []), Series("neighbor", []), Series("half", [])])
    second = Panel("", "", [Series("half", []), Series("uniform", []), Series("dots", [], colour=INK)])
    third = Panel("", "", [Series("mine", [], colour=COLOURS[0])])
    both = {"uniform": COLOURS[0], "neighbor": COLOURS[1], "half": COLOURS[2], "dots": INK}
    assert panels._colours([first, second]) == both
    assert panels._colours([first, third])["uniform"] == COLOURS[1]
    many = [Panel("", "", [Series(str(k), []) for k in range(20)])]
    assert len(panels._colours(many)) == 20


def test_panels_without_measurements(canvas, tmp_path):
    assert draw_figure(Figure("x", "nothing", []), tmp_path / "x.png").stat().st_size > 1_000
    assert not canvas().legends and not canvas().axes[0].get_visible()


def test_thin_lines_are_named_in_their_colour(canvas, tmp_path):
    thin = [Series("mine", [1.0, 2.0], "thin", [0, 1], colour=INK), Series("next", [2.0, 1.0], "thin", [0, 1])]
    draw_figure(Figure("x", "", [Panel("", "", thin)]), tmp_path / "x.png")
    (axes,) = canvas().axes
    assert {text.get_text(): text.get_color() for text in axes.texts} == {"mine": INK, "next": COLOURS[0]}
