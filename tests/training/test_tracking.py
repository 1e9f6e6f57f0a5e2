"""Tracked runs: what a service gets, and what becomes of a resumed run, a stopped one, and a service that fails.

The services themselves are played by a recorder; those with the packages from PyPI are slow and need the extra track.
"""

import json
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from safetensors.numpy import load_file

from shoal import Callback, TrainConfig, train
from shoal.errors import UserError
from shoal.runs.metrics import read_metrics
from shoal.training import tracking
from shoal.training.tracking import tagged

SMALL = {"hidden": (8,), "batch": 16, "warmup": 100, "update_every": 50, "copies": 4, "log_every": 10, "threads": 1}
RUN = {
    **SMALL,
    "episodes": 40,
    "evaluate_every": 20,
    "evaluate_during": 2,
    "evaluate_episodes": 2,
    "tensorboard": False,
}


class Recorder:
    """A service that remembers what it was told."""

    runs: ClassVar[list["Recorder"]] = []

    def __init__(self, config, folder, known):
        self.config, self.known, self.id = config, known, known or f"run {len(self.runs)}"
        self.logged, self.ended = [], None
        self.runs.append(self)

    def log(self, values, step):
        self.logged.append((step, values))

    def end(self, picture, status):
        self.ended = status, picture.exists()


@pytest.fixture(autouse=True)
def recorder(monkeypatch):
    monkeypatch.setattr(Recorder, "runs", [])
    monkeypatch.setattr(tracking, "check_tracker", lambda track: None)
    monkeypatch.setattr("shoal.training.prechecks.check_tracker", lambda track: None)
    monkeypatch.setattr("shoal.api.check_tracker", lambda track: None)
    monkeypatch.setitem(tracking.SERVICES, "wandb", Recorder)
    return Recorder


def weights(run):
    newest = max(Path(run).glob("checkpoints/0*"))
    return load_file(newest / "weights.safetensors")


class Stops(Callback):
    """Adds a number of numpy, and stops like Ctrl-C at an episode."""

    def __init__(self, episode):
        self.episode = episode

    def on_log(self, run, line):
        line["mine"] = np.float32(1.5)
        if run.episodes >= self.episode:
            raise KeyboardInterrupt


def test_a_service_gets_the_log_the_result_and_the_picture_and_changes_nothing(tmp_path, recorder):
    run = str(tmp_path / "run")
    result = train(TrainConfig(**RUN, track="wandb", out=run), callbacks=[Stops(1_000)])
    (service,) = recorder.runs
    lines = read_metrics(Path(run) / "metrics.jsonl")
    assert [step for step, _ in service.logged] == [line["episode"] for line in lines] + [result.episodes]
    assert service.logged[1][1] == tagged(lines[1]) and service.logged[0][1]["train/mine"] == 1.5
    assert service.logged[1][1]["evaluate/return/mean"] == lines[1]["evaluate/return_mean"]
    assert service.logged[-1][1]["final/return_deterministic"] == result.return_deterministic
    assert service.ended == ("FINISHED", True) and service.known is None
    untracked = str(tmp_path / "untracked")
    train(TrainConfig(**RUN, out=untracked))
    assert len(recorder.runs) == 1
    a, b = weights(run), weights(untracked)
    assert a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_a_resumed_run_continues_the_tracked_one(tmp_path, recorder):
    run = str(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        train(TrainConfig(**RUN, track="wandb", checkpoint_every=10, out=run), callbacks=[Stops(30)])
    assert recorder.runs[0].ended == ("KILLED", False)
    train(TrainConfig(out=run), resume=True, pictures=False)
    assert recorder.runs[1].known == recorder.runs[1].id == "run 0" and recorder.runs[1].ended[0] == "FINISHED"
    assert json.loads((tmp_path / "run" / "track.json").read_text()) == {"wandb": "run 0"}
    train(TrainConfig(out=run), resume=True)  # finished: nothing is sent
    train(TrainConfig(out=run, episodes=50, track="none"), resume=True, asked=["episodes", "track"])
    assert len(recorder.runs) == 2


def test_a_service_that_fails_is_left_alone_and_one_that_cannot_start_refuses_the_run(tmp_path, recorder, monkeypatch):
    def fail(*words):
        raise OSError("no network")

    monkeypatch.setattr(Recorder, "log", fail)
    with pytest.warns(UserWarning, match=r"^Tracking failed \(no network\): the run continues without it.$"):
        assert train(TrainConfig(**RUN, track="wandb", out=str(tmp_path / "run")), pictures=False).finished
    assert recorder.runs[0].ended is None
    monkeypatch.setattr(Recorder, "__init__", fail)
    with pytest.raises(UserError, match=r"^`track=wandb` cannot start: no network.$"):
        train(TrainConfig(**RUN, track="wandb", out=str(tmp_path / "none")))
    assert not (tmp_path / "none").exists()


def test_faults_end_the_tracked_run_as_failed(tmp_path, recorder):
    class Broken(Callback):
        def on_update(self, run):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(TrainConfig(**RUN, track="wandb", out=str(tmp_path / "run")), callbacks=[Broken()])
    assert recorder.runs[0].ended == ("FAILED", False)


def test_names_of_metrics_in_mlflow_are_no_folders_of_others():
    names = [tracking._metric_name(tag) for tag in ("return/ci95", "return/ci95/group/prey", "loss/q?")]
    assert names == ["return/ci95", "return/ci95.group.prey", "loss/q_"]


# ---- the packages from PyPI ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_mlflow_itself(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs the extra track")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    monkeypatch.chdir(tmp_path)  # where it puts the picture
    run = str(tmp_path / "group" / "run")
    with pytest.raises(KeyboardInterrupt):
        train(TrainConfig(**RUN, track="mlflow", checkpoint_every=10, out=run), callbacks=[Stops(30)])
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("shoal").experiment_id
    assert [tracked.info.status for tracked in client.search_runs([experiment])] == ["KILLED"]
    result = train(TrainConfig(out=run), resume=True)
    (tracked,) = client.search_runs([experiment])
    assert (tracked.info.status, tracked.info.run_name, tracked.data.tags["group"]) == ("FINISHED", "run", "group")
    assert tracked.data.params["batch"] == "16"
    assert tracked.data.metrics["final/return_deterministic"] == result.return_deterministic
    steps = {metric.step for metric in client.get_metric_history(tracked.info.run_id, "return/mean")}
    assert steps == {line["episode"] for line in read_metrics(Path(run) / "metrics.jsonl")}
    assert [artifact.path for artifact in client.list_artifacts(tracked.info.run_id)] == ["curve.png"]


@pytest.mark.slow
def test_wandb_itself_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs the extra track")
    monkeypatch.setitem(tracking.SERVICES, "wandb", tracking.Wandb)
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = str(tmp_path / "group" / "run")
    with pytest.raises(KeyboardInterrupt):
        train(TrainConfig(**RUN, track="wandb", checkpoint_every=10, out=run), callbacks=[Stops(30)])
    train(TrainConfig(out=run), resume=True)
    known = json.loads((tmp_path / "group" / "run" / "track.json").read_text())["wandb"]
    parts = sorted((tmp_path / "group" / "run" / "wandb").glob(f"offline-run-*-{known}"))
    deadline = time.monotonic() + 30  # its service writes after the run has ended
    while any((part / f"run-{known}.wandb").stat().st_size < 1_000 for part in parts) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(parts) == 2 and all((part / f"run-{known}.wandb").stat().st_size > 1_000 for part in parts)
    assert list(parts[1].glob("files/media/images/curve*.png"))
