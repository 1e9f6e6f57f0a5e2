"""Training runs: what they write, resumed bits, divergence, and averaged weights."""

import copy
import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import update_bn

from shoal.classifiers import ClassifierConfig, load_data, train_classifier
from shoal.classifiers.images import in_order
from shoal.classifiers.training import ClassifierTraining, TrainingDiverged, make_optimizer, rate
from shoal.errors import UserError
from shoal.runs.checkpoint import newest
from shoal.runs.observer import Observer
from tests.classifiers.helpers import assert_same_run, tiny, weights
from tests.cli.helpers import lines


class At(Observer):
    """Does something after a step."""

    def __init__(self, step, action):
        self.step, self.action, self.told = step, action, []

    def advance(self, training):
        if training.done == self.step:
            self.action()

    def tell(self, sentence):
        self.told.append(sentence)


def stop():
    os.kill(os.getpid(), signal.SIGTERM)


def crash():
    raise RuntimeError("the machine is on fire")


# ---- a run ---------------------------------------------------------------------------------------------------------


def test_run_writes_its_files(tmp_path):
    result = train_classifier(tiny(tmp_path / "run", scheme="E5M2:5+Q8.13", tensorboard=True))
    assert result.finished and (result.epochs, result.steps) == (2, 8) and result.signal is None
    names = {path.name.partition(".out")[0] for path in (tmp_path / "run").iterdir()}
    assert names == {"config.json", "metrics.jsonl", "result.json", "checkpoints", "events"}
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["00000008"]
    found = lines(tmp_path / "run")
    assert [line["step"] for line in found] == [3, 4, 6, 8]
    assert ["accuracy" in line for line in found] == [False, True, False, True]
    assert found[-1]["accuracy"] == result.accuracy and found[-1]["mac/macs"] == result.figures["mac/macs"] > 0
    assert {layer["role"] for layer in result.layers} >= {"weights", "inputs", "forward", "grad_weight"}
    assert result.share("saturated") == result.figures["mac/saturated"] / result.figures["mac/macs"]
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["scheme"] == "E5M2:5+Q8.13" and len(config["sha256"]) == 64


def test_float32_scheme_equals_torch(tmp_path):
    """The same steps in a plain loop."""
    config = tiny(tmp_path / "run", scheme="float32")
    train_classifier(config)
    plain = ClassifierTraining(config)
    model, optimizer = plain.model, make_optimizer(config, plain.model)
    for step in range(8):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.5 * (1 + np.cos(np.pi * step / 8))
        images, labels = plain.batches[step]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    held = weights(tmp_path / "run")["weights"]
    for name, value in model.state_dict().items():
        assert np.array_equal(held[name], value.numpy()), name


def test_training_learns():
    training = ClassifierTraining(
        tiny(model="resnet8", scheme="float32", train_images=None, test_images=None, batch=64)
    )
    while training.done < training.total:
        training.take_step()
    assert training.evaluate()["accuracy"] > 0.85


@pytest.mark.parametrize(
    ("schedule", "rates"), [("cosine", [1, 0.5, 0]), ("step", [1, 0.1, 0.01]), ("constant", [1] * 3)]
)
def test_schedules(schedule, rates):
    assert [rate(schedule, done) for done in (0, 0.5, 1)] == pytest.approx(rates)


def test_evaluation_does_not_change_state():
    config = tiny(model="resnet8", scheme="E5M2:5+E6M5, rounding=stochastic", train_images=32, epochs=1)
    once, often = ClassifierTraining(config), ClassifierTraining(config)
    for training in (once, often):
        while training.done < training.total:
            training.take_step()
            if training is often:
                training.evaluate()
    for name, value in once.model.state_dict().items():
        assert torch.equal(value, often.model.state_dict()[name])
    assert once.precision.metrics() == often.precision.metrics()


# ---- stopped and resumed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"scheme": "E5M2:5+E6M5, rounding=stochastic", "loss_scale": "dynamic"},
        {"scheme": "hfp8", "optimizer": "adamw", "loss_scale": "adaptive", "model": "transformer", "train_images": 16,
         "test_images": 8, "batch": 2, "epochs": 1},
        {"scheme": "swalp", "dropout": 0.3},
        {"scheme": "fp134", "optimizer": "adam", "augment": False, "schedule": "step"},
        {"scheme": "float32", "model": "resnet8", "train_images": 48},
    ],
    ids=lambda settings: settings["scheme"],
)  # fmt: skip
def test_resume_is_bit_identical(tmp_path, settings):
    settings = {"checkpoint_every": 2, **settings}
    whole = train_classifier(tiny(tmp_path / "whole", **settings))
    config = tiny(tmp_path / "parts", **settings)
    with pytest.raises(RuntimeError):
        train_classifier(config, At(3, crash))
    assert newest(tmp_path / "parts/checkpoints").episode == 2
    stopped = train_classifier(config, At(5, stop), resume=True)  # in the middle of an epoch
    assert stopped.signal == signal.SIGTERM and not stopped.finished and stopped.steps == 5
    resumed = train_classifier(config, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert replace(resumed, run="", seconds=0) == replace(whole, run="", seconds=0)


def test_a_finished_run_is_returned(tmp_path):
    config = tiny(tmp_path / "run", scheme="float32", epochs=1)
    result = train_classifier(config)
    observer = At(0, crash)
    asked = ClassifierConfig(out=str(tmp_path / "run"))  # what is not given stays
    assert train_classifier(asked, observer, resume=True) == result
    assert "finished" in observer.told[0]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"epochs": 3}, "`epochs` is 3, but the run in '.*' has 1: a resumed run keeps its settings"),
        ({"model": "vgg"}, "`model` is vgg, but"),
        ({"scheme": "hfp8"}, "`scheme` is hfp8, but"),
    ],
)
def test_resume_with_other_settings_is_refused(tmp_path, asked, sentence):
    train_classifier(tiny(tmp_path / "run", scheme="float32", epochs=1))
    with pytest.raises(UserError, match=sentence):
        train_classifier(tiny(tmp_path / "run", **{"scheme": "float32", "epochs": 1, **asked}), resume=True)


def test_resume_with_other_data_is_refused(tmp_path):
    data, config = load_data("digits"), tiny(tmp_path / "run", scheme="float32", train_images=None)
    train_classifier(config, At(5, stop), data=data.first(64, None))
    with pytest.raises(UserError, match="`data=digits` has changed since the run"):
        train_classifier(config, resume=True, data=data.first(65, None))


def test_changed_config_is_refused(tmp_path):
    config = tiny(tmp_path / "run", scheme="float32")
    train_classifier(config, At(5, stop))
    path = tmp_path / "run/config.json"
    path.write_text(path.read_text().replace('"batch": 16', '"batch": 8'))
    with pytest.raises(UserError, match="batch is 8 instead of 16"):
        train_classifier(replace(config, batch=8), resume=True)


# ---- divergence ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "left"), [(4, "the last good checkpoint is that of step"), (0, "there is no checkpoint")]
)
def test_diverging_training(tmp_path, every, left):
    config = tiny(tmp_path / "run", scheme="float32", learning_rate=1000.0, epochs=12, checkpoint_every=every)
    with pytest.raises(TrainingDiverged, match=rf"steps are not finite, at step \d+ of 48 .*diverged; {left}") as error:
        train_classifier(config)
    assert error.value.result.diverged == str(error.value)
    if every:
        assert all(np.isfinite(array).all() for array in weights(tmp_path / "run")["weights"].values())
        with pytest.raises(TrainingDiverged):  # again, from there
            train_classifier(config, resume=True)
    else:
        assert not (tmp_path / "run/checkpoints").exists()


def test_loss_scale_below_one_diverges(tmp_path):
    scheme, few = "E5M2:5+E5M5, overflow=infinity", {"train_images": 16, "test_images": 8, "batch": 2, "epochs": 4}
    config = tiny(tmp_path / "run", scheme=scheme, learning_rate=1000.0, loss_scale="dynamic, start=4", **few)
    with pytest.raises(TrainingDiverged, match=r"The loss scale has fallen to .*training has diverged"):
        train_classifier(config)


# ---- averaged weights ----------------------------------------------------------------------------------------------


def test_averaged_weights_have_their_own_batch_norm_statistics():
    training = ClassifierTraining(tiny(model="resnet8", scheme="float32; average_after=1; average_every=1"))
    seen = []
    while training.done < training.total:
        training.take_step()
        seen.append(copy.deepcopy(dict(training.model.named_parameters())))
    assert training.precision.averages
    before = copy.deepcopy(training.model.state_dict())
    found = training.evaluate()
    for name, value in training.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    twin, data = copy.deepcopy(training.model), training.data
    with torch.no_grad():
        for name, own in twin.named_parameters():
            own.copy_(torch.stack([step[name] for step in seen]).mean(0))
        update_bn((images for images, _ in in_order(data, data.train, 250)), twin)
        twin.eval()
        images, labels = next(iter(in_order(data, data.test, 250)))
        loss = torch.nn.functional.cross_entropy(twin(images), labels).item()
    assert found["test_loss"] == pytest.approx(loss, rel=1e-4)


# ---- wrong inputs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model": "alexnet"}, "`model` 'alexnet' is not known"), ({"data": "mnist"}, "`data` 'mnist' is not known"),
        ({"scheme": "hfp9"}, "hfp9"), ({"optimizer": "lion"}, "`optimizer` 'lion' is not known"),
        ({"epochs": 0}, "`epochs` is 0"), ({"batch": 65}, "`batch` is 65, but there are only 64 training images"),
        ({"batch": 1}, "`batch` is 1"), ({"loss_scale": "big"}, "'big' is not a loss scale"),
        ({"loss_scale": "0"}, "loss scale is 0"), ({"learning_rate": 0.0}, "`learning_rate` is 0.0"),
        ({"learning_rate": float("nan")}, "`learning_rate` is nan"), ({"train_images": 10**6}, "`train_images` is 1,0"),
        ({"schedule": "linear"}, "`schedule` 'linear' is not known"), ({"seed": -1}, "`seed` is -1"),
        ({"optimizer": "adam", "momentum": 0.5}, "`momentum` is for sgd"), ({"out": " "}, "`out` is empty"),
        ({"model": "resnet8", "dropout": 0.1}, "resnet8 has no dropout"), ({"threads": 0}, "`threads` is 0"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_settings_are_refused(tmp_path, monkeypatch, settings, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=sentence):
        train_classifier(tiny(**{"out": "run", **settings}))
    assert os.listdir(tmp_path) == []


def test_nan_in_custom_data_is_refused(tmp_path):
    data = load_data("digits")
    train = replace(data.train, images=data.train.images.astype(np.float32))
    train.images[7, 0, 3, 3] = np.nan
    with pytest.raises(UserError, match="The given data: training image 7 has a pixel that is NaN or infinite"):
        train_classifier(tiny(tmp_path / "run", scheme="float32"), data=replace(data, train=train))
    assert not (tmp_path / "run").exists()


def test_existing_folder_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("precious")
    with pytest.raises(UserError, match="already holds a run"):
        train_classifier(tiny(tmp_path))
