"""Events for TensorBoard, and disks that are full."""

import contextlib
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.runs.events import EventsFile, tag
from shoal.runs.metrics import MetricsLog
from tests.cli.helpers import SHORT, lines, one_sentence, strict


def test_events_can_be_read_back_also_of_a_resumed_run(shoal, stopped):
    with (stopped / "metrics.jsonl").open("a") as log:  # killed after the line, before the next checkpoint
        log.write('{"episode": 59}\n')
    EventsFile(stopped, 0).add({"return_mean": 1.0}, 59)
    assert shoal("train", "--resume", stopped, "--quiet")[0] == 0
    accumulator = as_logged(stopped, "return_mean")
    tags = accumulator.Tags()["scalars"]
    assert {"loss/q", "time/environment", "time/action_selection", "time/steps_per_second", "time/updates"} <= {*tags}
    assert not any(" " in tag for tag in tags)
    assert {tag.partition("/")[0] for tag in tags} == {"return", "loss", "q", "policy", "gradient", "time", "train"}


def test_no_event_is_lost_when_a_finished_run_is_extended(shoal, tmp_path):
    run = tmp_path / "run"
    assert shoal("train", *SHORT, "--evaluate-every", "20", "--quiet", "--out", run)[0] == 0
    assert shoal("train", "--resume", run, "--episodes", "80", "--quiet")[0] == 0
    accumulator = as_logged(run, "return_mean")
    assert [event.step for event in accumulator.Scalars("evaluate/return/mean")] == [
        line["episode"] for line in lines(run) if "evaluate/return_mean" in line
    ]


def as_logged(run, name):
    """TensorBoard's view of a run, which has the episodes and values of metrics.jsonl."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(run)).Reload()
    read = [(event.step, event.value) for event in accumulator.Scalars(tag(name))]
    written = [(line["episode"], line[name]) for line in lines(run)]
    assert [step for step, _ in read] == [step for step, _ in written]
    assert np.allclose([value for _, value in read], [value for _, value in written])
    return accumulator


@contextlib.contextmanager
def files_of_at_most(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_with_tensorboard(shoal, tmp_path):
    with files_of_at_most(20_000):
        words = [*SHORT, "--episodes", "200", "--log-every", "1", "--checkpoint-every", "0", "--quiet"]
        code, _, err = shoal("train", *words, "--out", tmp_path / "run")
    assert code == 2 and "File too large" in one_sentence(err) and str(tmp_path / "run") in err


def test_full_disk_is_reported_by_the_events_file(tmp_path):
    log = MetricsLog(tmp_path, tensorboard=True)
    events = log.paths[1]
    with (
        files_of_at_most(1_000),
        pytest.raises(UserError, match=r"events\.out\.\S+' cannot be written: File too large"),
    ):
        for episode in range(100):
            before = events.stat().st_size
            log.add({"episode": episode, "a": 1.0})  # shorter in the log than among the events
            assert events.stat().st_size > before
    assert log.path.stat().st_size < 900
    log.close()


def test_every_number_of_a_line_is_an_event(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(tmp_path, tensorboard=True)
    line = {"episode": 7, "return_agents": [1.5, None, 3.0], "evaluate/return_mean": 2, "by": {"a": {"b": 4.0}}}
    log.add(line | {"nothing": None, "word": "x", "bad": float("nan")})
    log.close()
    accumulator = EventAccumulator(str(tmp_path)).Reload()
    read = {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}
    expected = {"return_agents/0": 1.5, "return_agents/2": 3.0, "evaluate/return/mean": 2.0, "by/a/b": 4.0}
    assert read == {tag: [(7, value)] for tag, value in expected.items()}


def test_settings_are_hyperparameters(finished_run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    accumulator = EventAccumulator(str(finished_run)).Reload()
    content = accumulator.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    settings = metadata.parse_session_start_info_plugin_data(content).hparams
    assert settings["batch"].number_value == 32 and settings["hidden"].string_value == "8"
    assert settings["algorithm"].string_value == "maddpg" and settings["stagger"].bool_value
    assert "out" not in settings and "agents" not in settings  # of no influence, and None


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("return_mean", "return/mean"),
        ("return/group/big bird", "return/group/big_bird"),
        ("loss/q", "loss/q"),
        ("seconds", "time/total"),
        ("time/Q loss", "time/Q_loss"),
        ("landmarks_covered", "train/landmarks_covered"),
        ("evaluate/return_ci95/agent/a", "evaluate/return/ci95/agent/a"),
        ("evaluate/landmarks_covered", "evaluate/landmarks_covered"),
        ("actors/lag_mean", "actors/lag_mean"),
        ("own share", "train/own_share"),
    ],
)
def test_tags_are_one_tree_without_spaces(key, place):
    assert tag(key) == place


def test_a_folder_whose_name_is_not_utf_8(shoal, tmp_path):
    run = os.fsdecode(os.fsencode(tmp_path) + b"/ungl\xfcck")
    words = [*SHORT, "--episodes", "30", "--quiet"]
    assert shoal("train", *words, "--out", run)[0] == 0 and list(Path(run).glob("events*"))
    assert shoal("train", "--resume", run, "--episodes", "40", "--quiet")[0] == 0
    code, out, _ = shoal("evaluate", run, "--episodes", "2", "--json")
    assert code == 0 and strict(out)["run"] == run
