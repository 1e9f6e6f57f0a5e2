"""Signals save a run, and resuming goes on with it."""

import json
import os
import shlex
import signal

import pytest
import torch

from shoal.cli import main
from shoal.runs.checkpoint import Checkpoints
from shoal.system import processors
from shoal.training import loop
from tests.cli.helpers import QUIET, SHORT, call_before, one_sentence, send, strict


@pytest.mark.parametrize("more", [(), (signal.SIGTERM,), (signal.SIGHUP, signal.SIGTERM)], ids=str)
def test_sigterm_saves_and_json_is_still_one_object(shoal, tmp_path, monkeypatch, more):
    call_before(monkeypatch, loop.Training, "step", lambda: send(signal.SIGTERM), at=50)
    call_before(monkeypatch, Checkpoints, "save", lambda: send(*more))  # while the run is being saved
    code, out, err = shoal("train", *QUIET, "--json", "--out", tmp_path / "a run")
    assert code == 128 + signal.SIGTERM
    result = strict(out)
    assert result["signal"] == signal.SIGTERM and not result["finished"] and 0 < result["episodes"] < 60
    assert "Stopped and saved" in err and len(err.splitlines()) == 1
    *_, command, option, folder = shlex.split(err)  # what a shell would make of the sentence
    assert (command, option, folder) == ("train", "--resume", str(tmp_path / "a run"))
    monkeypatch.undo()
    code, out, _ = shoal("train", "--resume", folder, "--quiet", "--json")
    assert code == 0 and strict(out)["finished"]


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_stops_the_saving(shoal, tmp_path, monkeypatch, first):
    call_before(monkeypatch, loop.Training, "step", lambda: send(first), at=20)
    call_before(monkeypatch, Checkpoints, "_write", lambda: send(signal.SIGINT))
    code, out, err = shoal("train", *QUIET, "--json", "--out", tmp_path / "run")
    assert (code, out, err) == (128 + signal.SIGINT, "", "Interrupted.\n")
    monkeypatch.undo()
    code, _, err = shoal("train", "--resume", tmp_path / "run")
    assert code == 0 and "no checkpoint yet: starting over" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_during_the_evaluation(shoal, tmp_path, monkeypatch, number):
    call_before(monkeypatch, loop, "evaluate_team", lambda: send(number))
    code, out, err = shoal("train", *QUIET, "--json", "--out", tmp_path / "run")
    assert code == 128 + number and "--resume" in err
    assert strict(out)["signal"] == number and not (tmp_path / "run" / "result.json").exists()
    monkeypatch.undo()
    code, out, _ = shoal("train", "--resume", tmp_path / "run", "--quiet", "--json")
    assert code == 0 and strict(out)["return_random"] is not None
    assert len(os.listdir(tmp_path / "run" / "checkpoints")) == 1


def test_signal_before_the_run_exists(shoal, tmp_path, monkeypatch):
    call_before(monkeypatch, loop, "build", lambda: send(signal.SIGTERM))
    assert shoal("train", *QUIET, "--out", tmp_path / "run") == (128 + signal.SIGTERM, "", "Interrupted.\n")
    assert os.listdir(tmp_path) == []


def test_resume_and_out_name_the_folder_twice(shoal, finished_run, tmp_path):
    for words in (["--out", tmp_path / "b"], [f"--out={tmp_path / 'b'}"]):
        for order in ([*words, "--resume", finished_run], ["--resume", finished_run, *words]):
            code, _, err = shoal("train", *order)
            assert code == 2 and "twice" in one_sentence(err)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("words", ["--batch 1024", "--batch=1024", "--hidden 64 64"])
def test_explicit_default_that_differs_is_refused_on_resume(shoal, stopped_run, words):
    code, _, err = shoal("train", "--resume", stopped_run, *words.split())
    assert code == 2 and "a resumed run keeps its settings" in one_sentence(err)


def test_resume_on_another_machine_keeps_threads(shoal, stopped, monkeypatch):
    monkeypatch.setattr(processors, "usable_processors", lambda: 2)
    code, _, err = shoal("train", "--resume", stopped, "--threads", "3")
    assert code == 2 and "--threads is 3, but this process may use 2 processors" in one_sentence(err)
    code, _, err = shoal("train", "--resume", stopped, "--threads", "2", "--quiet")
    assert code == 0 and err == ""  # native code gives the same bits
    assert json.loads((stopped / "config.json").read_text())["threads"] == 2


def test_torch_warns_that_another_number_of_threads_changes_bits(shoal, tmp_path, monkeypatch):
    run = tmp_path / "run"
    call_before(monkeypatch, loop.Training, "step", lambda: send(signal.SIGTERM), at=50)
    assert shoal("train", *SHORT, "--update", "torch", "--quiet", "--out", run)[0] == 128 + signal.SIGTERM
    monkeypatch.undo()
    monkeypatch.setattr(processors, "usable_processors", lambda: 2)
    code, _, err = shoal("train", "--resume", run, "--threads", "2", "--quiet")
    torch.set_num_threads(1)
    assert code == 0 and "trained with --threads 1, now it has 2" in err


def test_explicit_settings_equal_to_the_runs_are_accepted(shoal, finished_run):
    assert shoal("train", f"--resume={finished_run}", "--batch", "32", "--hidden", "8", "--quiet")[0] == 0


LONG, NOTHING = "File name too long", "There is no run folder, Stable-Baselines3 zip or ONNX file"


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        *((command, LONG) for command in ("train --out", "train --resume", "watch")),
        *((command, NOTHING) for command in ("evaluate", "quantize", "export")),
    ],
)
def test_too_long_name_is_refused(shoal, tmp_path, monkeypatch, command, sentence):
    monkeypatch.chdir(tmp_path)
    code, out, err = shoal(*command.split(), 300 * "a")
    assert code == 2 and out == "" and sentence in one_sentence(err)
    assert os.listdir(tmp_path) == []


def test_resuming_a_finished_run_writes_nothing(shoal, finished):
    before = {path: path.stat().st_mtime_ns for path in (finished, *finished.rglob("*"))}
    finished.chmod(0o555)  # stops everybody but root
    code, _, err = shoal("train", "--resume", finished)
    finished.chmod(0o755)
    assert code == 0 and "is finished" in err
    assert {path: path.stat().st_mtime_ns for path in (finished, *finished.rglob("*"))} == before


@pytest.mark.usefixtures("rendered")
def test_missing_learning_curve_is_drawn(shoal, finished):
    curve = finished / "curve.png"
    curve.unlink()
    assert "curve.png" in shoal("train", "--resume", finished)[1] and curve.stat().st_size > 5_000


@pytest.mark.usefixtures("rendered")
def test_learning_curve_of_an_extended_run_is_redrawn(shoal, finished):
    curve = finished / "curve.png"
    curve.unlink()
    assert shoal("train", "--resume", finished)[0] == 0
    before = curve.read_bytes()
    assert shoal("train", "--resume", finished, "--episodes", "90", "--quiet")[0] == 0
    assert curve.read_bytes() != before


def test_ctrl_c_while_native_code_is_loaded_is_an_interruption(monkeypatch, capsys):
    def loading(argv):
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr("shoal.cli.run_command", loading)
    assert main(["export"]) == 130 and capsys.readouterr().err == "Interrupted.\n"
