"""`shoal study actorq-model` with systems that behave as the simulation says, or otherwise; no process is started."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from shoal.actorq import service_times, simulation
from shoal.actorq.simulation import ServiceTimes, simulate
from shoal.report.panels import draw_figures
from shoal.system.files import finite
from shoal_papers import Options, run_study, study_length, study_of
from shoal_papers import cells as cells_module
from shoal_papers.quarl import actorq_model, actorq_paper
from tests.papers.at_once import AtOnce


def times_of(config):
    """Made up: small and large policies in both precisions, with more time in the world of the humanoid."""
    large, narrow = config.hidden[0] > 1000, config.actor_precision == "int8"
    act = {(False, False): 0.1, (False, True): 0.1, (True, False): 1.5, (True, True): 0.2}[large, narrow]
    size = (34e6 if large else 3e5) / (4 if narrow else 1)
    world = 0.5 if "humanoid" in config.env else 0.2
    return ServiceTimes(10.0, act + world, 0.01, 0.1, 0.1, 1.0, pull_bytes=size, transition_bytes=600, contention=0.2)


@pytest.fixture
def systems(monkeypatch):
    """Real runs that are as fast as predicted."""

    def observe(config, seconds, first, updates):
        limited = config.samples_per_insert == 16
        assert first * config.actors > config.warmup and (config.threads, config.pull_every) == (1, 200)
        model = actorq_model.model_of(asdict(config), times_of(config), actorq_model.usable_processors())
        found = simulate(model)
        return SimpleNamespace(
            samples=found.env_steps_per_second * seconds, seconds=seconds, lags=[1, 3],
            bottleneck="learner" if limited else "actors", others=0.0,
        )  # fmt: skip

    monkeypatch.setattr(cells_module, "ChildPool", AtOnce)
    monkeypatch.setattr(service_times, "measure", lambda config, seconds, ratio: times_of(config))
    monkeypatch.setattr(service_times, "observe", observe)
    monkeypatch.setattr(actorq_paper, "FLEET", 24)
    monkeypatch.setattr(actorq_paper, "MANY", (4, 16, 20))
    monkeypatch.setattr(simulation, "LEAST_CHUNKS", 60)
    monkeypatch.setattr(simulation, "LEAST_UPDATES", 5)


def ran(quick, folder, **told):
    done = []
    options = Options(folder, **told)
    found = run_study("actorq-model", quick, lambda amount, label: done.append(amount), options)
    return found, sum(done), study_length("actorq-model", quick, options)


def test_the_quick_form(systems, tmp_path):
    found, done, length = ran(True, tmp_path)
    assert done == pytest.approx(length) and length < 130
    assert found.findings[0].startswith("6 of 6 predictions of env steps/s are within 15% of real runs")
    assert [row[6] for row in found.tables[0].rows] == pytest.approx([0.0] * 6)
    again = study_of("actorq-model", finite(found.data))
    assert again.findings == found.findings and again.tables == found.tables
    assert draw_figures(found, tmp_path)[0].stat().st_size > 5_000
    # systems that were faster, beside other programs
    rows = [{**row, "error": -0.2, "others": 0.4} for row in found.data["checks"]]
    near, _, disturbed = actorq_model.findings(rows)
    assert near.startswith("0 of 6") and "the largest error is -20.0%" in near
    assert disturbed.startswith("Other programs used up to 40% of the processors in 6 of the runs")
    # cells that the budget does not reach: a run, and service times of one of the paper's tasks
    cells = actorq_model.ActorqModel().cells(True, Options())
    for cell in cells[:1] + cells[-1:]:
        (tmp_path / "cells" / "actorq-model-quick" / f"{cell.name.replace(' ', '-')}.json").unlink()
    found, _, _ = ran(True, tmp_path, budget=0.0)
    assert [row["precision"] for row in found.data["checks"]] == ["float32"] * 2 + ["int8"] * 3
    assert (
        found.data["paper"] == found.data["fleet"] == [] and "Not reached within 0 min: 2 cells" in found.findings[-1]
    )


def test_all_tasks(systems, tmp_path):
    found, done, length = ran(False, tmp_path)
    assert done == pytest.approx(length)
    checks, paper = found.data["checks"], {row["task"]: row for row in found.data["paper"]}
    settings = {(row["task"], row["precision"], row["samples_per_insert"], row["actors"]) for row in checks}
    assert len(checks) == len(settings) == 24 and len(paper) == 11
    # four actors: 0.7 ms of all steps in float32 against a learner that takes 3 ms for 16 inserts
    assert paper["Walker Stand"]["speed_up"] == pytest.approx(1.7 / 4 / (3 / 16 + 0.01), rel=0.03)
    assert paper["Walker Stand"]["same_engine"] == pytest.approx(paper["Walker Stand"]["speed_up"], rel=0.03)
    assert paper["Walker Stand"]["bottleneck"] == "learner" and paper["Acrobot (Gym)"]["paper"] == pytest.approx(
        5.41, abs=0.01
    )
    assert "(geometric mean of 11 tasks); the paper's time to 95 % of the reward: 2.50" in " ".join(found.findings)
    assert "At 32 bits more actors hardly help beyond 16" in " ".join(found.findings)
    wide, narrow = (
        next(row for row in found.data["fleet"] if (row["bits"], row["pull_every"]) == (bits, 100)) for bits in (32, 8)
    )
    assert wide["down_mbit"] == pytest.approx(4 * narrow["down_mbit"], rel=0.1)
    assert wide["down_mbit"] == pytest.approx(wide["steps_per_second"] / 100 * 34e6 * 8e-6, rel=0.1)


def test_times_of_the_papers_learner():
    results = {
        actorq_paper.paper_cell("Walker Stand", *kind): asdict(ServiceTimes(300, 1)) for kind in actorq_paper.KINDS
    }
    times = actorq_paper.paper_times("Walker Stand", results)
    assert times["auto int8"] == replace(ServiceTimes(300, 1), learner_ms=3)
    assert actorq_paper.paper_times("Hopper Stand", results) is None
