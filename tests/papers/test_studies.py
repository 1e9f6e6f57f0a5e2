"""Every study runs, draws its picture and says the papers' numbers."""

import functools
from dataclasses import asdict

import pytest

from shoal.errors import UserError
from shoal.profiling.cells import Sweep
from shoal.report.panels import draw_figures
from shoal.system.files import finite
from shoal_papers import OF_CELLS, STUDIES, run_study, study_length, study_of
from shoal_papers import cells as cells_module
from shoal_papers.cells import Options
from shoal_papers.marl import neighbor_reward, times
from tests.papers.at_once import AtOnce

TINY = {"batch": 64, "hidden": (8, 8)}


@pytest.fixture(scope="module")
def profile_once():
    """Measures in this process, and the same sweep only once: the studies differ in what they make of it."""
    measure, kept = functools.partial(times.profile, in_this_process=True), []

    def profile(sweep, advance):
        if not kept:
            calls = []
            kept.append((measure(sweep, lambda *call: calls.append(call)), calls))
        found, calls = kept[0]
        for call in calls:
            advance(*call)
        return found

    return profile


@pytest.fixture
def tiny(monkeypatch, profile_once):
    """Studies of seconds instead of minutes."""
    sweep = Sweep((3, 6), sampler=("uniform", "neighbor"), ring=1024, seconds=0.05, settings=TINY, memory=False)
    monkeypatch.setattr(times, "profile", profile_once)
    for study in (times.ProfileStudy, times.NeighborTime):
        monkeypatch.setattr(study, "sweep", lambda self, quick: sweep)


@pytest.mark.parametrize(
    ("name", "number"),
    [("breakdown", "85 %"), ("growth", "3.9"), ("inside-update", "61 %"), ("neighbor-time", "27.39")],
)
def test_a_study_of_time(tiny, tmp_path, name, number):
    done = []
    study = run_study(name, True, lambda amount, label: done.append(amount))
    assert sum(done) == pytest.approx(study_length(name, True))
    assert number in study.findings[0] and len(study.findings) > 2 and study.tables
    assert draw_figures(study, tmp_path)[0].stat().st_size > 5_000


@pytest.fixture(scope="module")
def profiled():
    """A profile of both samplers, the larger number of agents first."""
    sweep = Sweep((6, 3), implementation=("engine",), ring=1024, seconds=0.05, settings=TINY, memory=False)
    return asdict(times.profile(sweep, lambda used, label: None, in_this_process=True))


@pytest.mark.parametrize("name", ["breakdown", "inside-update", "growth"])
def test_a_study_of_a_profile_takes_uniform_sampling_in_the_order_of_agents(profiled, name):
    rows = times.by_panel(profiled["rows"])["engine, maddpg, predator-prey"]
    assert [(row["agents"], row["sampler"]) for row in rows] == [(3, "uniform"), (6, "uniform")]
    own = [finding for finding in study_of(name, profiled).findings if finding.startswith("engine")]
    assert len(own) == 1 and own[0].count("3 to 6") <= 1


def test_growth_with_one_number_of_agents(profiled, tmp_path):
    alone = {name: [row for row in profiled[name] if row["agents"] == 3] for name in ("rows", "misses")}
    study = study_of("growth", {**profiled, **alone, "growth": []})
    assert any("together with its half" in finding for finding in study.findings) and len(study.tables) == 1
    assert draw_figures(study, tmp_path)[0].stat().st_size > 2_000


def test_the_study_of_rewards(monkeypatch, tmp_path):
    case = neighbor_reward.Case("cooperative-navigation", 1, ("uniform", "neighbor"), 2, 60)
    monkeypatch.setattr(neighbor_reward, "cases", lambda quick: [case])
    monkeypatch.setattr(cells_module, "ChildPool", AtOnce)
    short = {"warmup": 200, "batch": 32, "hidden": (8,), "log_every": 10}
    monkeypatch.setitem(neighbor_reward.WORLDS, "cooperative-navigation", {"env": "cooperative-navigation", **short})
    done = []
    study = run_study("neighbor-reward", False, lambda amount, label: done.append(amount), Options(tmp_path))
    assert sum(done) == pytest.approx(study_length("neighbor-reward", False))
    rows = study.data["rows"]
    assert [row["variant"] for row in rows] == ["uniform", "neighbor"] and rows[0]["difference"] == 0
    assert rows[1]["difference"] == pytest.approx(rows[1]["return_mean"] - rows[0]["return_mean"])
    assert len(study.data["curves"]) == 4
    assert draw_figures(study, tmp_path)[0].stat().st_size > 5_000


def test_ctrl_c_keeps_finished_runs(monkeypatch, tmp_path):
    case = neighbor_reward.Case("cooperative-navigation", 3, ("uniform", "neighbor"), 2, 60)
    monkeypatch.setattr(neighbor_reward, "cases", lambda quick: [case])
    curve = [{"episode": 10 * k, "return_mean": float(k)} for k in range(1, 7)]
    left = [3]

    class Stopped(AtOnce):
        def submit(self, *call):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return super().submit(lambda: {"curve": curve})

    monkeypatch.setattr(cells_module, "ChildPool", Stopped)
    monkeypatch.setattr(cells_module, "usable_processors", lambda: 1)
    study = run_study("neighbor-reward", True, lambda amount, label: None, Options(tmp_path))
    assert len(study.data["curves"]) == 3 and "3 of 4 cells are finished" in study.findings[-1]
    assert {row["seeds"] for row in study.data["rows"]} <= {1, 2} and study.data["rows"]
    assert study_of("neighbor-reward", finite(study.data)).findings == study.findings
    assert draw_figures(study, tmp_path)[0].stat().st_size > 5_000
    with pytest.raises(KeyboardInterrupt):
        run_study("neighbor-reward", True, lambda amount, label: None, Options(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("gap", "ci", "verdict"), [(-3.0, 1.0, "worse"), (2.0, 1.0, "better"), (-0.5, 1.0, "no significant difference")]
)
def test_verdicts_of_reward_differences(gap, ci, verdict):
    row = {
        "world": "w",
        "agents": 3,
        "variant": "neighbor",
        "return_mean": 1.0,
        "difference": gap,
        "difference_ci95": ci,
    }
    assert verdict in neighbor_reward.sentence(row)


def test_return_is_over_the_last_thousand_episodes():
    curve = [{"episode": e, "return_mean": float(e > 9000)} for e in range(100, 10_001, 100)]
    assert neighbor_reward.last_return(curve) == 1.0


def test_unknown_study():
    with pytest.raises(UserError, match="'astrology'"):
        run_study("astrology", True, lambda amount, label: None)
    assert set(OF_CELLS) < set(STUDIES)


@pytest.mark.parametrize("data", [{}, {"rows": 5}, {"rows": [{}], "growth": [], "neighbor": [], "misses": [{}]}])
@pytest.mark.parametrize("name", STUDIES)
def test_data_of_another_study_is_refused(name, data):
    with pytest.raises(UserError, match="cannot be made from these data"):
        study_of(name, data)
