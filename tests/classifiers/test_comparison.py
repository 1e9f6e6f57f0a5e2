"""Several schemes and their baseline: folders, resuming, the table and the figure."""

import os
import signal
from dataclasses import replace

import pytest

from shoal.classifiers import comparison, training
from shoal.classifiers.comparison import Comparison, compare, read_comparison, split_schemes, train_units
from shoal.classifiers.report import comparison_result, training_result
from shoal.classifiers.training import TrainingDiverged
from shoal.errors import UserError
from shoal.results import Result
from shoal.runs.observer import Observer
from tests.classifiers.helpers import tiny

UNIT = "E5M2:5+Q8.13"


class StopAt(Observer):
    """Stops the training in a scheme after some steps."""

    def __init__(self, scheme, step):
        self.scheme, self.step, self.begun = scheme, step, []

    def begin(self, training, folder):
        self.begun.append((training.config.scheme, training.done))

    def advance(self, training):
        if (training.config.scheme, training.done) == (self.scheme, self.step):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("words", "schemes"),
    [
        (["hfp8,bm8, E5M2:5+E6M5"], ("hfp8", "bm8", "E5M2:5+E6M5")),
        (["hfp8", "E5M2:5+E6M5, order=pairwise"], ("hfp8", "E5M2:5+E6M5, order=pairwise")),
        (["E5M2:5+E6M5, order=pairwise, fused=False,bf16"], ("E5M2:5+E6M5, order=pairwise, fused=False", "bf16")),
        (["hfp8; master=E6M9, rounding=stochastic; update=compensated,fp16"],
         ("hfp8; master=E6M9, rounding=stochastic; update=compensated", "fp16")),
        (["E4M3:5(bias=8)+E6M5,E5M2:5+Q8.13"], ("E4M3:5(bias=8)+E6M5", "E5M2:5+Q8.13")),
        ([], ()), (["hfp8,", ""], ("hfp8",)),
    ],
)  # fmt: skip
def test_schemes_of_a_command_line(words, schemes):
    assert split_schemes(words) == schemes


def test_duplicate_schemes_are_refused():
    with pytest.raises(UserError, match="names hfp8 twice"):
        split_schemes(["hfp8,bm8", "hfp8"])
    with pytest.raises(UserError, match="names fp32 twice"):
        split_schemes(["fp32,float32"])


def test_one_scheme_and_its_baseline(tmp_path, monkeypatch):
    both = Comparison(tiny(tmp_path / "run", scheme=UNIT, loss_scale="64"), (UNIT,))
    folder, results = compare(both)
    assert folder == tmp_path / "run" and [result.scheme for result in results] == [UNIT, "float32"]
    assert (folder / "float32/result.json").exists()
    assert read_comparison(folder).schemes == (UNIT,)
    monkeypatch.setattr(training, "ClassifierTraining", None)  # nothing is trained again
    assert compare(replace(both, config=replace(both.config)), resume=True) == (folder, results)
    with pytest.raises(UserError, match="already holds a run"):
        compare(both)


@pytest.mark.parametrize("name", ["float32", "fp32", "FP32"])
def test_float32_is_its_own_baseline(tmp_path, name):
    one = Comparison(tiny(tmp_path / "run", scheme=name, epochs=1), (name,))
    folder, results = compare(one)
    assert [result.scheme for result in results] == [name] and not (folder / "float32").exists()
    assert comparison_result(one, folder, results).tables[0].records()[0]["against float32, points"] is None
    beside = Comparison(one.config, (UNIT, name))
    assert [config.scheme for config in beside.configs(folder)] == [UNIT, name]
    assert len(Comparison(one.config, ("float32; master=bf16",)).configs(folder)) == 2


def test_stopped_in_the_baseline(tmp_path):
    both = Comparison(tiny(tmp_path / "run", scheme=UNIT), (UNIT,))
    _, results = compare(both, StopAt("float32", 3))
    assert [(result.scheme, result.signal) for result in results] == [(UNIT, None), ("float32", signal.SIGTERM)]
    observer = StopAt("", 0)
    _, results = compare(both, observer, resume=True)
    assert observer.begun == [("float32", 3)] and results[-1].finished


def test_several_schemes(tmp_path):
    config = tiny(tmp_path / "all", model="resnet8", train_images=32, epochs=1, loss_scale="16", log_every=1)
    several = Comparison(config, (UNIT, "E5M2:5+E6M5, rounding=toward-zero"))
    _, stopped = compare(several, StopAt(several.schemes[1], 1))
    assert len(stopped) == 2 and stopped[-1].signal == signal.SIGTERM
    assert read_comparison(tmp_path / "all") == several
    observer = StopAt("", 0)
    folder, results = compare(several, observer, resume=True)
    assert observer.begun == [(several.schemes[1], 1), ("float32", 0)]
    names = ["1-E5M2-5-Q8.13", "2-E5M2-5-E6M5-rounding-toward-zero", "float32", "schemes.json"]
    assert sorted(os.listdir(folder)) == names

    found = comparison_result(several, folder, results)
    assert Result.from_json(found.to_json()) == found
    rows = found.tables[0].records()
    assert [row["scheme"] for row in rows] == [*several.schemes, "float32"]
    assert rows[0]["against float32, points"] == pytest.approx(100 * (results[0].accuracy - results[2].accuracy))
    assert rows[2]["against float32, points"] is None and rows[2]["saturated"] is None
    *curves, counts = found.figures[0].panels
    assert [panel.title for panel in curves] == ["accuracy on the test images", "training loss", "loss scale"]
    assert [series.label for series in curves[1].series] == [*several.schemes, "float32"]
    assert [series.label for series in curves[2].series] == list(several.schemes)
    assert curves[1].series[0].at == [1, 2]
    assert counts.rows == list(several.schemes) and counts.cells[0][2] == results[0].share("underflowed") > 0


def test_map_of_layers_and_roles(tmp_path):
    config = tiny(tmp_path / "run", model="resnet8", scheme=UNIT, train_images=32, epochs=1, baseline=False)
    one = Comparison(config, (UNIT,))
    folder, results = compare(one)
    figure = comparison_result(one, folder, results).figures[0]
    maps = [panel for panel in figure.panels if panel.cells]
    assert [panel.title.partition(",")[0] for panel in maps] == ["saturated", "overflowed", "underflowed"]
    assert maps[0].rows[:3] == ["stem", "stages.0.0.conv1", "stages.0.0.conv2"] and maps[0].rows[-1] == "classify"
    assert maps[0].ticks == ["weights", "inputs", "act. grads", "forward", "grad input", "grad weight"]
    held = {(layer["layer"], layer["role"]): layer for layer in results[0].layers}
    for row, cells in zip(maps[2].rows, maps[2].cells, strict=True):
        own = held[row, "grad_weight"]
        assert cells[-1] == own["underflowed"] / own["numbers"]
    assert maps[2].cells[0][4] is None  # the stem's inputs need no gradient


def test_one_of_several_schemes_diverges(tmp_path):
    schemes = ("E5M2:5+E5M5, overflow=infinity", "bf16")
    few = {"train_images": 16, "test_images": 8, "batch": 2, "epochs": 4, "learning_rate": 1000.0}
    several = Comparison(tiny(tmp_path / "all", baseline=False, **few), schemes)
    folder, results = compare(several)
    assert "diverged" in results[0].diverged
    assert any("diverged" in finding for finding in comparison_result(several, folder, results).findings)
    with pytest.raises(TrainingDiverged):
        compare(Comparison(tiny(tmp_path / "one", **few), schemes[:1]))
    assert not (tmp_path / "one/float32").exists()


def test_failure_in_the_first_step_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(training.ClassifierTraining, "take_step", lambda self: [][0])
    for schemes in ((UNIT,), (UNIT, "bf16")):
        with pytest.raises(IndexError):
            compare(Comparison(tiny(tmp_path / "new" / "run"), schemes))
        assert os.listdir(tmp_path / "new") == []


@pytest.mark.parametrize("text", ["{}", "nonsense", '{"schemes": ["hfp8"], "sha256": "0"}'])
def test_damaged_list_of_schemes_is_refused(tmp_path, text):
    (tmp_path / comparison.SCHEMES).write_text(text)
    with pytest.raises(UserError, match=r"schemes.json' is damaged"):
        read_comparison(tmp_path)


# ---- sweeps over units -----------------------------------------------------------------------------------------------

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
