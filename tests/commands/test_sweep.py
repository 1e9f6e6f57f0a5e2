"""`shoal sweep` and `shoal train --seeds` with real processes: table, picture, failure, continuing; wrong inputs."""

import contextlib
import json
import sys

import pytest

from shoal.commands.sweep import subject
from shoal.sweeps.grid import sweep_runs
from shoal.sweeps.side_by_side import Lines, Outcome
from shoal.training.config import TrainConfig
from shoal.training.result import TrainResult
from tests.cli.helpers import one_sentence, strict

TINY = {"episodes": 20, "copies": 5, "warmup": 100, "batch": 16, "hidden": [8], "evaluate_episodes": 4, "log_every": 5}


@pytest.mark.usefixtures("rendered")
def test_a_sweep_with_a_failure_then_again(shoal, tmp_path):
    file, out = tmp_path / "tiny.json", tmp_path / "out"
    base = TINY | {"tensorboard": False, "sampler": "neighbor"}
    file.write_text(json.dumps({"base": base, "grid": {"capacity": [1_000, 5]}, "seeds": [4]}))
    code, printed, err = shoal("sweep", file, "--out", out, "--json", "--quiet")
    found = strict(printed)
    assert code == 2 and "1 run failed, 1 did not; `sampler=neighbor` needs" in err.splitlines()[-1]
    assert [run["finished"] for run in found["runs"]] == [True, False]
    assert found["title"] == "Sweep tiny, MADDPG in cooperative-navigation"
    title, rows = found["tables"][0]
    assert "final evaluation" in title and rows[0]["return"] == f"{found['runs'][0]['return']:,.2f}"
    assert rows[0]["seeds"] == 1 and rows[1]["failed"] == 1 and rows[1]["return"] == "–"
    assert found["pictures"] == [str(out / "curves.png")] and (out / "curves.png").stat().st_size > 5_000
    assert (out / "capacity=1000-seed4" / "curve.png").exists() and not list(out.glob("*.log"))
    config = json.loads((out / "capacity=1000-seed4" / "config.json").read_text())
    assert config["seed"] == 4 and config["threads"] >= 1
    file.write_text(json.dumps({"base": base, "grid": {"capacity": [1_000]}, "seeds": [4]}))
    code, printed, err = shoal("sweep", file, "--out", out)
    assert code == 0 and err.startswith(f"1 run, into {out}; 1 finished run kept\n")
    assert "capacity 1000" in printed and "curves.png" in printed


def test_titles_and_lines_are_short(shoal, tmp_path, monkeypatch):
    labels = []

    @contextlib.contextmanager
    def progress_bar(label, total):
        labels.append(label)
        yield lambda *_: None

    def run_side_by_side(runs, parallel, watcher):
        outcomes = [Outcome(run, TrainResult("", True, 1, 1, 1, 1.0, 1.0, -1.0)) for run in runs]
        for outcome in outcomes:
            watcher.advance(outcome.run.config.episodes)
            watcher.ended(outcome)
        return outcomes, None

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shoal.commands.sweep.progress_bar", progress_bar)
    monkeypatch.setattr("shoal.sweeps.side_by_side.run_side_by_side", run_side_by_side)
    (tmp_path / "sweep.json").write_text("{}")
    _, printed, err = shoal("sweep", "sweep.json", "--json")
    assert strict(printed)["title"] == "Sweep, MADDPG in cooperative-navigation" and "s (1 of 1 run)\n" in err
    err = shoal("train", "--seeds", "0-1", "--parallel", "1")[2]
    assert err.startswith("2 runs, 1 side by side, into ") and "(1 of 2 runs, about " in err
    assert labels == ["shoal sweep", "shoal train"]


def test_time_left_follows_remaining_episodes(tmp_path, monkeypatch, capsys):
    runs, now, moved = sweep_runs({"base": {"episodes": 100}, "seeds": "0-4"}, tmp_path), [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    lines = Lines(4, 500, 3, moved.append, quiet=False)

    def ended(seconds):
        now[0] = seconds
        lines.ended(Outcome(runs[0], TrainResult("", True, 100, 1, 1, 1.0, 1.0, -1.0)))
        return capsys.readouterr().err.rpartition("(")[2].rstrip(")\n")

    lines.advance(100, skipped=True)  # one run was kept, half of another is resumed
    lines.advance(50, skipped=True)
    assert ended(1.0) == "1 of 4 runs"  # nothing to go by
    lines.advance(250)
    assert ended(10.0) == "2 of 4 runs, about 6 s left"  # 4 s for three processes, but there is work for two
    lines.advance(100)
    assert ended(14.0).startswith("3 of 4 runs, about 0 s") and ended(14.0) == "4 of 4 runs" and sum(moved) == 500


def test_title_names_shared_settings():
    one, other = TrainConfig(), TrainConfig(algorithm="masac")
    far = TrainConfig(env="predator-prey")
    assert subject([one, one]) == "MADDPG in cooperative-navigation"
    assert subject([one, other]) == "cooperative-navigation" and subject([one, far]) == "MADDPG"
    assert subject([one, other, far]) == ""


def test_custom_world_in_the_working_directory(shoal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("shoal.sweeps.side_by_side.run_side_by_side", lambda runs, *_: ([], None))
    (tmp_path / "world_of_this_sweep.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\n\n\nclass Cart(CartPoleEnv):\n    pass\n"
    )
    (tmp_path / "sweep.json").write_text('{"base": {"env": "gym:world_of_this_sweep:Cart", "episode_length": 9}}')
    code, _, err = shoal("sweep", "sweep.json", "--quiet")
    assert code == 0, err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("train --seeds 0-1 --env gym:Pendulum-v1 --algorithm dqn --out new", "--algorithm dqn supports one choice"),
        ("train --seeds 5-2", "--seeds is '5-2', but 5-2 counts down"),
        ("train --seeds 0-1 --seed 3", "--seed and --seeds cannot be used together"),
        ("train --seeds 0-1 --watch", "--watch and --seeds cannot be used together"),
        ("train --seeds 0-1 --device cuda:99 --out new", "--device 'cuda:99' cannot be used here"),
        ("train --seeds 0-1 --parallel 0", "--parallel is 0"),
        ("train --parallel 2 --episodes 1 --out new", "--parallel is the number of runs side by side"),
        ("sweep device.json --out new", "`device` 'nothing' is not a torch device"),
        ("train --seeds 0-1 --env nothing", "The world 'nothing' is not known"),
        ("train --seeds 0-1 --out", "--out needs a value"),
        ("sweep", "FILE is missing"),
        ("sweep none.json", "The sweep 'none.json' cannot be read: No such file"),
        ("sweep sweep.json --parallel 0", "--parallel is 0"),
        ("sweep sweep.json --out sweep.json", "--out 'sweep.json' is a file"),
        ("sweep sweep.json --out run", "'run' is the folder of a run"),
        ("sweep sweep.json --paralel 2", "perhaps you meant --parallel"),
        ("train --seeds 0-1 --out new --capacity 1000000000000 --episodes 100000000000", "1 run side by side needs"),
    ],
)
def test_wrong_inputs_are_refused(shoal, tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.json").write_text("{}")
    (tmp_path / "device.json").write_text('{"base": {"device": "nothing"}}')
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").touch()
    code, out, err = shoal(*words.split())
    assert code == 2 and out == "" and sentence in one_sentence(err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["device.json", "run", "sweep.json"]
