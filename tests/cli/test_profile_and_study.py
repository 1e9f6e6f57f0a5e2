"""`shoal profile` and `shoal study` from the words to the files."""

import json
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.commands.console import result_folder
from shoal.commands.profile import ended
from shoal.errors import UserError
from shoal.results import Result


@pytest.mark.usefixtures("rendered")
def test_a_profile_and_the_studies_made_of_it(tmp_path, capsys):
    words = "profile --agents 2 --implementation engine --seconds 0.05 --ring 1024 --threads 1 --json --out"
    assert main([*words.split(), str(tmp_path / "profile")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "profile" / "profile.json").read_text())
    assert {row["sampler"] for row in found["rows"]} == {"uniform", "neighbor"}
    assert {"machine", "counters", "rows", "growth", "neighbor", "misses", "memory", "failed"} < set(found)
    profiled = Result.from_json(found)
    assert profiled.provenance.command.startswith("shoal profile --agents 2") and profiled.tables
    drawn = [figure.name for figure in profiled.figures]
    assert drawn == ["shares", "inside-update", "neighbor"]
    assert all((tmp_path / "profile" / f"{name}.png").stat().st_size > 5_000 for name in drawn)
    for name in ("breakdown", "inside-update", "neighbor-time"):
        data = ["--data", str(tmp_path / "profile" / "profile.json"), "--out", str(tmp_path / "studies")]
        assert main(["study", name, *data]) == 0
        assert (tmp_path / "studies" / f"{name}.png").stat().st_size > 0
        assert "Papers" in capsys.readouterr().out
        held = json.loads((tmp_path / "studies" / f"{name}.json").read_text())
        assert {"name", "title", "tables", "findings", "picture", "data"} < set(held)
        study = Result.from_json(held)
        assert study.data == profiled.data and study.provenance == profiled.provenance  # of what was measured


def test_results_go_into_new_folders_below_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="wrong"), result_folder(None, "quantize-a b") as folder:
        assert folder == tmp_path / "runs/quantize-a-b-1" and folder.is_dir()
        raise UserError("wrong")
    assert not folder.exists()  # nothing was written
    for number in (1, 2):
        with result_folder(None, "profile") as folder:
            (folder / "profile.json").touch()
        assert folder == tmp_path / f"runs/profile-{number}" and folder.is_dir()
    with result_folder("named", "profile") as folder:
        assert folder == tmp_path / "named" and folder.is_dir()


def test_study_prints_its_files_and_replacements(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["study", "frameworks"]) == 0
    out, err = capsys.readouterr()
    assert out.endswith("in   runs/studies\n") and err == "" and Path("runs/studies/frameworks.json").exists()
    assert main(["study", "frameworks", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["name"] == "frameworks"
    assert err.splitlines() == [
        "'runs/studies/frameworks.json' exists and will be replaced; --out names another folder.",
        "The files are in runs/studies.",
    ]


def test_interruption_sets_the_exit_code():
    assert ended({"failed": ["Not everything was measured."], "interrupted": True}) == 130
    assert ended({"failed": ["Interrupted? No: 3 agents did not fit."], "interrupted": False}) == 0
    assert ended({}) == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("profile --device nonsense", "'nonsense' is not a torch device"),
        ("profile --agents 0", "--agents is 0"),
        ("profile --caches L3=lots", "L3"),
        ("study chess", "chess"),
        ("study growth --data nowhere.json --out {folder}", "nowhere.json"),
        ("study growth --cells {folder}", "--cells is for studies that consist of cells"),
        ("study edge --quick --cells pyproject.toml --out {folder}", "--cells 'pyproject.toml' cannot be written"),
    ],
)
def test_failed_commands_leave_no_files(words, sentence, tmp_path, capsys):
    folder = tmp_path / "studies"
    assert main(words.format(folder=folder).split()) == 2
    said = capsys.readouterr().err
    assert sentence in said and len(said.strip().splitlines()) == 1
    assert not folder.exists()
