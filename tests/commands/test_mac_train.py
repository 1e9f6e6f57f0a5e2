"""`shoal mac train` and `shoal mac sweep --train`: tables, JSON, pictures, stopping, and one sentence for mistakes."""

import json
import os
import signal

import pytest

from shoal.classifiers import training
from shoal.classifiers.display import ClassifierDisplay
from tests.classifiers.helpers import idx, tiny, write_idx
from tests.cli.helpers import call_before, one_sentence, send, strict
from tests.commands.test_mac import cells

TINY = (
    "--model mlp --train-images 32 --test-images 20 --batch 16 --epochs 1 --loss-scale 64 --no-tensorboard --threads 1"
).split()


@pytest.fixture(autouse=True)
def workplace(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("rendered")
def test_train_one_scheme(shoal, tmp_path):
    words = ["mac", "train", *TINY, "--scheme", "E5M2:5+E6M5", "--out", "runs/mac1"]
    code, out, err = shoal(*words)
    assert code == 0 and "Training: mlp on digits in E5M2:5+E6M5, into runs/mac1" in err
    rows = [row[0] for row in cells(out)]
    assert "E5M2:5+E6M5" in rows and "float32" in rows and "PNG  runs/mac1/training.png" in out
    assert (tmp_path / "runs/mac1/training.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "runs/mac1/float32/result.json").exists()
    code, again, err = shoal("mac", "train", "--resume", "runs/mac1")
    assert code == 0 and again == out and err == ""
    code, out, err = shoal("mac", "train", "--resume", "runs/mac1", "--json")
    found = strict(out)
    assert code == 0 and [run["scheme"] for run in found["runs"]] == ["E5M2:5+E6M5", "float32"]
    assert found["pictures"] == ["runs/mac1/training.png"] and found["run"] == "runs/mac1"
    code, _, err = shoal("mac", "train", "--resume", "runs/mac1", "--batch", "8")
    assert code == 2 and "--batch is 8, but the run in 'runs/mac1' has 16" in one_sentence(err)
    code, _, err = shoal(*words)
    assert code == 2 and "already holds a run" in one_sentence(err)
    code, _, err = shoal("train", "--resume", "runs/mac1")
    assert code == 2 and "from another command" in one_sentence(err)


def test_train_several_schemes(shoal, tmp_path):
    words = ["mac", "train", *TINY, "--schemes", "E5M2:5+Q8.13, rounding=toward-zero,bf16", "--no-baseline", "--quiet"]
    code, out, err = shoal(*words, "--out", "runs/mac2")
    assert (code, out, err) == (0, "", "")
    pictures = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png"))
    first = "runs/mac2/1-E5M2-5-Q8.13-rounding-toward-zero/training.png"
    assert pictures == [first, "runs/mac2/2-bf16/training.png", "runs/mac2/training.png"]
    code, out, err = shoal("mac", "train", "--resume", "runs/mac2", "--schemes", "bf16", "fp16")
    assert code == 2 and "--schemes differ" in one_sentence(err)


def test_stopped_and_resumed(shoal, monkeypatch, tmp_path):
    words = ["mac", "train", *TINY, "--scheme", "bf16"]
    call_before(monkeypatch, training.ClassifierTraining, "take_step", lambda: send(signal.SIGTERM), at=1)
    code, out, err = shoal(*words)  # without --out: a new folder under runs/
    run = "runs/mlp-digits-seed0-1"
    assert code == 128 + signal.SIGTERM and out == ""
    assert f"Stopped and saved at step 1 of bf16; resume with: shoal mac train --resume {run}" in err
    code, out, err = shoal("mac", "train", "--resume", run)
    assert code == 0 and "Resuming at step 1: mlp on digits in bf16" in err and "bf16" in out


def test_diverging_training(shoal, tmp_path):
    code, out, err = shoal("mac", "train", *TINY, "--scheme", "float32", "--learning-rate", "1000", "--epochs", "20",
                           "--checkpoint-every", "4", "--quiet", "--out", "run")  # fmt: skip
    assert code == 2 and out == ""
    assert "training has diverged; the last good checkpoint is that of step" in one_sentence(err)


@pytest.mark.usefixtures("rendered")
def test_a_sweep_with_training(shoal, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # the title has a path in it
    words = "mac sweep E5M2:5+E6M5 E5M2:5+Q8.13 --inner 16 --train --model mlp --epochs 1".split()
    folder = write_idx(tmp_path / "set")
    words += ["--data", f"idx:{folder}", "--loss-scale", "none", "--out", "runs/sweep", "--picture", "accuracy.png"]
    code, out, err = shoal(*words)
    assert code == 2 and "`batch` is 64, but there are only 40 training images" in one_sentence(err)
    write_idx(folder, train=70)
    code, out, _ = shoal(*words)
    assert code == 0 and "mlp on idx" in out and "Products through MAC units" in out
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((tmp_path / "accuracy.json").read_text())
    assert [row["unit"] for row in found["trainings"]] == ["E5M2:5+E6M5", "E5M2:5+Q8.13", "float32"]
    assert [row["unit"] for row in found["rows"]] == ["E5M2:5+E6M5", "E5M2:5+Q8.13"]
    assert found["figures"][0]["name"] == "accuracy"


@pytest.mark.parametrize(("kept", "said"), [(True, "repeat the command to continue"), (False, "--out would have kept")])
def test_a_stopped_sweep(shoal, monkeypatch, tmp_path, kept, said):
    words = ["mac", "sweep", "E5M2:5+E6M5", "--inner", "4", "--train", "--model", "mlp", "--epochs", "1"]
    words += ["--out", "sweep"] if kept else []
    call_before(monkeypatch, training.ClassifierTraining, "take_step", lambda: send(signal.SIGINT), at=2)
    code, out, err = shoal(*words)
    assert code == 130 and out == "" and said in err
    assert os.listdir(tmp_path) == (["sweep"] if kept else [])
    if kept:
        code, out, err = shoal(*words)
        assert code == 0 and "Resuming at step 2" in err and "float32" in out


def test_the_progress_bar(tmp_path):
    """On a terminal: a bar with accuracy, loss, scale and saturated accumulations."""
    import io

    from rich.console import Console

    display = ClassifierDisplay()
    text = io.StringIO()
    display.console, display._bar = Console(file=text, force_terminal=True, width=100), True
    training.train_classifier(tiny(tmp_path / "run", scheme="E5M2:5+Q8.13", loss_scale="1024"), display)
    shown = text.getvalue()
    for word in ("step 8/8", "accuracy ", "loss ", "epoch 2 of 2", "scale 1,024", "saturated ", "left"):
        assert word in shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--model lenet", "--model 'lenet' is not one of"), ("--data mnist", "--data 'mnist' is not known"),
        ("--optimizer lion", "--optimizer 'lion' is not one of"), ("--epochs 0", "--epochs is 0"),
        ("--epochs many", "--epochs 'many' is not a whole number"), ("--scheme hfp9", "hfp9"),
        ("--scheme E5M2:55+E6M5", "The cfg of 'E5M2:55+E6M5' is '55'"),
        ("--loss-scale big", "'big' is not a loss scale"),
        ("--schemes hfp8,hfp9", "hfp9"), ("--schemes hfp8,hfp8", "names hfp8 twice"),
        ("--schemes hfp8,bm8 --scheme hfp8", "--scheme and --schemes cannot be used together"),
        ("--data idx:nowhere", "There is no folder 'nowhere' with IDX files"),
        ("--data cifar10:nowhere", "get them from https://www.cs.toronto.edu"),
        ("--batch 2000", "--batch is 2,000, but there are only 1,438 training images"),
        ("--resume nowhere", "There is no run folder 'nowhere'"), ("--resume", "--resume needs a run folder"),
        ("--epoch 3 --lerning-rate 1", "--lerning-rate"), ("--threads 100000", "--threads"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(shoal, tmp_path, words, sentence):
    code, out, err = shoal("mac", "train", *words.split())
    assert code == 2 and out == "" and sentence in one_sentence(err)
    assert os.listdir(tmp_path) == []


def test_damaged_data_are_refused(shoal, tmp_path):
    folder = write_idx(tmp_path / "set", changed={("train", "labels"): idx([1, 2])})
    code, out, err = shoal("mac", "train", "--data", f"idx:{folder}", "--out", "run")
    assert code == 2 and out == "" and "there are 40 training images, but 2 labels" in one_sentence(err)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [("--model mlp", "--model is for trainings, but --train is not given"),
     ("--loss-scale none", "--loss-scale is for trainings"),
     ("E5M2 --train", "has no accumulator"), ("E5M2:5+E6M5 --train --model lenet", "--model 'lenet' is not known"),
     ("E5M2:5+E6M5 --train --epochs 0", "--epochs is 0"), ("E5M2:5+E6M5 --train --inner 0", "--inner is 0"),
     ("Q4.4+E6M5 --inner 4 --train --picture a.png", "nothing to draw")],
)  # fmt: skip
def test_wrong_arguments_of_a_sweep_are_refused(shoal, tmp_path, words, sentence):
    code, out, err = shoal("mac", "sweep", *words.split())
    assert code == 2 and out == "" and sentence in one_sentence(err)
    assert os.listdir(tmp_path) == []
