"""Trainings through MAC units beside their cost."""

import pytest

from shoal.classifiers import training
from shoal.classifiers.sweep import train_units, training_result
from shoal.errors import UserError
from tests.classifiers.helpers import tiny

UNITS = ("E5M2:5+E6M5", "Q4.4+E6M5", "E5M2:5+Q8.13")


def test_accuracy_over_area(tmp_path, monkeypatch):
    config = tiny(tmp_path / "all", epochs=1, train_images=32)
    found = train_units(UNITS, config)
    assert [one.scheme for one in found] == [*UNITS, "float32"]
    result = training_result(found, config)
    rows, costs = (table.records() for table in result.tables)
    assert [row["system LUTs"] for row in costs] == ["42,640", "–", "43,471"] and costs[1]["pJ/MAC"] is None
    assert [one["system_luts"] for one in result.data["trainings"]] == [42_640, None, 43_471, None]
    assert result.data["trainings"][0]["accuracy"] == rows[0]["accuracy"] == found[0].accuracy
    panel = result.figures[0].panels[0]
    assert panel.series[0].at == [42_640, 43_471] and panel.level == found[-1].accuracy
    assert result.figures[0].key == ["1  E5M2:5+E6M5", "2  E5M2:5+Q8.13"]

    monkeypatch.setattr(training, "ClassifierTraining", None)  # nothing is trained again
    assert train_units(UNITS, config) == found
    with pytest.raises(UserError, match="holds another sweep"):
        train_units(UNITS[:1], config)


def test_sweep_without_units_is_refused():
    with pytest.raises(UserError, match="at least one MAC unit"):
        train_units((), tiny())
