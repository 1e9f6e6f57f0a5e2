"""Every study runs, draws its picture and says the papers' numbers."""

import functools

import pytest

from shoal.errors import UserError
from shoal.profiling.profile import Sweep
from shoal.report.studies import draw_study
from shoal.studies import STUDIES, neighbor_reward, neighbor_time, run_study, study_length, study_of, sweeps

TINY = {"batch": 64, "hidden": (8, 8)}


@pytest.fixture
def tiny(monkeypatch):
    """Studies of seconds instead of minutes."""
    sweep = Sweep((3, 6), sampler=("uniform", "neighbor"), ring=1024, seconds=0.05, settings=TINY, memory=False)
    monkeypatch.setattr(sweeps, "profile", functools.partial(sweeps.profile, in_this_process=True))
    monkeypatch.setattr(sweeps, "full", lambda quick, misses=False: sweep)
    monkeypatch.setattr(neighbor_time, "_sweep", lambda quick: sweep)


@pytest.mark.parametrize(
    ("name", "number"),
    [("breakdown", "85 %"), ("growth", "3.9"), ("inside-update", "61 %"), ("neighbor-time", "27.39")],
)
def test_a_study_of_time(tiny, tmp_path, name, number):
    done = []
    study = run_study(name, True, lambda amount, label: done.append(amount))
    assert sum(done) == pytest.approx(study_length(name, True))
    assert number in study.findings[0] and len(study.findings) > 2 and study.tables
    assert draw_study(study, tmp_path / "picture.png").stat().st_size > 5_000


def test_the_study_of_rewards(monkeypatch, tmp_path):
    case = neighbor_reward.Case("cooperative-navigation", 1, ("uniform", "neighbor"), 2, 60)
    monkeypatch.setattr(neighbor_reward, "cases", lambda quick: [case])
    monkeypatch.setattr(neighbor_reward, "ProcessPoolExecutor", InThisProcess)
    short = {"warmup": 200, "batch": 32, "hidden": (8,), "log_every": 10}
    monkeypatch.setitem(neighbor_reward.WORLDS, "cooperative-navigation", {"env": "cooperative-navigation", **short})
    done = []
    study = run_study("neighbor-reward", False, lambda amount, label: done.append(amount))
    assert sum(done) == study_length("neighbor-reward", False) == 240
    rows = study.data["rows"]
    assert [row["variant"] for row in rows] == ["uniform", "neighbor"] and rows[0]["difference"] == 0
    assert rows[1]["difference"] == pytest.approx(rows[1]["return_mean"] - rows[0]["return_mean"])
    assert len(study.data["curves"]) == 4
    assert draw_study(study, tmp_path / "picture.png").stat().st_size > 5_000


class InThisProcess:
    """A pool that does the work at once."""

    def __init__(self, *arguments):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def submit(self, work, *arguments):
        from concurrent.futures import Future

        future = Future()
        future.set_result(work(*arguments))
        return future


@pytest.mark.parametrize(
    ("gap", "ci", "verdict"), [(-3.0, 1.0, "worse"), (2.0, 1.0, "better"), (-0.5, 1.0, "no difference")]
)
def test_verdicts(gap, ci, verdict):
    row = {
        "world": "w",
        "agents": 3,
        "variant": "neighbor",
        "return_mean": 1.0,
        "difference": gap,
        "difference_ci95": ci,
    }
    assert verdict in neighbor_reward.sentence(row)


def test_the_last_thousand_episodes_count():
    curve = [{"episode": e, "return_mean": float(e > 9000)} for e in range(100, 10_001, 100)]
    assert neighbor_reward.last_return(curve) == 1.0


def test_unknown_study():
    with pytest.raises(UserError, match="'astrology'"):
        run_study("astrology", True, lambda amount, label: None)
    assert set(STUDIES) == {"breakdown", "growth", "inside-update", "neighbor-time", "neighbor-reward"}


@pytest.mark.parametrize("data", [{}, {"rows": 5}, {"rows": [{}], "growth": [], "neighbor": [], "misses": [{}]}])
@pytest.mark.parametrize("name", STUDIES)
def test_data_of_something_else(name, data):
    with pytest.raises(UserError, match="cannot be made of these data"):
        study_of(name, data)
