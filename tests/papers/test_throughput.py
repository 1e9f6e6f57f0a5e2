"""The throughput studies of quantized actors: one real cell, and tables made of cells whose figures are made up."""

import dataclasses

import pytest

from shoal.actorq.broadcast import BROADCAST_BITS
from shoal.bench.actorq import TASKS
from shoal.errors import UserError
from shoal.report.panels import draw_figures
from shoal.system.files import finite
from shoal_papers import Options, run_study, study_length, study_of
from shoal_papers import cells as cells_module
from shoal_papers.quarl import throughput
from shoal_papers.quarl.throughput import STAGES, ActorqCommunication, Passed, cell_of, measure_actor
from tests.papers.at_once import AtOnce

LOADS = {32: 0.05, 16: 0.09, 8: 0.06}
"""Seconds of a load by bits of the actors, as in the paper: dearest in 16 bits."""


def passed(config, seconds):
    """What a system would have done: 1000 steps, pulls that take 2 ms per byte of a weight."""
    bits = int(config.actor_precision.lstrip("floatin"))
    pulls, wide = 1000 // config.pull_every, config.broadcast_bits / 8
    spent = {"act": bits / 16, "environment": 0.5, "pull": 0.002 * wide * pulls, "wait": 0.0}
    spent["deserialize"] = 0.0 if bits == 8 else 0.001 * wide * pulls
    spent["load"] = LOADS[bits] * pulls + spent["deserialize"]
    whole = sum(spent.values()) - spent["deserialize"] + 0.1
    counts = {"steps": 1000, "pulls": pulls, "bytes": int(1e6 * wide * pulls)}
    return Passed(whole, counts | spent, None, config.actor_engine, 0)


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setattr(throughput.os, "getloadavg", lambda: (2.0, 2.0, 2.0))
    monkeypatch.setattr(cells_module, "ChildPool", AtOnce)


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setattr(throughput, "run_system", passed)


def ran(name, folder, quick=False, **told):
    """A study, which is the same when it is made of its data."""
    done = []
    study = run_study(name, quick, lambda amount, label: done.append(amount), Options(folder, **told))
    again = study_of(name, finite(study.data))
    assert again.findings == study.findings and again.tables == study.tables
    if told.get("budget"):
        assert sum(done) == pytest.approx(study_length(name, quick))
    return study


def test_cell_is_measured_end_to_end(monkeypatch, tmp_path):
    monkeypatch.setitem(TASKS, "small", {"env": "gym:CartPole-v1", "algorithm": "dqn", "hidden": (8, 8)})
    cell = cell_of("small", "native", "int8", 8, 20, 0.2)
    found = measure_actor(dict(cell.settings), tmp_path)
    stages = found["seconds_per_1000"]
    assert tuple(stages) == STAGES and min(stages.values()) >= 0 and stages["deserialize"] == 0
    assert sum(stages.values()) == pytest.approx(1000 / found["steps_per_second"])
    assert 0 < found["pulls_per_1000"] <= 1000 / 20 * 1.1  # to the step in which the pull was noticed
    assert found["bytes_per_second"] == pytest.approx(
        found["bytes_per_pull"] * found["pulls_per_1000"] / 1000 * found["steps_per_second"]
    )


def test_the_stages_and_the_papers_statements(made_up, tmp_path):
    study = ran("actorq-breakdown", tmp_path, budget=60)
    record = study.tables[0].records()[2]
    assert (record["pull every"], record["engine"], record["bits"]) == (30, "onnx", 16)
    assert record["load, s"] == pytest.approx(33 * 0.09) and record["deserialize, s"] == pytest.approx(33 * 0.002)
    assert record["all, s"] == pytest.approx(sum(record[f"{stage}, s"] for stage in STAGES))
    text = "\n".join(study.findings)
    assert "Paper (Figure 9" in study.findings[0]
    assert "int8 shortens pull: holds, 0.264 / 0.132 / 0.066 s" in text
    assert "deserialize: has no counterpart here" in text
    assert "dearer in 16 and 8 bits than in 32: holds" in text and "dearer in 16 bits than in 8: holds" in text
    assert "step is the largest part: holds, in 32 bits it is step" in text and "Measured on" in text
    assert draw_figures(study, tmp_path)[0].stat().st_size > 5_000 and len(study.figures[0].panels) == 3


def test_false_statements_are_reported_as_false(made_up, tmp_path, monkeypatch):
    monkeypatch.setitem(LOADS, 8, 0.01)
    text = "\n".join(ran("actorq-breakdown", tmp_path, quick=True, budget=60).findings)
    assert "dearer in 16 and 8 bits than in 32: does not hold" in text


def test_the_grid_and_its_claims(made_up, tmp_path):
    study = ran("actorq-communication", tmp_path, budget=60)
    assert [len(table.rows) for table in study.tables] == [12, 12]
    speeds = study.tables[0].records()
    assert [speeds[3][f"{bits} bits"] is None for bits in BROADCAST_BITS] == [bits != 8 for bits in BROADCAST_BITS]
    torch = speeds[0]
    expected = 1000 / (2 + 0.5 + 33 * (0.003 * 4 + 0.05) + 0.1)
    assert torch["pull every"] == 30 and torch["32 bits"] == pytest.approx(expected)
    assert study.tables[1].records()[0]["8 bits"] == pytest.approx(33 * torch["8 bits"] / 1000)
    text = "\n".join(study.findings)
    assert "a gain, but less than the paper's 30 %" in text and text.count("“about nothing” holds") == 2
    assert "a pull would take 32 ms and leave" in text  # 4 MB at 1 Gbit/s


def test_verdicts_of_throughput_studies():
    verdict = throughput.verdict
    assert verdict(30, {8: (1.31, 1.2, 1.4), 4: (0.5, 0.4, 0.6)}) == "the paper's 30 % hold"
    assert verdict(30, {8: (1.2, 1.1, 1.3)}) == "a gain, but less than the paper's 30 %"
    assert verdict(30, {8: (1.04, 1.03, 1.05)}) == "the paper's gain does not hold here"
    assert verdict(30, {8: (1.2, 0.9, 1.6)}) == "the paper's gain does not hold here"
    assert verdict(1000, {8: (1.01, 1.0, 1.02), 4: (0.9, 0.7, 1.1)}).endswith("“about nothing” holds")
    assert verdict(1000, {8: (0.9, 0.85, 0.95)}).endswith("does not hold here")


def test_study_from_committed_cells(made_up, tmp_path, monkeypatch):
    kept = tmp_path / "kept"
    cells = ActorqCommunication().cells(False, Options())
    monkeypatch.setattr(ActorqCommunication, "cells", lambda self, quick, options: cells[:2])
    ran("actorq-communication", tmp_path, budget=60, cells=kept)
    monkeypatch.setattr(ActorqCommunication, "cells", lambda self, quick, options: cells)
    monkeypatch.setattr(throughput, "run_system", None)  # nothing is run
    study = ran("actorq-communication", tmp_path, budget=0, cells=kept)
    first, *others = (list(record.values())[3:] for record in study.tables[0].records())
    assert first[2:] == ["not run"] * 4 and isinstance(first[1], float)
    assert others[2] == [None, None, "not run", None, None, None]
    assert "Not reached within 0 min" in "\n".join(study.findings)
    with pytest.raises(UserError, match="Nothing could be measured"):
        ran("actorq-breakdown", tmp_path, budget=0, cells=kept)


def test_energy_with_counters(monkeypatch, tmp_path):
    with_joules = lambda *told, **more: dataclasses.replace(passed(*told, **more), joules=40.0)  # noqa: E731
    monkeypatch.setattr(throughput, "run_system", with_joules)
    table = ran("actorq-breakdown", tmp_path, quick=True, budget=60).tables[0]
    assert table.records()[0]["energy per 1000 steps, J"] == 40.0
    assert len(ran("actorq-communication", tmp_path, quick=True, budget=60).tables) == 3


def test_busy_machine_is_reported(made_up, tmp_path, monkeypatch):
    assert "busy" not in "\n".join(ran("actorq-breakdown", tmp_path / "quiet", quick=True, budget=60).findings)
    monkeypatch.setattr(throughput.os, "getloadavg", lambda: (9.0, 2.0, 2.0))
    text = "\n".join(ran("actorq-breakdown", tmp_path, quick=True, budget=60).findings)
    assert "busy with other things during 6 cells (load average up to 9)" in text


def test_measurements_with_replaced_actors_are_rejected(monkeypatch, tmp_path):
    monkeypatch.setattr(
        throughput, "run_system", lambda *told, **more: dataclasses.replace(passed(*told, **more), replaced=1)
    )
    with pytest.raises(UserError, match="quieter machine"):
        run_study("actorq-breakdown", True, lambda amount, label: None, Options(tmp_path))
