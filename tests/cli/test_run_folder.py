"""What a run folder holds, and what becomes of one that was damaged."""

import json
import os
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from shoal import TrainConfig, train
from shoal.errors import UserError
from shoal.runs.checkpoint import newest
from shoal.runs.folder import RunFolder, new_folder, read_result
from shoal.runs.settings import check_settings
from shoal.system.files import finite
from shoal.training.config import read_config
from shoal.training.result import TrainResult
from tests.cli.helpers import QUIET, SHORT, lines, one_sentence, strict


def test_a_finished_run_keeps_one_checkpoint_and_no_replay(finished_run):
    assert len(os.listdir(finished_run / "checkpoints")) == 1
    assert not (finished_run / "checkpoints" / "replay").exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json"])
def test_out_inside_a_run_folder_is_refused(shoal, tmp_path, name):
    (tmp_path / name).write_text("precious")
    code, _, err = shoal("train", *QUIET, "--out", tmp_path)
    assert code == 2 and "already holds a run" in one_sentence(err)
    assert os.listdir(tmp_path) == [name] and (tmp_path / name).read_text() == "precious"


@pytest.mark.parametrize("harm", ["missing", "shorter", "torn"])
def test_truncated_log_is_reported(shoal, stopped, harm):
    path = stopped / "metrics.jsonl"
    data = path.read_bytes()
    path.unlink()
    if harm != "missing":
        path.write_bytes(data[: data.index(b"\n") + (1 if harm == "shorter" else 40)])
    code, _, err = shoal("train", "--resume", stopped)
    assert code == 0 and "has lost lines" in err
    episodes = [line["episode"] for line in lines(stopped)]
    assert episodes[-1] >= 60 and episodes == sorted(episodes)


@pytest.mark.parametrize(
    "text", ["{}", "null", "5", "nonsense", "[]", "\0", '{"finished": true}', 10**5 * "["], ids=lambda text: text[:20]
)
def test_damaged_result_is_reported(shoal, finished, text):
    (finished / "result.json").write_text(text)
    code, out, err = shoal("train", "--resume", finished)
    assert code == 2 and out == "" and "result.json" in one_sentence(err)


@pytest.mark.parametrize(
    "settings",
    [
        {"episodes": "many"}, {"seconds": "long"}, {"return_mean": "good"}, {"run": None, "episodes": None},
        {"return_random": "bad", "return_random_ci95": {}}, {"episodes": 6.5}, {"phases": 3}, {"signal": "TERM"},
    ],
    ids=str,
)  # fmt: skip
def test_result_with_wrong_types(shoal, finished, settings):
    held = json.loads((finished / "result.json").read_text())
    (finished / "result.json").write_text(json.dumps({**held, **settings}))
    code, out, err = shoal("train", "--resume", finished)
    assert code == 2 and out == "" and "result.json" in one_sentence(err)


@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 64.0}, {"learning_rate": float("inf")}, {"threads": 2.0}, {"agents": float("nan")}, {"hidden": 8},
        {"env_options": {}}, {"episodes": True}, {"env": None}, {"hidden": [[8]]}, {"rules": ["mpe2"]},
        {"copies": 10**30}, {"device": 0}, {"out": 3},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("command", ["train --resume", "evaluate"])
def test_config_with_wrong_types_is_refused(shoal, finished_run, tmp_path, settings, command):
    held = json.loads((finished_run / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**held, **settings}))
    code, out, err = shoal(*command.split(), tmp_path)
    (name,) = settings
    named = f"--{name.replace('_', '-')}", f"`{name}`"  # not every setting is an option of `shoal evaluate`
    assert code == 2 and out == "" and any(f"config.json' cannot be used: {each} " in err for each in named)
    assert one_sentence(err)
    assert os.listdir(tmp_path) == ["config.json"]


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", 10**5 * b"[", None, "pipe"], ids=["empty", "no text", "deep", "folder", "pipe"]
)
def test_config_that_is_no_object_is_refused(shoal, tmp_path, content):
    path = tmp_path / "config.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.mkdir() if content is None else os.mkfifo(path)
    code, _, err = shoal("train", "--resume", tmp_path)
    assert code == 2 and "config.json' cannot be read: " in one_sentence(err) and "Errno" not in err


def flipped(path):
    """Texts that differ from the file's in one bit, here and there: all of them take seconds."""
    data = path.read_bytes()
    for place in range(0, len(data), 5):
        yield data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :]


@pytest.mark.parametrize("checkpoints", [True, False], ids=["checkpoints", "none yet"])
def test_a_flipped_bit_of_the_settings_is_found(stopped, checkpoints):
    """By the checkpoint, or before the first by the file's own checksum; the folder itself may be another."""
    config, checkpoint = read_config(stopped), newest(stopped / "checkpoints") if checkpoints else None
    if not checkpoints:
        shutil.rmtree(stopped / "checkpoints")
    refused = harmless = 0
    for data in flipped(stopped / "config.json"):
        (stopped / "config.json").write_bytes(data)
        try:
            found = read_config(stopped)
            check_settings(found, stopped, checkpoint)
        except UserError:
            refused += 1
        else:
            assert found.settings == config.settings
            harmless += 1
    assert refused > 200 and harmless < (50 if checkpoints else 5)


@pytest.mark.parametrize("command", ["train --resume", "evaluate", "watch", "quantize", "export"])
def test_config_that_differs_from_the_checkpoint_is_refused(shoal, stopped, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = stopped / "config.json"
    path.write_text(path.read_text().replace("0.95", "0.91").replace('"tau": 0.01', '"tau": 0.03'))
    before = sorted(os.listdir(stopped))
    code, out, err = shoal(*command.split(), stopped)
    assert code == 2 and out == "" and "damaged: discount is 0.91 instead of 0.95, tau is 0.03" in one_sentence(err)
    assert "; restore what '" in err and "/meta.json' says the run was trained with" in err
    assert sorted(os.listdir(stopped)) == before and os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize("content", [None, "{", "[]", '{"wings": 2}', '{"batch": "many"}'])
def test_config_can_be_repaired_from_the_checkpoint(shoal, finished, content):
    """Whatever becomes of config.json: the sentence says where the settings are, and they can be put back by hand."""
    path = finished / "config.json"
    path.unlink() if content is None else path.write_text(content)
    code, _, err = shoal("evaluate", finished)
    assert code == 2 and "config.json" in one_sentence(err)
    meta = re.search(r"the run's settings are also in '(.*)'\.$", err)[1]
    path.write_text(json.dumps(json.loads(Path(meta).read_text())["meta"]["settings"]))
    code, _, err = shoal("evaluate", finished, "--episodes", "2")
    assert code == 0 and err == ""


def test_a_flipped_bit_of_the_result_is_found(finished):
    whole = read_result(finished, TrainResult)
    assert whole.finished and whole.run == str(finished)
    for data in flipped(finished / "result.json"):
        (finished / "result.json").write_bytes(data)
        try:
            assert read_result(finished, TrainResult) == whole  # 1e-05 may become 1E-05
        except UserError as error:
            assert "result.json' is damaged" in str(error)


HARM = {
    "checkpoints": lambda run: shutil.rmtree(run / "checkpoints"),
    "weights": lambda run: next(run.glob("checkpoints/0*/weights.safetensors")).write_bytes(b"none"),
    "result": lambda run: (run / "result.json").write_text((run / "result.json").read_text().replace("6", "7")),
    "no result": lambda run: (run / "result.json").unlink(),
    "log": lambda run: (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text().replace("7", "8")),
    "no log": lambda run: (run / "metrics.jsonl").unlink(),
    "pipes": lambda run: [((run / name).unlink(), os.mkfifo(run / name)) for name in ("result.json", "metrics.jsonl")],
}


@pytest.mark.parametrize(
    ("harm", "command", "code", "sentence"),
    [
        ("checkpoints", "train --resume", 2, "is finished, but its checkpoints are gone: restore"),
        ("checkpoints", "evaluate", 2, "is finished, but its checkpoints are gone: restore"),
        ("weights", "train --resume", 2, "No intact checkpoint is left"),
        ("weights", "evaluate", 2, "No intact checkpoint is left"),
        ("result", "train --resume", 2, "result.json' is damaged (its checksum is wrong); remove it"),
        ("result", "evaluate --episodes 2", 0, "result.json' is damaged (its checksum is wrong); remove it"),
        ("no result", "evaluate --episodes 2", 0, "is fully trained, but has no result.json"),
        ("log", "train --quiet --resume", 0, "metrics.jsonl' is damaged: lines before the checkpoint are not"),
        ("log", "evaluate --episodes 2", 0, "metrics.jsonl' is damaged: lines before the checkpoint are not"),
        ("pipes", "train --resume", 2, "result.json' is damaged (result.json is not a file); remove it"),
        ("pipes", "evaluate --episodes 2", 0, "metrics.jsonl' has lost lines"),
        ("no log", "train --quiet --resume", 0, "metrics.jsonl' has lost lines"),
        ("no log", "evaluate --episodes 2", 0, "metrics.jsonl' has lost lines"),
    ],
)
def test_a_finished_run_with_damaged_or_missing_files(shoal, finished, harm, command, code, sentence):
    HARM[harm](finished)
    found, _, err = shoal(*command.split(), finished)
    assert found == code and sentence in err, err


def test_missing_result_is_recreated(shoal, finished):
    before = read_result(finished, TrainResult)
    (finished / "result.json").unlink()
    assert shoal("train", "--quiet", "--resume", finished)[0] == 0
    after = read_result(finished, TrainResult)
    assert (after.updates, after.return_mean) == (before.updates, before.return_mean)
    assert after.return_deterministic == before.return_deterministic


def test_a_result_of_another_run(shoal, finished, tmp_path):
    assert shoal("train", *QUIET, "--episodes", "30", "--out", tmp_path / "other")[0] == 0
    shutil.copy(tmp_path / "other" / "result.json", finished / "result.json")
    code, _, err = shoal("train", "--resume", finished)
    assert code == 2 and "does not match checkpoint" in one_sentence(err) and "remove it" in err


@pytest.mark.parametrize("harm", ["log", "no log"])
def test_damaged_log_is_reported_once(shoal, stopped, harm):
    """A resumed run goes on with what is left, and what it writes is covered again."""
    HARM[harm](stopped)
    code, _, err = shoal("train", "--quiet", "--resume", stopped)
    assert code == 0 and err.count("metrics.jsonl") == 1
    code, _, err = shoal("train", "--quiet", "--resume", stopped)
    assert code == 0 and "metrics.jsonl" not in err


def test_non_finite_numbers_in_json():
    nan = float("nan")
    assert finite({"a": nan, "b": {"c": [1.5, -nan, (float("inf"), 2)]}}) == {
        "a": None,
        "b": {"c": [1.5, None, [None, 2]]},
    }


def test_numpy_numbers_and_paths_are_accepted(tmp_path):
    settings = {"episodes": 30, "warmup": 300, "evaluate_episodes": 2, "tensorboard": False, "threads": 1}
    numbers = {"batch": np.int64(32), "learning_rate": np.float32(0.01), "hidden": [8, 8]}
    result = train(TrainConfig(**settings, **numbers, out=tmp_path / "run"))
    assert result.finished and result.run == str(tmp_path / "run")
    config = read_config(tmp_path / "run")
    assert (config.batch, config.hidden, type(config.learning_rate)) == (32, (8, 8), float)
    for batch in (32.0, True, np.float32(32)):
        with pytest.raises(UserError, match=r"`batch` is .* whole number"):
            train(TrainConfig(**settings, batch=batch, out=tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_runs_started_at_once_take_different_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    barrier, folders = threading.Barrier(8), []

    def start():
        barrier.wait()
        folders.append(new_folder(None, "run"))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({folder.path for folder in folders}) == len(os.listdir("runs")) == 8
    for folder in folders:
        folder.close()


def test_running_training_locks_its_folder(shoal, stopped, tmp_path):
    for words in (["--resume", stopped], [*QUIET, "--out", tmp_path / "new"]):
        with RunFolder(Path(words[-1]), make=True):
            code, _, err = shoal("train", *words)
        assert code == 2 and "is being trained by another process" in one_sentence(err)
    assert os.listdir(tmp_path / "new") == []


def test_lines_of_the_log_and_the_result(shoal, tmp_path):
    code, _, _ = shoal("train", *QUIET, "--warmup", "1200", "--evaluate-episodes", "1", "--out", tmp_path / "run")
    assert code == 0
    first, *_, last = lines(tmp_path / "run")
    losses = [key for key in last if key.startswith("loss/")]
    assert losses and first.keys() == last.keys()
    assert all(first[key] is None for key in losses) and all(isinstance(last[key], float) for key in losses)
    result = strict((tmp_path / "run" / "result.json").read_text())
    assert result["return_random"] < 0 and result["return_random_ci95"] is None
    code, _, err = shoal("train", *QUIET, "--log-every", "101", "--out", tmp_path / "other")
    assert code == 2 and "--log-every is 101" in one_sentence(err)


def test_task_metrics_are_in_table_and_json(shoal, finished_run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # headings on one line
    for words in (["evaluate", finished_run, "--episodes", "8"], ["train", "--resume", finished_run]):
        code, out, _ = shoal(*words)
        assert code == 0 and "landmarks covered" in out and " ± " in out
    found = strict(shoal("evaluate", finished_run, "--episodes", "8", "--json")[1])
    for name in ("landmarks_covered", "landmarks_covered_noisy", "landmarks_covered_random"):
        assert 0 <= found[name] <= 3 and found[f"{name}_ci95"] >= 0
    trained = strict(shoal("train", "--resume", finished_run, "--json")[1])
    assert trained["landmarks_covered"] >= 0 and "figures" not in trained
    assert "train/landmarks_covered" in b"".join(p.read_bytes() for p in finished_run.glob("events*")).decode("latin1")


def test_returns_by_group_and_agent_are_in_tables_json_and_events(shoal, finished_run, tmp_path):
    words = ["--env", "pettingzoo:mpe2.simple_adversary_v3", "--evaluate-episodes", "4", "--quiet", "--out", tmp_path]
    assert shoal("train", *SHORT, *words, "--copies", "2", "--episodes", "6")[0] == 0
    for command in (["evaluate", tmp_path, "--episodes", "4"], ["train", "--resume", tmp_path]):
        out = shoal(*command)[1]
        assert "group adversary" in out and "group agent" in out and "agent_1" in out
    found = strict(shoal("evaluate", tmp_path, "--episodes", "4", "--json")[1])
    for way in ("", "_noisy", "_random"):
        adversary, agents = (found[f"return{way}/group/{name}"] for name in ("adversary", "agent"))
        assert adversary == found[f"return{way}/agent/adversary_0"] and found[f"return{way}_ci95/group/agent"] >= 0
        assert found[f"return{way}" if way else "return_mean"] == pytest.approx((adversary + 2 * agents) / 3)
    events = b"".join(path.read_bytes() for path in tmp_path.glob("events*"))
    assert b"return/group/adversary" in events and b"return/agent/agent_1" in events
    assert "group agent" not in shoal("evaluate", finished_run, "--episodes", "4")[1]  # there is only one
