"""A result is the same after JSON, whether its data stand beside the rest or apart."""

import json

import pytest

from shoal.errors import UserError
from shoal.results import Column, Figure, Panel, Result, Series, Table

RESULT = Result(
    "growth",
    "Growth",
    [Table.of("T", [{Column("time", "ms", ".1f"): 1.5, Column("what"): "a"}]), Table.of("empty", [])],
    ["It grows."],
    [Figure("growth", "Growth", [Panel("a", "times", [Series("x", [1.0, None], "bars")], ticks=["3", "6"], level=2)])],
    {"rows": [{"agents": 3}], "failed": []},
).made_by("study", "growth", "--out", "my studies")


@pytest.mark.parametrize("nested", [True, False])
def test_results_round_trip(nested):
    held = json.loads(json.dumps(RESULT.to_json(nested)))
    assert Result.from_json(held) == RESULT
    assert held["tables"] == [["T", [{"time, ms": 1.5, "what": "a"}]], ["empty", []]]
    assert (held["data"] if nested else held)["rows"] == [{"agents": 3}]


def test_provenance():
    provenance = RESULT.provenance
    assert provenance.command == "shoal study growth --out 'my studies'"
    assert provenance.processors >= 1 and provenance.processor and set(provenance.packages) >= {"numba", "torch"}
    assert provenance.date.endswith("+00:00") and provenance.version and provenance.memory_bytes > 2**20


def test_files_of_older_versions_are_read():
    profile = {"machine": "m", "rows": [1], "failed": []}
    assert Result.from_json(profile) == Result("", "", data=profile)
    study = {
        "name": "growth",
        "title": "t",
        "tables": [["T", []]],
        "findings": [],
        "picture": "growth",
        "data": profile,
    }
    assert Result.from_json(study) == Result("growth", "t", data=profile)


@pytest.mark.parametrize(
    "change",
    [
        {"tables": 5},
        {"tables": [["T"]], "columns": [[]]},
        {"columns": []},
        {"columns": [[{"nam": "x"}], []]},
        {"figures": [{"name": "x"}]},
        {"figures": [{"name": "x", "title": "", "panels": [{"series": [{}]}]}]},
        {"provenance": {"command": "x"}},
        {"provenance": "x"},
        {"findings": None},
    ],
)
def test_wrong_files_are_refused(change):
    with pytest.raises(UserError, match="not a result that Shoal wrote"):
        Result.from_json(RESULT.to_json() | change)
