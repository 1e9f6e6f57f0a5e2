"""Callbacks: when they are called, what they may do, and that the examples of the documentation run."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from shoal import Callback, TrainConfig, train
from shoal.errors import UserError
from shoal.training import callbacks as module
from shoal.training.callbacks import HOOKS
from tests.cli.helpers import lines
from tests.doc_blocks import run_blocks

SMALL = {
    "episodes": 80, "warmup": 400, "batch": 32, "hidden": (8,), "update_every": 20, "checkpoint_every": 30,
    "log_every": 20, "evaluate_episodes": 0, "tensorboard": False, "threads": 1, "evaluate_every": 40,
    "evaluate_during": 3,
}  # fmt: skip


def remembering(hook):
    def method(self, run, *arguments):
        self.calls.append((hook, run.episodes, run.updates, *arguments))

    return method


def witness_of_all():
    """A callback that remembers every call."""
    return type("Witness", (Callback,), {"calls": [], **{hook: remembering(hook) for hook in HOOKS}})()


def weights(run):
    return load_file(sorted(Path(run, "checkpoints").glob("[0-9]*"))[-1] / "weights.safetensors")


def test_every_method_is_called_at_its_time(tmp_path):
    witness = witness_of_all()
    result = train(TrainConfig(**SMALL, out=str(tmp_path / "run")), callbacks=[witness])
    of = {hook: [call for call in witness.calls if call[0] == hook] for hook in HOOKS}
    assert witness.calls[0] == ("on_begin", 0, 0) and len(of["on_begin"]) == 1
    assert sum(len(call[3]) for call in of["on_episodes"]) == result.episodes
    assert [call[2] for call in of["on_update"]] == [*range(1, result.updates + 1)]
    log = lines(tmp_path / "run")
    assert [call[3]["episode"] for call in of["on_log"]] == [line["episode"] for line in log]
    evaluated = [line for line in log if "evaluate/return_mean" in line]
    assert [(call[1], call[3].mean) for call in of["on_evaluation"]] == [
        (line["episode"], line["evaluate/return_mean"]) for line in evaluated
    ]
    assert [int(call[3].name) for call in of["on_checkpoint"]] == [call[1] for call in of["on_checkpoint"]]
    assert of["on_checkpoint"][-1][3].is_dir() and len(of["on_checkpoint"]) == 3


def test_passive_callbacks_change_no_bit(tmp_path):
    class Looks(Callback):
        def on_update(self, run):
            actions = run.act(np.zeros((2, 3, 18), np.float32))
            assert actions.shape == (2, 3, 5)

    train(TrainConfig(**SMALL, out=str(tmp_path / "plain")))
    train(TrainConfig(**SMALL, out=str(tmp_path / "looked")), callbacks=[Looks(), witness_of_all()])
    plain, looked = weights(tmp_path / "plain"), weights(tmp_path / "looked")
    assert all(plain[name].tobytes() == looked[name].tobytes() for name in plain)


@pytest.mark.parametrize("hook", HOOKS)
def test_every_method_may_stop_the_run(tmp_path, hook):
    def stop(self, run, *arguments):
        run.stop(f"enough in {hook}")

    stops = type("Stops", (Callback,), {hook: stop})()
    result = train(TrainConfig(**SMALL, out=str(tmp_path / "run")), callbacks=[stops])
    assert result.finished and result.stopped == f"enough in {hook}" and result.episodes < 80
    assert json.loads((tmp_path / "run" / "result.json").read_text())["stopped"] == f"enough in {hook}"
    again = train(TrainConfig(out=str(tmp_path / "run")), resume=True, callbacks=[stops])
    assert again == result
    longer = train(TrainConfig(out=str(tmp_path / "run"), episodes=90), resume=True)
    assert longer.stopped is None and longer.episodes >= 90


def test_stop_at_the_last_episode_is_ignored(tmp_path):
    class Late(Callback):
        def on_checkpoint(self, run, path):
            if run.episodes >= 80:
                run.stop()

    assert train(TrainConfig(**SMALL, out=str(tmp_path / "run")), callbacks=[Late()]).stopped is None


def test_methods_may_be_instance_attributes(tmp_path):
    seen, callback = [], Callback()
    callback.on_update = lambda run: seen.append(run.updates)
    result = train(TrainConfig(**SMALL, out=str(tmp_path / "run")), callbacks=[callback])
    assert seen == list(range(1, result.updates + 1)) and seen


def test_numbers_of_numpy_are_logged_as_numbers(tmp_path):
    class Adds(Callback):
        def on_log(self, run, line):
            line |= {"own/mean": np.float32(1.5), "own/count": np.int64(run.episodes)}

    train(TrainConfig(**SMALL, out=str(tmp_path / "run")), callbacks=[Adds()])
    assert all(line["own/mean"] == 1.5 and line["own/count"] == line["episode"] for line in lines(tmp_path / "run"))


def test_non_callbacks_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"instances of shoal\.Callback, but one is <function"):
        train(TrainConfig(**SMALL, out=str(tmp_path / "run")), callbacks=[lambda run: None])
    with pytest.raises(UserError, match="is a single one"):
        train(TrainConfig(**SMALL, out=str(tmp_path / "run")), callbacks=Callback())
    with pytest.raises(UserError, match="must be a list of callbacks, but is None"):
        train(TrainConfig(**SMALL, out=str(tmp_path / "run")), callbacks=None)
    with pytest.raises(UserError, match="on_log of the callback Number is not a method"):
        train(TrainConfig(**SMALL, out=str(tmp_path / "run")), callbacks=[type("Number", (Callback,), {"on_log": 3})()])
    misspelt = type("Misspelt", (Callback,), {"on_episode": lambda self, run, episodes: None, "on_gpu": False})
    with pytest.raises(UserError, match=r"Misspelt has a method on_episode, .* there are on_begin, on_episodes, "):
        train(TrainConfig(**SMALL, out=str(tmp_path / "run")), callbacks=[misspelt()])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("does", "words"),
    [
        (
            lambda run, line: line.update(own=np.zeros(2)),
            "has added array.* to the log as 'own', which is not a number",
        ),
        (lambda run, line: line.update(own=1j), "has added 1j to the log"),
        (lambda run, line: line.update(own=10**400), "has added 1000.* to the log"),
        (lambda run, line: line.update({3: 1.0}), "to the log as 3"),
        (lambda run, line: line.pop("episode"), "has removed 'episode'"),
        (lambda run, line: line.update(episode=2.5), "has changed 'episode'"),
        (lambda run, line: line.update(own=line), "to the log as 'own', which is not a number"),
        (lambda run, line: run.stop(None), "takes the reason as a text, but was given None"),
        (lambda run, line: run.act(np.zeros(3)), r"has the shape \(3,\), but the team takes \(copies, 3, 18\)"),
        (lambda run, line: run.act(np.zeros((4, 3, 17))), r"has the shape \(4, 3, 17\)"),
    ],
)
def test_wrong_use_in_a_callback_is_refused(tmp_path, does, words):
    wrong = type("Wrong", (Callback,), {"on_log": lambda self, run, line: does(run, line) and None})
    with pytest.raises(UserError, match=words):
        train(TrainConfig(**SMALL, out=str(tmp_path / "run")), callbacks=[wrong()])
    assert lines(tmp_path / "run") == []


@pytest.mark.parametrize("update", ["native", "torch"])
def test_act_in_a_callback_accepts_any_dtype(tmp_path, update):
    class Acts(Callback):
        def on_begin(self, run):
            one, two = (run.act(np.zeros((2, 3, 18), kind)) for kind in (np.float32, np.float64))
            assert one.shape == (2, 3, 5)
            np.testing.assert_array_equal(one, two)
            np.testing.assert_array_equal(one, run.act(np.zeros((2, 3, 18)).tolist()))

    train(TrainConfig(**{**SMALL, "episodes": 1}, update=update, out=str(tmp_path / "run")), callbacks=[Acts()])


def test_exception_in_a_callback_ends_the_run_resumably(tmp_path):
    class Fails(Callback):
        def on_evaluation(self, run, evaluation):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(TrainConfig(**SMALL, out=str(tmp_path / "run")), callbacks=[Fails()])
    train(TrainConfig(**SMALL, out=str(tmp_path / "whole")))
    train(TrainConfig(out=str(tmp_path / "run")), resume=True)
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "run")
    assert all(whole[name].tobytes() == resumed[name].tobytes() for name in whole)


# ---- docs/callbacks.md and docs/advice.md ---------------------------------------------------------------------------


def examples():
    docs = Path(module.__file__).parents[2] / "docs"
    text = (docs / "callbacks.md").read_text() + (docs / "advice.md").read_text()
    for section in re.split(r"^## ", text, flags=re.M):
        if blocks := re.findall(r'^```python(?: title="(.*?)")?\n(.*?)^```', section, re.S | re.M):
            yield pytest.param(blocks, id=section.partition("\n")[0])


@pytest.mark.parametrize("blocks", examples())
def test_documentation_examples_run(blocks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run_blocks(blocks)
    if Path("runs/success").exists():
        assert all(0 <= line["success_rate"] <= 1 for line in lines("runs/success"))
    if Path("runs/reach").exists():
        distances = [line["curriculum/distance"] for line in lines("runs/reach")]
        assert distances == sorted(distances) and distances[0] < 3 and distances[-1] == 4
