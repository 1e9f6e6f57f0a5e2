"""Cells are done once, kept one by one, and left for another day when the budget is used up."""

import json
from concurrent.futures import Future

import pytest

from shoal.errors import UserError
from shoal_papers import cells as cells_module
from shoal_papers.cells import Cells, Options, StudyCell
from tests.papers.at_once import AtOnce

CELLS = [StudyCell(f"cell {k}", {"k": k}, 2.0) for k in range(3)]


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(cells_module, "ChildPool", AtOnce)


def made(folder, budget=60.0, told=None):
    told = [] if told is None else told
    return Cells("study", False, Options(folder, budget), lambda amount, label: told.append(amount))


def square(settings, folder):
    return {"square": settings["k"] ** 2, "nothing": float("nan")}


def square_of_even(settings, folder):
    if settings["k"] == 1:
        raise UserError("It is odd.")
    return square(settings, folder)


def refuse(settings, folder):
    raise AssertionError("done again")


def test_finished_cells_are_not_repeated(tmp_path):
    told = []
    found = made(tmp_path, told=told).run(CELLS, square)
    assert sum(told) == 6 and found["cell 2"] == {"square": 4, "nothing": None}
    assert sorted(path.name for path in (tmp_path / "cells" / "study").iterdir()) == [
        f"cell-{k}.json" for k in range(3)
    ]
    held = json.loads((tmp_path / "cells" / "study" / "cell-1.json").read_text())
    assert held["settings"] == {"k": 1} and held["provenance"]["command"] == "shoal study study"
    again = made(tmp_path, budget=0)
    assert again.run(CELLS, refuse) == found and not again.failed
    other = [StudyCell("cell 0", {"k": 5}), *CELLS[1:]]
    assert made(tmp_path).run(other, square)["cell 0"]["square"] == 25


def test_cells_in_another_folder(tmp_path):
    """Committed cells: nothing else is written beside them, and a budget of 0 runs nothing."""
    options = Options(tmp_path / "out", 60.0, cells=tmp_path / "kept")
    found = Cells("study", False, options, lambda amount, label: None).run(CELLS[:2], square)
    assert [path.name for path in sorted((tmp_path / "kept").rglob("*"))] == ["study", "cell-0.json", "cell-1.json"]
    assert not (tmp_path / "out").exists()
    elsewhere = Cells("study", False, Options(tmp_path, 0.0, cells=tmp_path / "kept"), lambda amount, label: None)
    assert elsewhere.run(CELLS, refuse) == found and "1 cell (cell 2)" in elsewhere.failed[0]


def test_damaged_cell_is_measured_again(tmp_path):
    made(tmp_path).run(CELLS, square)
    for text in ("{", "[]", json.dumps({"settings": {"k": 1}}), json.dumps({"settings": {"k": 1}, "result": 5})):
        (tmp_path / "cells" / "study" / "cell-1.json").write_text(text)
        assert made(tmp_path).run(CELLS, square)["cell 1"]["square"] == 1


def test_cells_beyond_the_budget_are_named(tmp_path):
    done = made(tmp_path, budget=0)
    assert done.run(CELLS, square, optional=True) == {}
    assert "Not reached within 0 min: 3 cells (cell 0, cell 1, cell 2)" in done.failed[0]
    assert len(done.run(CELLS, square, short=True)) == 3
    many = made(tmp_path, budget=0)
    many.run([StudyCell(f"other {k}", {"k": k}) for k in range(20)], square, optional=True)
    assert "20 cells (other 0, " in many.failed[0] and ", other 5, …); they run with a `budget`." in many.failed[0]


def test_study_without_finished_cells_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"Nothing could be measured: Not reached within 0 min: 3 cells \(cell 0, "):
        made(tmp_path, budget=0).run(CELLS, square)
    done = made(tmp_path, budget=0)
    assert len(done.run(CELLS[:1], square, short=True)) == 1
    assert done.run(CELLS[1:], square) == {}  # there is something to show


def test_failing_cell_does_not_end_the_others(tmp_path):
    done = made(tmp_path)
    assert list(done.run(CELLS, square_of_even)) == ["cell 0", "cell 2"] and done.failed == ["cell 1: It is odd."]


def test_ctrl_c_keeps_finished_cells(tmp_path):
    class Stopped(AtOnce):
        def submit(self, function, module, work, settings, folder):
            if settings["k"] == 2:
                raise KeyboardInterrupt
            return super().submit(function, module, work, settings, folder)

    cells_module.ChildPool = Stopped
    done = made(tmp_path)
    found = done.run(CELLS, square, workers=1)
    assert list(found) == ["cell 0", "cell 1"] and done.failed == ["Interrupted: 2 of 3 cells are finished."]
    assert done.interrupted
    assert done.run([StudyCell("more", {"k": 1})], refuse) == {}
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "empty").run(CELLS[2:], square)


def test_internal_error_in_a_cell_is_raised(tmp_path):
    with pytest.raises(AssertionError, match="done again"):
        made(tmp_path).run(CELLS, refuse)
    assert isinstance(AtOnce(1).submit(square, {"k": 1}, tmp_path), Future)
