"""The studies of MAC units, made of trainings that nobody had to run."""

import functools
import shlex

import pytest
import torch

from shoal.classifiers.config import ClassifierConfig
from shoal.errors import UserError
from shoal.numerics import parse_scheme
from shoal.report.panels import draw_figures
from shoal.system.files import finite
from shoal.training.config import TrainConfig
from shoal_papers import OF_CELLS, STUDIES, Options, run_study, study_length, study_of
from shoal_papers import cells as cells_module
from shoal_papers.mac import error as mac_error
from shoal_papers.mac import frameworks
from shoal_papers.mac import runs as mac_runs
from shoal_papers.mac import teams as mac_teams
from shoal_papers.mac.runs import TASKS, Kind, baseline, cells
from shoal_papers.study import Study
from tests.papers.at_once import AtOnce
from tests.papers.test_mac_runs import outcome, rows_of

NAMES = (
    "schemes", "mac-formats", "mac-configs", "mac-accumulators", "mac-full", "mac-updates", "mac-orders", "mac-layers",
    "mac-other-formats",
)  # fmt: skip
ONE_CORE = 75 * 60


def kinds_of(name, quick):
    study_length(name, quick)  # imports its module
    return list(dict.fromkeys(Study.named[name].kinds(quick)))


def result(name, accuracy):
    """A study whose kinds have the accuracies that a function gives them."""
    rows = [
        row for kind in kinds_of(name, False) for row in rows_of(kind, [accuracy(kind) + d for d in (0, 0.01, 0.02)])
    ]
    return study_of(name, finite({"rows": rows, "failed": ["One cell is missing."]}))


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_can_be_trained(name):
    """Schemes can be parsed, quick kinds are in the table, and quick forms are short."""
    assert name in OF_CELLS and name in STUDIES
    every = kinds_of(name, False)
    for kind in every:
        settings = kind.cell(0, False).settings["train"]
        ClassifierConfig(**settings).checked()
    assert set(kinds_of(name, True)) <= set(every) and {baseline(kind.task) for kind in every} <= set(every)
    assert study_length(name, True) < 100


def test_cell_names_are_unique_and_costs_fit_the_budget():
    """All studies share one folder; kinds in common count once."""
    every = list(dict.fromkeys(kind for name in NAMES for kind in kinds_of(name, False)))
    todo = cells(every, False)
    assert len({cell.name for cell in todo}) == len(todo) == 3 * len(every)
    assert len({str(cell.settings) for cell in todo}) == len(todo)
    assert sum(cell.seconds for cell in todo) + study_length("mac-error", False) <= ONE_CORE
    assert {kind.task for kind in every} <= set(TASKS)


@pytest.mark.parametrize("name", NAMES)
def test_claims_without_cells_are_not_judged(name, tmp_path):
    study = study_of(name, {"rows": [], "failed": []})
    assert all("not run" in row for row in study.tables[-1].rows)
    assert not any("HOLD" in said for said in study.findings)
    draw_figures(study, tmp_path)
    with pytest.raises(UserError, match="Nothing could be measured: Not reached within 0 min"):
        run_study(name, False, lambda *_: None, Options(tmp_path, budget=0))


@pytest.mark.parametrize("name", NAMES)
def test_a_full_study_is_drawn(name, tmp_path):
    study = result(name, lambda kind: 0.9)
    assert not any("not run" in row for table in study.tables for row in table.rows)
    assert study.findings[-1] == "One cell is missing."
    assert draw_figures(study, tmp_path)[0].stat().st_size > 5_000


def verdicts(study, label):
    return [row["verdict"] for row in study.tables[-1].records() if row["claim"] == label]


def test_loss_scaling():
    """(a) and (b): E4 and E5 fail without loss scaling, E6 does not, and narrow accumulators make it worse."""

    def accuracy(kind):
        if kind.loss_scale != "none" or kind.scheme[1] == "6" or kind == baseline():
            return 0.9
        return 0.3 if kind.scheme.endswith("M5") else 0.6

    study = result("mac-formats", accuracy)
    assert set(verdicts(study, "a")) == set(verdicts(study, "b")) == {"holds"}
    study = result("mac-formats", lambda kind: 0.9 if kind == baseline() or kind.scheme[:4] != "E4M2" else 0.8)
    assert verdicts(study, "b") == ["does not hold"] * 2 and "does not hold" in verdicts(study, "a")


def test_configurations():
    study = result("mac-configs", lambda kind: 0.5 if ":2+" in kind.scheme else 0.9)
    assert set(verdicts(study, "c")) == {"holds"}


def test_accumulators():
    """(d) and (e): what has few exponent bits or few fraction bits fails."""

    def accuracy(kind):
        sums = kind.scheme.partition("+")[2]
        exponent = int(sums[1]) if sums.startswith("E") else 9
        fraction = int(sums.partition(".")[2]) if sums.startswith("Q") else 99
        return 0.9 - 0.2 * (exponent == 4) - 0.1 * (sums == "E5M3") - 0.3 * (fraction < 12)

    study = result("mac-accumulators", accuracy)
    assert set(verdicts(study, "d")) == set(verdicts(study, "e")) == {"holds"}


def test_whole_units():
    """(f) and (g) as in the slides, whose numbers are beside ours."""
    low = {"E4M2:5+E5M5", "E4M2:5+Q8.12", "E5M2:5+Q8.12"}
    study = result(
        "mac-full",
        lambda kind: 0.5 if kind.scheme in low or kind == Kind("E5M2:5+Q8.13", task="wide-resnet") else 0.9,
    )
    assert set(verdicts(study, "f")) == set(verdicts(study, "g")) == {"holds"}
    paper = {(row["our model"], row["unit"]): row for row in study.tables[0].records()}
    assert paper["resnet20 on digits", "E5M2:5+E6M5"]["slides against float32, points"] == pytest.approx(-0.81)
    assert paper["wide-resnet on digits", "E5M2:5+Q8.13"]["slides, %"] == 10.92


def test_schemes_compared_with_published_results():
    study = result("schemes", lambda kind: 0.8 if kind.scheme == "swalp" else 0.9)
    assert {row["verdict"] for row in study.tables[-1].records()} == {"holds"}
    row = study.tables[0].records()[0]
    assert row["scheme"] == "swalp" and row["published against float32, points"] == pytest.approx(-4.5)
    assert row["ours against float32, points"] == "-10.0 ± 0.0"


def test_questions_have_no_verdict():
    study = result("mac-updates", lambda kind: 0.5 if kind.scheme == "float32; master=bf16" else 0.9)
    (said,) = [said for said in study.findings if "rounding a narrow master" in said]
    assert "Holds: bf16 nearest against float32 (-40.0 ± 0.0 points)." in said
    study = result("mac-orders", lambda kind: 0.5 if kind.scheme == "E5M2:5+E6M2" else 0.9)
    assert any("Holds: E6M2: sequential against chunked(16)" in said for said in study.findings)


# ---- error analysis -------------------------------------------------------------------------------------------------


def spread(**changes):
    """A product of 96 terms whose results need no more than E5."""
    plain = {"layer": "stem", "product": "forward", "terms": 96, "macs": 1000, "largest": 100.0, "low": 0.01,
             "condition": 5.0, "walk": 0.9}  # fmt: skip
    return plain | changes


def test_bits_from_ranges_and_conditions():
    assert mac_error.predicted_error(spread(), 3) == pytest.approx(4 / 16)
    assert mac_error.predicted_error(spread(walk=2.0), 4) == pytest.approx(4 / 16)
    sizes = ((60.0, 0.02), (70.0, 0.02), (60.0, 0.01), (1e4, 1e-4), (1e5, 1e-4), (1e30, 1e-20))
    assert [mac_error.exponent_bits(spread(largest=largest, low=low)) for largest, low in sizes] == [4, 5, 5, 5, 6, 7]
    found = [spread(), spread(layer="out", terms=96 * 16), spread(layer="out", product="grad_weight", largest=1e5)]
    names = mac_error.by_layer(found, "E6M5")
    assert [name[:2] for name in names] == ["E5", "E5", "E6"]
    assert int(names[1][3]) - int(names[0][3]) == 2  # sixteen times the terms: four times the error
    assert mac_error.mean_luts(found, names) <= mac_error.luts("E6M5")
    kind = mac_error.designed(found, "E6M5")
    assert kind.name == "E5M2:5+E6M5 by layer" and set(parse_scheme(kind.scheme).layer_units()) == {
        ("stem", "forward"), ("out", "forward"), ("out", "grad_weight"),
    }  # fmt: skip


def test_ranges_of_a_layer():
    """A product of ones has condition 1, and K terms of size 1."""
    layer = torch.nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False)
    torch.nn.init.ones_(layer.weight)
    found = mac_error.layer_ranges("stem", layer, torch.ones(3, 2, 8, 8), torch.ones(3, 4, 4, 4))
    assert [(one["product"], one["terms"], one["largest"]) for one in found] == [
        ("forward", 18, 18.0), ("grad_input", 9, 16.0), ("grad_weight", 48, 48.0),
    ]  # fmt: skip
    assert all(one["condition"] == 1 and one["walk"] < 1 for one in found)
    layer = torch.nn.Linear(6, 2)
    found = mac_error.layer_ranges("out", layer, torch.ones(5, 6), torch.ones(5, 2))
    assert [(one["product"], one["terms"], one["macs"]) for one in found] == [
        ("forward", 6, 60), ("grad_input", 2, 60), ("grad_weight", 5, 60),
    ]  # fmt: skip
    with pytest.raises(UserError, match="All results of the product forward of out are zero"):
        mac_error.layer_ranges("out", layer, torch.zeros(5, 6), torch.ones(5, 2))


def test_units_by_layer(monkeypatch, tmp_path):
    """A real analysis; the trainings are not run."""
    monkeypatch.setattr(cells_module, "ChildPool", AtOnce)
    train = functools.wraps(mac_runs.train_one)(lambda settings, folder: outcome(settings["train"]["seed"]))
    monkeypatch.setattr(mac_runs, "train_one", train)
    monkeypatch.setattr(mac_error, "STEPS", 1)
    study = run_study("mac-error", False, lambda *_: None, Options(tmp_path))
    assert len(study.tables[0].rows) == 3 * 8 and len(study.data["rows"]) == 3 * 7
    assert verdicts(study, "–") == ["does not hold"] * 3
    for row in study.data["rows"]:
        ClassifierConfig(scheme=row["scheme"], loss_scale=row["loss_scale"]).checked()
    assert study_of("mac-error", finite(study.data)).findings == study.findings
    assert draw_figures(study, tmp_path)[0].stat().st_size > 5_000
    nothing = study_of("mac-error", {"rows": [], "ranges": [], "failed": []})
    assert not nothing.tables[0].rows and not nothing.figures[0].panels


# ---- teams ----------------------------------------------------------------------------------------------------------


def team_rows(returns):
    return [
        {"kind": kind, "run": {
            "seed": seed, "episodes": [100.0, 200.0], "returns": [-220.0, value], "trained": value + seed,
            "random": -220.0,
            "scales": {"critics": 4.0, "actors": 4096.0}, "skipped": {"critics": 3, "actors": 1},
            "shares": {"saturated": 1e-5, "overflowed": 0.0, "underflowed": 0.0}, "diverged": "", "seconds": 9.0}}
        for kind, value in returns.items() for seed in range(3)
    ]  # fmt: skip


def test_teams_can_be_trained():
    for quick in (True, False):
        todo = mac_teams.MacTeams().cells(quick, Options())
        assert len({cell.name for cell in todo}) == len(todo)
        for cell in todo:
            TrainConfig(**cell.settings["train"]).checked()
    assert mac_teams.MacTeams().length(True, Options()) < 60


def test_findings_about_what_breaks_first_in_a_team(tmp_path):
    returns = dict.fromkeys(mac_teams.KINDS, -180.0) | {mac_teams.PARTS[0]: -210.0, "update only, E4M3": -219.0}
    data = {"rows": team_rows(returns), "failed": ["One cell is missing."]}
    data["rows"][3]["run"] |= {"diverged": "The q loss is nan.", "trained": None}
    study = study_of("mac-teams", finite(data))
    told = {row["precision"]: row["verdict"] for row in study.tables[0].records()}
    assert told[mac_teams.UNIT] == "keeps the return" and told[mac_teams.PARTS[0]] == "loses"
    assert told["bf16"] == "diverges" and told["float32"] == "–"
    said = "\n".join(study.findings)
    assert f"part by part: {mac_teams.PARTS[0]}, update only, E4M3." in said
    records = study.tables[0].records()
    assert records[1]["loss scales at the end"] == "critics 2^2, actors 2^12"
    assert [row["gain kept"] for row in records[:3]] == [1, 1, 1] and records[-2]["gain kept"] == pytest.approx(2 / 41)
    assert records[2]["above random"] == "41.0 ± 2.5" and records[-1]["final return"] == "-220.0 ± 0.0"
    assert "against random policies: 41.0 ± 2.5; against float32: keeps the return." in said
    draw_figures(study, tmp_path)
    nothing = study_of("mac-teams", {"rows": [], "failed": []})
    assert {row["verdict"] for row in nothing.tables[0].records()} == {"–", "not run"}


def test_team_is_trained_end_to_end(tmp_path, monkeypatch):
    """The quick form with tiny networks; a curve is kept, and what the units counted."""
    tiny = {
        "hidden": (8,),
        "batch": 32,
        "warmup": 100,
        "update_every": 50,
        "copies": 4,
        "log_every": 5,
        "capacity": 1_000,
    }
    monkeypatch.setattr(cells_module, "ChildPool", AtOnce)
    monkeypatch.setattr(mac_teams, "WORLD", {**mac_teams.WORLD, **tiny})
    monkeypatch.setattr(mac_teams, "QUICK_EPISODES", 30)
    monkeypatch.setattr(mac_teams, "EVALUATED", 4)
    study = run_study("mac-teams", True, lambda *_: None, Options(tmp_path))
    full, unit = (row["run"] for row in study.data["rows"])
    assert full["shares"] == {} and set(unit["scales"]) == {"critics", "actors"} and unit["shares"]["saturated"] == 0
    assert (
        len(unit["returns"]) == len(unit["episodes"]) > 1 and unit["trained"] < 0 and unit["random"] == full["random"]
    )


# ---- frameworks -----------------------------------------------------------------------------------------------------


def test_commands_of_the_framework_comparison_exist():
    from shoal.cli import COMMANDS

    study = run_study("frameworks", True, lambda *_: None)
    marks, cells_of_ours = study.tables
    assert [row["framework"] for row in marks.records()] == [*frameworks.SLIDES, "Shoal"]
    for row in cells_of_ours.records():
        words = shlex.split(row["command"])
        assert words[0] == "shoal" and words[1] in COMMANDS
