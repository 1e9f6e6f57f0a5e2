"""A finished run goes on: exactly with its replay, with a refilled ring without it."""

import json
import shutil
import signal
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from shoal import TrainConfig, load, train
from shoal.errors import UserError
from shoal.runs import checkpoint, disk
from shoal.training import loop
from shoal.training import resume as resume_module
from shoal.training.clock import PhaseClock
from shoal.training.config import read_config
from shoal.training.saved_team import load_team
from tests.cli.helpers import call_before, lines, one_sentence, send
from tests.training.witness import Crash, Witness

SMALL = {
    "warmup": 400, "batch": 32, "hidden": (8,), "update_every": 20, "checkpoint_every": 30, "log_every": 20,
    "evaluate_episodes": 0, "tensorboard": False, "threads": 1, "evaluate_every": 40, "evaluate_during": 3,
}  # fmt: skip


def newest(run, part="weights"):
    return load_file(sorted(Path(run, "checkpoints").glob("[0-9]*"))[-1] / f"{part}.safetensors")


def same(a, b):
    assert a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


def logged(run):
    return [(line["episode"], line["return_mean"], line.get("loss/q"), line["updates"]) for line in lines(run)]


@pytest.mark.parametrize(
    "options",
    [
        {"capacity": 1500},  # a ring that is overwritten before and after the extension
        {"algorithm": "masac", "sampler": "neighbor", "update": "torch", "env": "predator-prey"},
        {"algorithm": "dqn", "env": "gym:CartPole-v1", "copies": 3},
        {"share": "all", "critic": "pooled", "hidden": (16, 12), "env": "predator-prey", "prey": "learned"},
        {"implementation": "reference", "capacity": 300, "warmup": 100, "log_every": 10, "half": 10},
    ],
    ids=str,
)
def test_extension_with_replay_is_bit_identical(tmp_path, options):
    settings = {**SMALL, "keep_replay": True, **options}
    half = settings.pop("half", 40)
    train(TrainConfig(**settings, episodes=2 * half, out=str(tmp_path / "whole")))
    train(TrainConfig(**settings, episodes=half, out=str(tmp_path / "run")))
    witness = Witness()
    result = train(TrainConfig(out=str(tmp_path / "run"), episodes=2 * half), resume=True, observer=witness)
    assert result.finished and result.episodes >= 2 * half and witness.said == []
    for part in ("weights", "optimizer", "environment"):
        same(newest(tmp_path / "whole", part), newest(tmp_path / "run", part))
    assert logged(tmp_path / "whole") == logged(tmp_path / "run")
    assert read_config(tmp_path / "run").episodes == 2 * half


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    """A finished run of 40 episodes without its replay, to be copied."""
    run = tmp_path_factory.mktemp("short") / "run"
    train(TrainConfig(**SMALL, episodes=40, out=str(run)))
    return run


@pytest.fixture
def short(short_run, tmp_path):
    return Path(shutil.copytree(short_run, tmp_path / "run"))


def test_extension_without_replay_refills_the_ring(short, monkeypatch):
    clocks = []
    before = json.loads((short / "result.json").read_text())
    assert not (short / "checkpoints" / "replay").exists()
    witness = Witness()
    monkeypatch.setattr(resume_module, "PhaseClock", lambda: clocks.append(PhaseClock()) or clocks[-1])
    result = train(TrainConfig(out=str(short), episodes=80, keep_replay=True), resume=True, observer=witness)
    assert len(witness.said) == 1 and "400 samples are played with the present policy" in witness.said[0]
    # what was refilled counts nowhere, and has a clock of its own
    assert [clock.seconds.keys() >= {"action selection", "environment"} for clock in clocks] == [True]
    assert 80 <= result.episodes < 105 and result.updates == result.env_steps // 20 > before["updates"]
    held = newest(short, "replay")["window"]
    assert held[1] * 25 == result.env_steps - before["env_steps"] + 400
    assert [line["episode"] // 20 for line in lines(short)] == [1, 2, 3, 4]


def test_refill_starts_from_the_current_states(short, monkeypatch):
    """The first transition of the refilled ring starts at the observation that the run ended with."""
    seen = []
    original = resume_module.refill

    def look(training, *arguments):
        original(training, *arguments)
        first = training.ring.gather([[0]], [[0]])
        seen.append((first.joint[0, 0, :6], newest(short, "training")["observation"][0, 0, :6]))

    monkeypatch.setattr(loop, "refill", look)
    train(TrainConfig(out=str(short), episodes=60), resume=True)
    ((first, ended),) = seen
    assert first.tolist() == ended.tolist()


@pytest.mark.parametrize("until", [41, 55, 79])
def test_killed_extension_resumes(short, tmp_path, until):
    whole = Path(shutil.copytree(short, tmp_path / "whole"))
    train(TrainConfig(out=str(whole), episodes=80), resume=True)
    with pytest.raises(Crash):
        train(TrainConfig(out=str(short), episodes=80), resume=True, observer=Witness(until))
    assert not (short / "result.json").exists() and not (short / "curve.png").exists()
    said = []
    load_team(short, said.append)
    assert said == []  # it is not fully trained
    assert train(TrainConfig(out=str(short)), resume=True).episodes >= 80
    same(newest(whole), newest(short))
    assert logged(whole) == logged(short)


def test_failed_extension_does_not_change_the_run(short):
    (short / "metrics.jsonl").unlink()
    (short / "metrics.jsonl").mkdir()
    before = {path.name: path.read_bytes() for path in short.glob("*.json")}
    with pytest.raises(UserError, match=r"metrics\.jsonl' cannot be written"):
        train(TrainConfig(out=str(short), episodes=80), resume=True)
    assert {path.name: path.read_bytes() for path in short.glob("*.json")} == before


def test_extension_killed_before_writing_the_new_length(short, monkeypatch):
    def gone(self, name, text):
        raise Crash

    monkeypatch.setattr("shoal.runs.folder.RunFolder.write", gone)
    with pytest.raises(Crash):
        train(TrainConfig(out=str(short), episodes=80), resume=True)
    monkeypatch.undo()
    assert 40 <= train(TrainConfig(out=str(short)), resume=True).episodes < 65
    assert (short / "result.json").exists()


def test_signal_during_refill(shoal, short, monkeypatch):
    before = newest(short)
    call_before(monkeypatch, loop, "refill", lambda: send(signal.SIGTERM))
    assert shoal("train", "--resume", short, "--episodes", "80", "--quiet")[0] == 128 + signal.SIGTERM
    same(before, newest(short))
    monkeypatch.undo()
    code, _, err = shoal("train", "--resume", short, "--quiet")
    assert code == 0 and "present policy" in err


def test_extension_on_the_command_line(shoal, short):
    (short / "curve.png").unlink(missing_ok=True)
    code, out, err = shoal("train", "--resume", short, "--episodes", "30", "--quiet")
    assert code == 2 and out == "" and "--episodes is 30, but the run in" in one_sentence(err)
    code, _, err = shoal("train", "--resume", short, "--episodes", "40")
    assert code == 0 and "is finished" in err
    code, _, err = shoal("train", "--resume", short, "--episodes", "60000", "--stop-at-return", "-1e6", "--quiet")
    assert code == 0 and "present policy" in err  # 60,000 is the default, too, but it was asked for
    result = json.loads((short / "result.json").read_text())
    assert result["episodes"] >= 80 and "reached" in result["stopped"] and (short / "curve.png").exists()
    # a run that has ended early goes on with another goal
    code, _, _ = shoal("train", "--resume", short, "--stop-at-return", "None", "--episodes", "120", "--quiet")
    result = json.loads((short / "result.json").read_text())
    assert code == 0 and result["episodes"] >= 120 and result["stopped"] is None


def test_asked_marks_default_values_as_given(short):
    with pytest.raises(UserError, match="`asked` has 'episode', which is not a setting"):
        train(TrainConfig(out=str(short)), resume=True, asked=["episode"])
    asked = ["episodes", "stop_at_return"]
    result = train(TrainConfig(out=str(short), stop_at_return=-1e6), resume=True, asked=asked, pictures=False)
    assert result.stopped and read_config(short).episodes == TrainConfig.episodes == 60_000


@pytest.mark.parametrize("total", [60, 120])
def test_stopped_run_may_change_its_length(tmp_path, total):
    train(TrainConfig(**SMALL, episodes=total, out=str(tmp_path / "whole")))
    with pytest.raises(Crash):
        train(TrainConfig(**SMALL, episodes=80, out=str(tmp_path / "run")), observer=Witness(50))
    train(TrainConfig(out=str(tmp_path / "run"), episodes=total), resume=True)
    same(newest(tmp_path / "whole"), newest(tmp_path / "run"))
    assert logged(tmp_path / "whole") == logged(tmp_path / "run")


def test_extension_keeps_the_best_weights(short):
    train(TrainConfig(out=str(short), episodes=80), resume=True)
    assert load(short, checkpoint="best").act(load(short).make_env(2).reset()).shape == (2, 3, 5)
    with pytest.raises(UserError, match="`threads` is 0"):
        train(TrainConfig(out=str(short), threads=0), resume=True)


def test_evaluations_may_be_switched_on_at_resume(tmp_path):
    plain = {**SMALL, "evaluate_every": 0, "evaluate_during": 20}
    with pytest.raises(Crash):
        train(TrainConfig(**plain, episodes=80, out=str(tmp_path / "run")), observer=Witness(50))
    train(TrainConfig(out=str(tmp_path / "run"), evaluate_every=20, stop_at_return=1e9), resume=True)
    assert sum("evaluate/return_mean" in line for line in lines(tmp_path / "run")) == 3  # after the checkpoint at 30


def test_evaluations_may_be_switched_off_at_resume(short):
    """Without a word on the settings that the run has for them."""
    for name in ("evaluate_during", "stop_at_return"):
        asked = {"evaluate_every": 0, "episodes": 80, name: 7}
        with pytest.raises(UserError, match=f"`{name}` is for evaluations during training"):
            train(TrainConfig(out=str(short), **asked), resume=True, asked=list(asked))
    train(TrainConfig(out=str(short), evaluate_every=0, episodes=80), resume=True, asked=["evaluate_every", "episodes"])
    assert [line["episode"] for line in lines(short) if "evaluate/return_mean" in line] == [40]
    assert lines(short)[-1]["episode"] == 80 and read_config(short).evaluate_during == SMALL["evaluate_during"]


def test_manually_changed_length_is_refused(short):
    fields = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**fields, "episodes": 80}))
    with pytest.raises(UserError, match="episodes is 80 instead of 40"):
        train(TrainConfig(out=str(short)), resume=True)
    (short / "config.json").write_text(json.dumps(disk.sealed({**disk.unsealed(fields), "batch": 64})))
    with pytest.raises(UserError, match="batch is 64 instead of 32"):
        train(TrainConfig(out=str(short)), resume=True)


def test_extension_with_actors_needs_the_replay(short):
    fields = {**disk.unsealed(json.loads((short / "config.json").read_text())), "actors": 1}
    config = TrainConfig(**fields)
    with pytest.raises(UserError, match="had `actors` but not `keep_replay`"):
        config.resumed({"episodes": 80}, checkpoint.newest(short / "checkpoints"))
