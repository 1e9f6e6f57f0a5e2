"""The table and the curves of a sweep, from run folders written by hand."""

import json

import numpy as np
import pytest

from shoal.sweeps.grid import sweep_runs
from shoal.sweeps.side_by_side import Outcome
from shoal.sweeps.summary import summarize
from shoal.training.result import TrainResult
from shoal.training.returns import confidence95


def outcome(run, value, points):
    run.folder.mkdir()
    lines = [json.dumps({"episode": episode, "return_mean": mean}) for episode, mean in points]
    (run.folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return Outcome(run, TrainResult(str(run.folder), True, 1, 1, 1, 2.0, 1.0, -9.0, return_deterministic=value))


def test_means_and_intervals_over_seeds(tmp_path):
    runs = sweep_runs({"grid": {"tau": [0.1, 0.2]}, "seeds": "0-2"}, tmp_path)
    values = [1.0, 2.0, 6.0]
    ended = [outcome(run, value, [(10, value), (30, value + 2)]) for run, value in zip(runs, values, strict=False)]
    ended += [
        outcome(runs[3], 5.0, [(10, 0.0), (20, 1.0)]),
        Outcome(runs[4], None, "It broke."),
        Outcome(runs[5], None),
    ]
    found = summarize(ended, "Taus")
    first, second = found.tables[0].records()
    half = confidence95(np.array(values))
    assert first["return"] == f"3.00 ± {half:,.2f}" and first["time per run, s"] == 2.0 and first["seeds"] == 3
    assert (second["seeds"], second["failed"], second["return"]) == (1, 1, "5.00")
    first, second = found.data["configurations"]
    assert (first["return"], first["return_ci95"]) == (pytest.approx(3.0), pytest.approx(half))
    assert (second["return"], second["return_ci95"], second["seconds"]) == (5.0, None, 2.0)
    assert found.findings == ["tau=0.2-seed1 failed: It broke.", "1 run not finished."]
    curve, single = found.figures[0].panels[0].series
    assert curve.label == "tau 0.1" and curve.at == [10, 30] and curve.values == pytest.approx([3.0, 5.0])
    assert np.array(curve.high) - curve.values == pytest.approx([half, half]) and single.low == []


def test_mixed_teams_are_summarised_by_group(tmp_path):
    def ended(run, red, blue, evaluated=True):
        run.folder.mkdir()
        line = {"episode": 10, "return_mean": 0.0, "return/group/red": red, "return/group/blue": blue}
        (run.folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        own = {name: {"training": value} for name, value in (("red", red), ("blue", blue))}
        if evaluated:
            own = {name: {"training": -99.0, "deterministic": values["training"]} for name, values in own.items()}
        return Outcome(run, TrainResult(str(run.folder), True, 1, 1, 1, 2.0, 1.0, 0.0, groups=own))

    runs = sweep_runs({"seeds": "0-2"}, tmp_path)
    found = summarize([ended(runs[0], 1.0, -1.0), ended(runs[1], 3.0, -5.0, False), Outcome(runs[2], None)], "Sides")
    half = confidence95(np.array([1.0, 3.0]))
    (row,) = found.tables[0].records()
    assert row["group red"] == f"2.00 ± {half:,.2f}" and row["group blue"].startswith("-3.00 ± ")
    assert "failed" not in row and "random team" not in row  # none has
    assert found.data["configurations"][0]["return_ci95/group/red"] == pytest.approx(half)
    assert [panel.title for panel in found.figures[0].panels] == ["red", "blue"]
    assert [panel.series[0].values for panel in found.figures[0].panels] == [[2.0], [-3.0]]
    assert [run["return/group/blue"] for run in found.to_json()["runs"]] == [-1.0, -5.0, None]


def test_random_team_column_is_not_repeated(tmp_path):
    base = {"env": "predator-prey", "prey": "learned"}
    runs = sweep_runs({"base": base, "grid": {"tau": [0.1, 0.2]}, "seeds": "0-1"}, tmp_path)

    def ended(run, value, random):
        own = {name: {"training": sign * value} for name, sign in (("predator", 1), ("prey", -1))}
        return Outcome(run, TrainResult("", True, 1, 1, 1, 2.0, 1.0, value, return_random=random, groups=own))

    found = summarize([ended(run, *two) for run, two in zip(runs, [(2, 1), (4, 2), (5, 3)], strict=False)], "Both")
    table = found.tables[0]
    first, second = table.records()
    assert list(first) == ["configuration", "seeds", "return", "random team", "group prey", "time per run, s"]
    assert found.findings[0] == "The return is that of group predator."
    assert (first["random team"], second["random team"], second["return"]) == ("1.50", "3.00", "5.00")
    first, second = found.data["configurations"]
    assert (first["return_random"], second["return/group/predator"]) == (1.5, 5.0)
    assert [run["return_random"] for run in found.to_json()["runs"]] == [1, 2, 3]


def test_groups_with_a_shared_reward_are_not_the_team(tmp_path):
    (run,) = sweep_runs({}, tmp_path)
    groups = {"speaker": {"training": 2.0}, "listener": {"training": 2.0}}
    found = summarize([Outcome(run, TrainResult("", True, 1, 1, 1, 2.0, 1.0, 2.0, groups=groups))], "Both")
    assert {"return", "group speaker", "group listener"} <= found.tables[0].records()[0].keys()
    assert not [sentence for sentence in found.findings if "that of group" in sentence]


def test_every_world_has_a_panel(tmp_path):
    worlds = ["cooperative-navigation", "predator-prey"]
    runs = sweep_runs({"grid": {"env": worlds, "tau": [0.1, 0.2]}}, tmp_path)
    found = summarize([outcome(run, 1.0, [(10, 1.0)]) for run in runs], "Worlds")
    assert [panel.title for panel in found.figures[0].panels] == worlds
    for panel in found.figures[0].panels:
        assert [curve.label for curve in panel.series] == ["tau 0.1", "tau 0.2"]  # the same colours in both
    assert found.tables[0].rows[2][0] == "env predator-prey, tau 0.1"


def test_unreadable_log_loses_only_its_own_curve(tmp_path):
    runs = sweep_runs({"seeds": "0-1"}, tmp_path)
    ended = [outcome(run, value, [(10, value), (20, value)]) for run, value in zip(runs, (1.0, 3.0), strict=True)]
    (runs[0].folder / "metrics.jsonl").unlink()
    found = summarize(ended, "One log")
    assert found.data["configurations"][0]["return"] == 2.0 and found.figures[0].panels[0].series[0].values == [
        3.0,
        3.0,
    ]
    (finding,) = found.findings
    assert finding.startswith("One run is missing from the curve: Cannot read the metrics")


def test_no_picture_without_finished_runs(tmp_path):
    found = summarize([Outcome(run, None) for run in sweep_runs({"seeds": "0-1"}, tmp_path)], "None")
    assert found.figures == [] and found.findings == ["2 runs not finished."]


def test_runs_without_an_update_are_untrained(tmp_path):
    def ended(run, updates):
        return Outcome(run, TrainResult("", True, 1, 1, updates, 2.0, 1.0, 3.0))

    runs = sweep_runs({"grid": {"warmup": [5, 6]}, "seeds": "0-1"}, tmp_path)
    found = summarize([ended(run, updates) for run, updates in zip(runs, (0, 0, 7, 0), strict=True)], "Warm-ups")
    assert [row["return"] for row in found.tables[0].records()] == ["3.00 ± 0.00, untrained", "3.00 ± 0.00"]
    assert [run["updates"] for run in found.data["runs"]] == [0, 0, 7, 0]
    assert "3 runs ended before the warm-up, without a single update: untrained." in found.findings


@pytest.mark.parametrize(
    ("random", "said"),
    [
        (0.0, []),
        (2.5, ["The 95 % interval over seeds includes the random team's return: docs/advice.md says"]),
        (9.0, ["The trained team does worse than the random one: docs/advice.md says"]),
    ],
)
def test_team_no_better_than_random_is_reported(tmp_path, random, said):
    runs = sweep_runs({"seeds": "0-2"}, tmp_path)
    ended = [
        Outcome(run, TrainResult("", True, 1, 1, 1, 2.0, 1.0, value, return_random=random))
        for run, value in zip(runs, (2.0, 2.1, 2.6), strict=True)
    ]
    findings = [sentence for sentence in summarize(ended, "Seeds").findings if "missing from" not in sentence]
    assert [sentence.partition(" what to try")[0] for sentence in findings] == said


def test_single_run_is_named_by_its_seed(tmp_path):
    (one,) = sweep_runs({"seeds": [3]}, tmp_path)
    (row,) = summarize([outcome(one, 1.0, [(10, 1.0)])], "One").tables[0].records()
    assert row["configuration"] == "seed 3"
    runs = sweep_runs({"seeds": "4-5"}, tmp_path)
    (row,) = summarize([outcome(run, 1.0, [(10, 1.0)]) for run in runs], "Two").tables[0].records()
    assert row["configuration"] == "all settings the same"
