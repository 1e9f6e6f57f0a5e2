"""Learning curves: what is read, what is drawn, and what is refused."""

import itertools
import json
import math
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure as Canvas
from PIL import Image

from shoal.errors import UserError
from shoal.report import panel
from shoal.report.curve import COLOURS, EVALUATION, draw_curve, draw_curves, read_metrics, smooth

PHASES = {"time/action selection": 3.0, "time/environment": 1.0, "time/Q loss": 6.0, "time/other": 0.001}


def run(lines, rise=1.0, **more):
    return [
        {
            "episode": 100 * line,
            "env_steps": 2500 * line,
            "return_mean": -200 + rise * line,
            "seconds": 0.5 * line,
            "loss/q": 1.0,
            **more,
        }
        for line in range(1, lines + 1)
    ]


def rgb(colour):
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def pixels(path):
    """The picture as an array, having checked that it is a whole PNG."""
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.array(image.convert("RGB"))


def places(picture, colour):
    """(count, 2) rows and columns of the pixels that have exactly this colour."""
    return np.argwhere((picture == rgb(colour)).all(axis=2))


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draws a curve, and returns its canvas."""
    canvases = []

    class Kept(Canvas):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            canvases.append(self)

    def draw(*what, **more):
        monkeypatch.setattr(matplotlib.figure, "Figure", Kept)
        draw_curve(what[0], tmp_path / "a.png", *what[1:], **more)
        return canvases[-1]

    return draw


@pytest.mark.parametrize("rise", [1.0, -1.0])
def test_curve_follows_the_returns(tmp_path, rise):
    line = places(pixels(draw_curve(run(80, rise), tmp_path / "a.png", "title")), COLOURS[0])
    line = line[line[:, 0] > 120]  # below title and legend
    start, end = line[line[:, 1].argmin(), 0], line[line[:, 1].argmax(), 0]
    assert (start > end) == (rise > 0)  # rows count downwards


@pytest.mark.parametrize("lines", [0, 1, 2, 1000])
def test_few_and_many_lines_are_drawn(tmp_path, lines):
    picture = pixels(draw_curve(run(lines), tmp_path / "a.png", "title", random_return=-233.0))
    assert (len(places(picture, COLOURS[0])) > 0) == (lines > 0)


def test_nan_lines_and_levels_are_skipped(tmp_path):
    holes = run(30)
    holes[3]["return_mean"] = math.nan
    holes[4]["return_mean"] = None
    del holes[5]["return_mean"], holes[6]["episode"]
    holes[7]["return_mean"] = math.inf
    without = [line for number, line in enumerate(holes) if number not in range(3, 8)]
    first = draw_curve(holes, tmp_path / "a.png", random_return=math.nan).read_bytes()
    assert first == draw_curve(without, tmp_path / "b.png").read_bytes()
    assert first != draw_curve(without, tmp_path / "c.png", random_return=-233.0).read_bytes()


def test_only_nans_equal_no_data(tmp_path):
    picture = pixels(draw_curve([{"episode": 1, "return_mean": math.nan}], tmp_path / "a.png"))
    assert len(places(picture, COLOURS[0])) == 0


def test_a_resumed_run_that_repeats_lines_is_drawn_once(tmp_path):
    lines = run(20)
    resumed = lines[:15] + lines[10:]
    once, twice = draw_curve(lines, tmp_path / "a.png"), draw_curve(resumed, tmp_path / "b.png")
    assert once.read_bytes() == twice.read_bytes()


def test_unrelated_log_lines_are_ignored(tmp_path):
    lines = run(20)
    other = [*lines, {"episode": 2000, "evaluation": -150.0}]
    assert draw_curve(lines, tmp_path / "a.png").read_bytes() == draw_curve(other, tmp_path / "b.png").read_bytes()


def test_groups_have_their_own_lines(tmp_path):
    alone = pixels(draw_curve(run(40, **{"return/group/agent": -9.0}), tmp_path / "a.png"))
    assert len(places(alone, COLOURS[1])) == 0  # one group is the team
    assert draw_curve(run(40), tmp_path / "b.png").read_bytes() == (tmp_path / "a.png").read_bytes()
    sides = {"return/group/predator": 70.0, "return/group/prey": -30.0}
    both = pixels(draw_curve(run(40, **sides), tmp_path / "c.png"))
    assert places(both, COLOURS[1])[:, 0].mean() < places(both, COLOURS[0])[:, 0].mean()  # predators are higher up
    levels = draw_curve(run(40, **sides), tmp_path / "d.png", random_groups={"predator": 0.0, "prey": None})
    assert len(places(pixels(levels), COLOURS[1])) > len(places(both, COLOURS[1]))


def test_phase_bar_shows_shares(tmp_path):
    picture = pixels(draw_curve(run(5, **PHASES), tmp_path / "a.png"))
    bottom = picture[len(picture) * 3 // 4 :]
    assert len(places(bottom, COLOURS[2])) == pytest.approx(2 * len(places(bottom, COLOURS[0])), rel=0.2)
    assert len(places(bottom, COLOURS[0])) > 2 * len(places(bottom, COLOURS[1]))


def test_phases_without_time_are_omitted(tmp_path):
    phases = PHASES | {"time/environment": 0.0}
    picture = pixels(draw_curve(run(5, **phases), tmp_path / "a.png"))
    bottom = picture[len(picture) * 3 // 4 :]
    assert len(places(bottom, COLOURS[1])) == 0
    assert len(places(bottom, COLOURS[2])) > len(places(bottom, COLOURS[0])) > 0
    idle = pixels(draw_curve(run(5, **dict.fromkeys(PHASES, 0.0)), tmp_path / "b.png"))
    assert len(idle) < len(picture)  # no bar at all


@pytest.mark.parametrize("ci95", [[-165.0, -155.0], 5.0, None])
def test_evaluations_are_marked(tmp_path, ci95):
    evaluation = {"episode": 2000, "return_mean": -160.0, "return_ci95": ci95}
    marked = draw_curve(run(40), tmp_path / "a.png", evaluations=[evaluation, {"episode": 1}])
    assert marked.read_bytes() != draw_curve(run(40), tmp_path / "b.png").read_bytes()


def test_evaluations_among_the_metrics_are_marked_as_well(tmp_path):
    lines, entries = run(9), [{"episode": 500, "return_mean": -160.0, "return_ci95": 4.0}]
    apart = draw_curve(lines, tmp_path / "a.png", evaluations=entries).read_bytes()
    lines[4] |= {"evaluate/return_mean": -160.0, "evaluate/return_ci95": 4.0}
    assert draw_curve(lines, tmp_path / "b.png").read_bytes() == apart


def test_evaluations_of_groups_are_marked_in_their_colours(drawn):
    lines = run(9, **{"return/group/red": 7.0, "return/group/blue": -3.0})
    lines[4] |= {"evaluate/return_mean": 2.0, "evaluate/return_ci95": 9.0, "evaluate/return_ci95/group/red": 1.0}
    lines[4] |= {"evaluate/return/group/red": 6.0, "evaluate/return/group/blue": -2.0}
    axes = drawn(lines).axes[0]
    marks = [bars.lines[0] for bars in axes.containers]
    assert [(mark.get_color(), *mark.get_xydata().ravel()) for mark in marks] == [
        (COLOURS[0], 500, 6),
        (COLOURS[1], 500, -2),
    ]  # and none of the mean
    assert [text.get_text() for text in axes.get_legend().get_texts()].count(EVALUATION) == 1


def test_prey_has_the_colour_of_its_side_though_its_agents_have_other_names(drawn):
    sides = {"return/group/predator": 4.0, "return/group/prey": -3.0, "return/agent/adversary_0": 4.0}
    axes = drawn(run(9, **sides, **{"return/agent/agent_0": -1.0, "return/agent/agent_1": -5.0})).axes[0]
    assert [line.get_color() for line in axes.lines if line.get_linewidth() < 1] == [COLOURS[0]] * 2


def test_agents_that_differ_from_their_group_have_curves_with_names(drawn):
    agents = {"red_0": 9.0, "red_1": 5.0, "blue_0": -3.0}
    sides = {"return/group/red": 7.0, "return/group/blue": -3.0}
    axes = drawn(run(9, **sides, **{f"return/agent/{name}": value for name, value in agents.items()})).axes[0]
    thin = [(line.get_color(), *line.get_ydata()[-1:]) for line in axes.lines if line.get_linewidth() < 1]
    assert thin == [(COLOURS[0], 9.0), (COLOURS[0], 5.0)]  # the only agent of its group is its group
    labels = {text.get_text(): text.get_window_extent() for text in axes.texts if text.get_text() in agents}
    assert labels.keys() == {"red_0", "red_1"}
    assert all(box.x0 > axes.get_window_extent().x1 and box.x1 <= axes.figure.bbox.x1 for box in labels.values())


@pytest.mark.parametrize("spread", [0.0, 1e-3, 1.0])
def test_names_of_agents_do_not_overlap(drawn, spread):
    agents = {f"return/agent/agent_{k}": -100 + spread * k for k in range(12)}
    axes = drawn(run(9, **agents)).axes[0]
    boxes = sorted((text.get_window_extent() for text in axes.texts if "agent" in text.get_text()), key=lambda b: b.y0)
    assert len(boxes) == 12 and all(upper.y0 >= lower.y1 - 1 for lower, upper in itertools.pairwise(boxes))
    top = axes.get_window_extent()
    assert top.y0 <= boxes[0].y0 and boxes[-1].y1 <= top.y1
    more = drawn(run(9, **agents, **{"return/agent/agent_12": 3.0})).axes[0]
    assert not [text for text in more.texts if "agent_" in text.get_text()]


def test_agents_that_differ_from_their_team_only_in_noise_have_no_curves(drawn):
    lines, noise = run(60), np.random.default_rng(0).normal(size=(60, 2))
    for line, shift in zip(lines, noise, strict=True):  # by up to 4 % of the height, but not when smoothed
        line |= {"return/agent/agent_0": line["return_mean"] + shift[0], "return/agent/agent_1": -160 + shift[1]}
    axes = drawn(lines).axes[0]
    assert [text.get_text() for text in axes.texts if "agent_" in text.get_text()] == ["agent_1"]
    assert len([line for line in axes.lines if line.get_linewidth() < 1]) == 1
    wide = drawn(lines, evaluations=[{"episode": 500, "return_mean": -9000.0}]).axes[0]  # hardly differs in this height
    assert not [text for text in wide.texts if "agent_" in text.get_text()]


def test_names_stand_beside_the_ends_of_their_curves():
    line, apart = panel.TEXT_LINE, panel._apart
    assert apart([]) == [] and apart([0.2, 0.5]) == [0.2, 0.5]
    assert apart([0.3, 0.5, 0.5]) == pytest.approx([0.3, 0.5 - line / 2, 0.5 + line / 2])
    assert apart([0.0, 1.0, 1.0]) == pytest.approx([line / 2, 1 - 1.5 * line, 1 - line / 2])


@pytest.mark.parametrize("groups", [("predator", "prey"), ("a", "b", "c")])
def test_the_legend_has_a_row_per_group(drawn, groups):
    sides = {f"return/group/{name}": 1.0 * k for k, name in enumerate(groups)}
    evaluated = {f"evaluate/{key}": value for key, value in sides.items()}
    lines = run(9, **sides, **evaluated, **{"evaluate/return_mean": 1.0})
    texts = drawn(lines, random_groups=dict.fromkeys(groups, -1.0)).axes[0].get_legend().get_texts()
    corners = {text.get_text(): text.get_window_extent() for text in texts}
    own, random = [corners[name] for name in groups], [corners[f"random {name} −1.0"] for name in groups]
    assert len({box.x0 for box in own}) == len({box.x0 for box in random}) == 1
    assert all(one.y0 == pytest.approx(other.y0, abs=2) for one, other in zip(own, random, strict=True))


@pytest.mark.parametrize("groups", [("agent",), ("adversary", "agent"), [f"a-rather-long-name-{k}" for k in range(12)]])
def test_title_caption_legend_and_curve_do_not_overlap(drawn, groups):
    sides = {f"return/group/{name}": 1.0 * k for k, name in enumerate(groups)}
    lines = run(9, **sides, **{f"evaluate/{key}": value for key, value in sides.items()}, **PHASES)
    title = "MADDPG in pettingzoo:some_long_package.some_long_module_v12:SomeClassName: a-long-run-name-17"
    lines[0]["evaluate/return_mean"] = 1.0
    figure = drawn(lines, title, -1.0, random_groups=dict.fromkeys(groups, -1.0))
    axes = figure.axes[0]
    legend, heading = axes.get_legend(), figure._suptitle
    caption = next(text for text in axes.get_children() if "episodes" in getattr(text, "get_text", str)())
    boxes = [part.get_window_extent() for part in (axes, legend, caption, heading)]
    assert all(upper.y0 >= lower.y1 for lower, upper in itertools.pairwise(boxes))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes) and boxes[-1].y1 <= figure.bbox.y1
    assert boxes[0].height > 0.4 * 4.6 * figure.dpi  # the curve itself keeps its room
    names = {text.get_text().rpartition(" ")[0] for text in legend.get_texts()}
    assert len(groups) == 1 or {f"random {name}" for name in groups} < names  # hyphens stay hyphens


@pytest.mark.parametrize("episodes", [(3,), (1, 2, 3), (10, 400)])
def test_episodes_are_counted_in_whole_numbers(drawn, episodes):
    axes = drawn([{"episode": episode, "return_mean": 1.5} for episode in episodes]).axes[0]
    low, high = axes.get_xlim()
    texts = [tick.get_text() for tick in axes.get_xticklabels()]
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert ticks and all(tick == round(tick) for tick in ticks) and len(set(texts)) == len(texts)


def test_intervals_by_bounds_or_half_width_agree(tmp_path):
    pictures = [
        draw_curve(
            run(9), tmp_path / f"{i}.png", evaluations=[{"episode": 500, "return_mean": -160.0, "return_ci95": ci95}]
        ).read_bytes()
        for i, ci95 in enumerate(([-164.0, -156.0], 4.0, 8.0))
    ]
    assert pictures[0] == pictures[1] != pictures[2]


@pytest.mark.parametrize("title", ["a $ b", "$x", "$\\frac{$", "ü × −", "a\nb"])
def test_any_title_is_text(tmp_path, title):
    pixels(draw_curve(run(3), tmp_path / "a.png", title))


def test_several_runs_lie_over_each_other(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in run(30, -1.0)))
    picture = pixels(draw_curves([("up", run(30)), ("$down", file), ("none", [])], tmp_path / "a.png", "t", -233.0))
    assert all(len(places(picture, colour)) for colour in COLOURS[:2])


def test_a_file_is_read_line_by_line(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"episode": 1, "return_mean": NaN}\n\n{"episode": 2}\n{"episode": 3, "retu')
    lines = read_metrics(file)
    assert [line["episode"] for line in lines] == [1, 2]
    assert math.isnan(lines[0]["return_mean"])


@pytest.mark.parametrize("content", [b"", b"\n", b'{"episode": 1', b'{"a": "\xc3'])
def test_a_file_with_no_whole_line_yet_is_empty(tmp_path, content):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(content)
    assert read_metrics(file) == []
    pixels(draw_curve(file, tmp_path / "a.png", "just started"))


def test_non_metrics_files_are_refused(tmp_path):
    picture = tmp_path / "a.png"
    (tmp_path / "words").write_text("some\nwords\n")
    with pytest.raises(UserError, match="none of its lines is a JSON object"):
        draw_curve(tmp_path / "words", picture)
    with pytest.raises(UserError, match=r"Cannot read the metrics .*missing.*No such file"):
        draw_curve(str(tmp_path / "missing"), picture)
    with pytest.raises(UserError, match="Cannot read the metrics"):
        draw_curves([("folder", tmp_path)], picture)
    assert not picture.exists()


def test_unwritable_path_is_refused(tmp_path):
    with pytest.raises(UserError, match="Cannot write the picture"):
        draw_curve(run(3), tmp_path / "missing" / "a.png")


@given(st.lists(st.floats(-1e3, 1e3), max_size=300))
def test_smoothing_stays_within_the_values(values):
    course = smooth(np.array(values))
    assert len(course) == len(values)
    if values:
        assert min(values) - 1e-6 <= course.min() <= course.max() <= max(values) + 1e-6


def test_smoothing_is_the_mean_of_the_neighbours():
    values = np.random.default_rng(0).normal(size=200)
    course = smooth(values)
    assert course[100] == pytest.approx(values[95:106].mean())
    assert course[0] == pytest.approx(values[:6].mean())
    assert course[-1] == pytest.approx(values[-6:].mean())
    np.testing.assert_array_equal(smooth(np.array([3.0, 1.0])), [3.0, 1.0])


def test_import_is_light_and_pyplot_unused(tmp_path):
    program = f"""
import sys
from shoal.report import draw_curve
assert not {{"matplotlib", "PIL", "torch", "numba"}} & set(sys.modules)
draw_curve([{{"episode": 1, "return_mean": 2.0}}], {str(tmp_path / "a.png")!r})
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def with_updates(*counts):
    return [line | {"updates": count} for line, count in zip(run(len(counts)), counts, strict=True)]


def notes(figure):
    return [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.parametrize(("counts", "at"), [((0, 0, 5, 9), 200), ((3, 4, 5, 6), 0), ((0, 0, 0, 1), 300)])
def test_a_line_marks_where_learning_begins(drawn, counts, at):
    figure = drawn(with_updates(*counts))
    assert "learning begins" in notes(figure)
    dotted = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert [set(line.get_xdata()) for line in dotted] == [{at}]


def test_curve_without_updates_states_it(drawn):
    figure = drawn(with_updates(0, 0, 0))
    assert "no updates: nothing was learned" in notes(figure)
    assert not any(line.get_linestyle() == ":" for line in figure.axes[0].lines)
    assert not any("learn" in text for text in notes(drawn(run(3))))  # a log that does not tell
