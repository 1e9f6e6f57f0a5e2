"""The studies of runs with actors, made of runs that nobody had to train, and a real run of seconds."""

import pytest

from shoal.errors import UserError
from shoal.report.panels import draw_figures
from shoal.system.files import finite
from shoal.training.config import TrainConfig
from shoal_papers import OF_CELLS, Options, run_study, study_of
from shoal_papers import cells as cells_module
from shoal_papers.quarl import actorq_model, actorq_speed, actorq_staleness, actorq_teams
from shoal_papers.quarl.actor_runs import Runs
from tests.papers.at_once import AtOnce
from tests.papers.test_actor_runs import TINY, made

STUDIES = {
    "actorq-speed": actorq_speed.ActorqSpeed(),
    "actorq-staleness": actorq_staleness.ActorqStaleness(),
    "actorq-teams": actorq_teams.ActorqTeams(),
}
NOTHING = {"rows": [], "speeds": [], "failed": []}


def every_cell(study, quick):
    return study.cells(quick, Options()) + (actorq_teams.width_cells(quick) if study.name == "actorq-teams" else [])


@pytest.mark.parametrize("name", STUDIES)
def test_every_cell_can_be_trained(name):
    """Settings are valid, names differ, seed 0 of everything comes first, and quick ones are short."""
    assert name in OF_CELLS
    for quick in (True, False):
        cells = every_cell(STUDIES[name], quick)
        assert len({cell.name for cell in cells}) == len(cells)
        for cell in cells:
            TrainConfig(**cell.settings["train"], episodes=10**9).checked()
        service = actorq_speed.service_cells(quick) if name == "actorq-speed" else []
        assert STUDIES[name].length(quick, Options()) == pytest.approx(sum(cell.seconds for cell in cells + service))
    seeds = [cell.settings["train"]["seed"] for cell in STUDIES[name].cells(False, Options())]
    assert seeds == sorted(seeds) and set(seeds) == {0, 1, 2}
    assert sum(cell.seconds for cell in every_cell(STUDIES[name], True)) < 100


def test_all_cells_take_at_most_two_hours():
    assert sum(study.length(False, Options()) for study in STUDIES.values()) <= 120 * 60


@pytest.mark.parametrize("name", STUDIES)
def test_zero_budget_without_cells_is_refused(name, tmp_path):
    with pytest.raises(UserError, match="Nothing could be measured: Not reached within 0 min"):
        run_study(name, False, lambda *_: None, Options(tmp_path, budget=0))


@pytest.mark.parametrize("name", STUDIES)
def test_rows_without_cells_are_not_run(name, tmp_path):
    study = study_of(name, NOTHING)
    expected = {"actorq-speed": [16, 16, 5], "actorq-staleness": [6], "actorq-teams": [18, 20]}[name]
    assert [len(table.rows) for table in study.tables] == expected
    assert all("not run" in row for table in study.tables[:2] for row in table.rows)
    assert not any("holds" in said or "told" in said for said in study.findings)
    draw_figures(study, tmp_path)


def test_the_papers_table():
    paper = actorq_speed.PAPER
    assert len(paper) == 11
    ratios = [(f"{row.float16:.2f}", f"{row.int8:.2f}") for row in paper.values()]
    assert ratios == [
        ("3.06", "3.12"), ("1.39", "1.63"), ("1.11", "1.57"), ("1.42", "1.82"), ("0.84", "2.82"), ("2.13", "3.06"),
        ("0.97", "1.50"), ("0.94", "2.89"), ("1.80", "3.70"), ("1.33", "2.23"), ("0.79", "5.42"),
    ]  # fmt: skip
    assert "geometric mean 2.50" in actorq_speed.paper_sentence()
    assert "geometric mean 1.32" in actorq_speed.paper_sentence()


def speed_data(kinds, task="Cartpole (Gym)", pace="actor-bound", rise=(20, 100, 190, 200)):
    """Three seeds of each kind; a kind's runs take as many seconds per point as it says."""
    figures = {"bottleneck": "actors", "lag_mean": 3.0, "samples_per_insert": 2.0}
    rows = [
        {"task": task, "pace": pace, "kind": kind,
         "run": made([value + seed for value in rise], [pause * (k + 1) for k in range(4)], 20.0, seed=seed, **figures)}
        for kind, pause in kinds.items()
        for seed in (2, 0, 1)
    ]  # fmt: skip
    return {"rows": rows, "failed": ["One cell is missing."]}


def test_times_and_their_ratios(tmp_path):
    kinds = {actorq_speed.TORCH: 3.0, actorq_speed.ONNX: 2.0, actorq_speed.HALF: 2.0, actorq_speed.INT8: 1.0}
    study = study_of("actorq-speed", finite(speed_data(kinds)))
    times, ratios, tasks, runs = (table.records() for table in study.tables)
    (row,) = [row for row in times if row["task"] == "Cartpole (Gym)" and row["pace"] == "actor-bound"]
    assert row["seeds"] == 3 and row["level"] == pytest.approx(20 + 0.95 * (201 - 20))
    assert row["float32, PyTorch, s"] == pytest.approx(3 * row["int8, s"]) and 2.9 < row["int8, s"] < 3.3
    assert [row["source"] for row in ratios].count("trained here") == 1
    (row,) = [row for row in ratios if row["source"] == "trained here"]
    assert row["int8"] == pytest.approx(3) and row["int8 over ONNX float32"] == pytest.approx(2)
    assert row["float16"] == pytest.approx(1.5) and row["paper int8"] == pytest.approx(3.705, abs=0.001)
    assert {row["hidden layers"] for row in tasks} == {"256 × 256"}
    assert len(runs) == 4 and runs[0]["lag, updates"] == 3 and runs[0]["env steps/s"] == pytest.approx(400 / 12)
    said = "\n".join(study.findings)
    assert "int8 converges as float32 does (return at the end 0.0 ± 0.0 over float32: holds)" in said
    assert "int8 is sooner than float32 in PyTorch: 3.00 times" in said
    assert "the bottleneck was not only the actors" not in said
    assert "float16 plays the same env steps sooner: 1.50 times (1.50 to 1.50): holds" in said
    assert said.endswith("One cell is missing.")
    assert "Actor-bound: int8 over float32, PyTorch 3.00 to 3.00 times" in said
    assert [path.name for path in draw_figures(study, tmp_path)] == ["actorq-speed.png", "actorq-speed-steps.png"]


def test_misnamed_pace_is_reported():
    data = speed_data({actorq_speed.TORCH: 1.0, actorq_speed.INT8: 0.5})
    for row in data["rows"]:
        row["run"]["actors"]["bottleneck"] = "learner" if row["kind"] == actorq_speed.INT8 else "actors"
    said = "\n".join(study_of("actorq-speed", data).findings)
    assert "actor-bound: the bottleneck was not only the actors, but also the other side with int8." in said


def test_unreached_level_has_no_time():
    data = speed_data({actorq_speed.TORCH: 1.0, actorq_speed.INT8: 0.5}, rise=(20, 20, 21, 20))
    study = study_of("actorq-speed", data)
    (row,) = [row for row in study.tables[0].records() if row["seeds"]]
    assert row["float32, PyTorch, s"] == row["int8, s"] == "not learnt" and row["level"] is None
    assert row["float16, s"] == "not run"
    assert any("Cartpole (Gym), actor-bound: not learnt, 22.0 at best" in said for said in study.findings)
    assert "trained here, not learnt" in [row["source"] for row in study.tables[1].records()]


def test_tasks_that_are_not_trained_are_marked_as_simulated():
    service = {cell.name for cell in actorq_speed.service_cells(quick=False)}
    assert len(service) == 3 * 6 and service < {
        cell.name for cell in actorq_model.ActorqModel().cells(False, Options())
    }
    found = NOTHING | {"simulated": {"Walker Stand": 2.5, "Acrobot (Gym)": 9.0}}
    rows = {(row["task"], row["pace"]): row for row in study_of("actorq-speed", found).tables[1].records()}
    assert rows["Walker Stand", None]["source"] == "simulated" and rows["Walker Stand", None]["int8"] == 2.5
    assert rows["Hopper Stand", None]["source"] == rows["Acrobot (Gym)", "actor-bound"]["source"] == "not run"


def test_infrequent_pulls(tmp_path):
    rows = [
        {"task": "Cartpole Balance", "pull": pull,
         "run": made([0, 500, *end], seed=seed, lag_mean=pull / 2, lag_p95=float(pull))}
        for pull, end in ((30, (900, 1000)), (300, (900, 1000)), (1000, (600, 700)))
        for seed in range(3)
    ]  # fmt: skip
    study = study_of("actorq-staleness", {"rows": rows, "failed": []})
    held = {row["pull every, steps"]: row for row in study.tables[0].records()[:3]}
    assert [held[pull]["lag p95, updates"] for pull in (30, 300, 1000)] == [30, 300, 1000]
    reached = [held[pull]["steps to 95 % of every-30's best"] for pull in (30, 300, 1000)]
    assert reached[0] == reached[1] == pytest.approx(350, abs=5) and reached[2] == "not reached"
    said = "\n".join(study.findings)
    assert "every 300 steps are as good as every 30: over the whole run 0.0 ± 0.0, holds" in said
    assert "does not hold" in said.split("every 1000 steps are as good")[1]
    draw_figures(study, tmp_path)


def test_teams_and_widths(tmp_path):
    seconds = {actorq_teams.TURNS: 2.0, actorq_teams.FULL: 1.0, actorq_teams.INT8: 1.0}
    rows = [
        {"algorithm": "maddpg", "agents": 3, "kind": kind,
         "run": made([-300, -250, -200], [pause * k for k in (1, 2, 3)], -300.0, seed=seed)}
        for kind, pause in seconds.items()
        for seed in range(3)
    ]  # fmt: skip
    rates = {64: (9000, 0.8), 128: (5000, 1.2), 256: (2000, 1.0), 512: (700, 1.5), 1024: (200, 3.0)}
    speeds = [
        {"agents": 3, "copies": 1, "width": width, "kind": kind, "steps_per_second": rate * factor,
         "bottleneck": "actors", "act_us": 1e6 / rate, "environment_us": 5.0}
        for width, (rate, gain) in rates.items()
        for kind, factor in ((actorq_teams.FULL, 1.0), (actorq_teams.INT8, gain))
    ]  # fmt: skip
    study = study_of("actorq-teams", {"rows": rows, "speeds": speeds, "failed": []})
    turns, full, int8 = study.tables[0].records()[:3]
    assert turns["to 95 % of in turn's best, s"] == pytest.approx(2 * full["to 95 % of in turn's best, s"])
    assert int8["env steps/s"] == 100 and turns["env steps/s"] == 50
    assert actorq_teams.reached(Runs([made([-9, -8], random=-7.0)]), Runs([made([-9, -8])])) == "not learnt"
    said = "\n".join(study.findings)
    assert "float32 actors keep the return of in turn over env steps (0.0 ± 0.0): holds" in said
    assert "sooner: 2.00 times (2.00 to 2.00): holds" in said
    assert "int8 pays from 2 × 512 on" in said and "0.80 at 64" in said
    assert len(draw_figures(study, tmp_path)) == 3


def test_a_real_run_with_quantized_actors(tmp_path, monkeypatch):
    """The quick form of the teams with one short run and one throughput."""
    monkeypatch.setattr(cells_module, "ChildPool", AtOnce)
    monkeypatch.setattr(actorq_teams, "KINDS", {actorq_teams.INT8: {**TINY, "actors": 1, "actor_precision": "int8"}})
    monkeypatch.setattr(actorq_teams, "COMMON", {})
    monkeypatch.setattr(actorq_teams, "STEPS", {3: 4_000})
    monkeypatch.setattr(actorq_teams, "width_cells", lambda quick: [])
    told = []
    study = run_study("actorq-teams", True, lambda amount, label: told.append(amount), Options(tmp_path))
    (row,) = study.data["rows"]
    assert row["run"]["actors"]["samples_per_insert"] > 0 and row["run"]["updates"] > 0
    assert study.tables[0].records()[0 + 2]["seeds"] == 0  # these kinds are not the study's own
