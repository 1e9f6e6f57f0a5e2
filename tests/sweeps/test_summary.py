"""The table and the curves of a sweep, from run folders written by hand."""

import json

import numpy as np
import pytest

from shoal.sweeps.plan import sweep_runs
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
    assert first["return"] == pytest.approx(3.0) and first["time per run, s"] == 2.0 and first["seeds"] == 3
    assert first["95 % interval"] == f"{3 - half:,.2f} to {3 + half:,.2f}"
    assert (second["seeds"], second["failed"], second["95 % interval"]) == (1, 1, "–")
    assert found.findings == ["tau=0.2-seed1 failed: It broke.", "1 run not finished."]
    curve, single = found.figures[0].panels[0].series
    assert curve.label == "tau 0.1" and curve.at == [10, 30] and curve.values == pytest.approx([3.0, 5.0])
    assert np.array(curve.high) - curve.values == pytest.approx([half, half]) and single.low == []


def test_nothing_finished_has_no_picture(tmp_path):
    found = summarize([Outcome(run, None) for run in sweep_runs({"seeds": "0-1"}, tmp_path)], "None")
    assert found.figures == [] and found.findings == ["2 runs not finished."]
