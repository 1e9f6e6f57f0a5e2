"""Trainings through MAC units as cells: what is kept of one, and how claims are judged by seeds."""

import functools

import pytest

from shoal.classifiers import training as classifiers
from shoal.classifiers.config import ClassifierConfig
from shoal.errors import Diverged
from shoal_papers import cells as cells_module
from shoal_papers.cells import Options
from shoal_papers.mac import claims as mac_claims
from shoal_papers.mac import runs as mac_runs
from shoal_papers.mac.claims import FAILS, HOLDS, UNKNOWN, Claim, MacStudy, Trainings, keeps, loses
from shoal_papers.mac.runs import Kind
from shoal_papers.seeds import NOT_RUN
from tests.papers.at_once import AtOnce

TINY = {"model": "mlp", "data": "digits", "epochs": 2, "train_images": 128, "test_images": 64}


def outcome(seed=0, accuracy=0.9, diverged="", **shares):
    """An outcome of a training that nobody had to run."""
    events = {"saturated": 0.0, "overflowed": 0.0, "underflowed": 0.0, **shares}
    return {
        "seed": seed, "accuracy": accuracy, "best_accuracy": accuracy, "train_loss": 0.1,
        "curve": [[1.0, accuracy, 0.1]], "scale": 65536.0, "skipped": 2, "steps": 88, "diverged": diverged,
        "seconds": 5.0,
        "roles": {"forward": {"numbers": 1000, **events}, "weights": {"numbers": 10, **events}},
    }  # fmt: skip


def rows_of(kind, accuracies):
    """The rows of a kind with these accuracies by seed."""
    about = {"scheme": kind.scheme, "loss_scale": kind.loss_scale, "plan": kind.task}
    return [{**about, "outcome": outcome(seed, accuracy)} for seed, accuracy in enumerate(accuracies)]


def test_training_cell_is_kept(tmp_path):
    settings = {"train": {**TINY, "scheme": "E5M2:5+Q8.13", "loss_scale": "dynamic", "seed": 3}, "classes": 10}
    found = mac_runs.train_one(settings, tmp_path)
    assert found["seed"] == 3 and found["steps"] == 4 and not found["diverged"]
    assert [point[0] for point in found["curve"]] == [1.0, 2.0] and found["curve"][-1][1] == round(found["accuracy"], 5)
    assert set(found["roles"]) == {
        "forward", "grad_input", "grad_weight", "weights", "inputs", "activation_gradients",
    }  # fmt: skip
    assert found["roles"]["forward"]["underflowed"] > 0 and found["scale"] >= 1
    assert list(tmp_path.iterdir()) == []


def test_diverged_training_is_a_result(monkeypatch, tmp_path):
    """The last accuracy counts; without one, chance."""
    taken = []

    def diverge(self):
        taken.append(self.done)
        if len(taken) > steps:
            raise Diverged("The loss is nan")
        self.done += 1
        self.recent_loss = 1.0
        self.line_steps += 1

    monkeypatch.setattr(classifiers.ClassifierTraining, "take_step", diverge)
    for steps, chance in ((1, True), (2, False)):
        taken.clear()
        found = mac_runs.train_one(
            {"train": {**TINY, "scheme": "float32", "loss_scale": "none"}, "classes": 10}, tmp_path
        )
        assert "diverged" in found["diverged"] and found["steps"] == steps
        assert (found["accuracy"] == 0.1) == chance and len(found["curve"]) == (0 if chance else 1)


def test_curves_are_subsampled():
    lines = [{"epoch": k, "accuracy": 0.5, "train_loss": 1.0, "step": k} for k in range(1, 51)]
    lines.insert(3, {"epoch": 3.5, "loss": 1.0})
    kept = mac_runs.thinned(lines)
    assert len(kept) <= mac_runs.POINTS and kept[-1][0] == 50 and mac_runs.thinned([]) == []


def test_a_kind_is_trained_once_for_all_studies(monkeypatch, tmp_path):
    monkeypatch.setattr(cells_module, "ChildPool", AtOnce)
    done = []

    @functools.wraps(mac_runs.train_one)
    def train(settings, folder):
        ClassifierConfig(**settings["train"]).checked()
        done.append(settings["train"]["scheme"])
        return outcome(settings["train"]["seed"])

    monkeypatch.setattr(mac_runs, "train_one", train)
    kinds = [Kind("float32", "none"), Kind("E5M2:5+E6M5"), Kind("float32", "none")]
    options = Options(tmp_path, cells=tmp_path / "cells")

    class Some(MacStudy):
        name = "some"

        def kinds(self, quick):
            return kinds

    first = Some().measured(False, lambda *_: None, options)
    assert len(first["rows"]) == len(done) == 6 and not first["failed"]
    kinds.append(Kind("bf16"))
    again = Some().measured(False, lambda *_: None, options)
    assert done[6:] == ["bf16"] * 3 and len(again["rows"]) == 9
    assert [path.name for path in (tmp_path / "cells").iterdir()] == ["mac"]
    assert (tmp_path / "cells" / "mac" / "resnet8-E5M2-5_E6M5-scale-dynamic-seed-0.json").exists()


def test_differences_are_taken_seed_by_seed():
    one, two = Kind("E5M2:5+E6M5"), Kind("float32", "none")
    held = Trainings([*rows_of(one, [0.7, 0.8, 0.9]), *rows_of(two, [0.9, 0.9])])
    assert held.differences(one, two) == pytest.approx([-0.2, -0.1])
    assert held.accuracies(Kind("bf16")) == [] and held.differences(one, Kind("bf16")) == []
    assert mac_runs.share(held.of(one), "saturated", ["forward"]) == 0.0
    assert mac_runs.share(held.of(one), "saturated", ["grad_input"]) is None


@pytest.mark.parametrize(
    ("gaps", "loss", "kept"),
    [
        ([], NOT_RUN, NOT_RUN),
        ([-0.5, -0.5], UNKNOWN, UNKNOWN),  # two seeds
        ([-0.5, -0.51, -0.49], HOLDS, FAILS),
        ([-0.5, -0.1, -0.2], UNKNOWN, UNKNOWN),  # the interval is too wide
        ([-0.01, -0.011, -0.009], FAILS, HOLDS),  # a loss, but not one that matters
        ([0.2, 0.3, 0.25], FAILS, HOLDS),
        ([0.0, 0.0, 0.0], FAILS, HOLDS),
    ],
)
def test_verdicts_of_accuracy_differences(gaps, loss, kept):
    assert loses("a against b", gaps).verdict == loss
    assert keeps("a against b", gaps).verdict == kept


def test_claim_holds_if_all_parts_do():
    yes, no = loses("yes", [-0.5, -0.5, -0.5]), loses("no", [0.0, 0.0, 0.0])
    unknown, missing = loses("unknown", [-0.5]), loses("missing", [])
    for parts, verdict in (
        ((yes, yes), HOLDS), ((yes, no, unknown), FAILS), ((yes, unknown), UNKNOWN), ((yes, missing), UNKNOWN),
        ((missing,), NOT_RUN), ((), NOT_RUN),
    ):  # fmt: skip
        assert Claim("a", "Words", parts).verdict == verdict
    said = Claim("a", "Words", (yes, no, unknown, missing)).sentence()
    assert said == (
        "(a) Words: DOES NOT HOLD. Holds: yes (-50.0 ± 0.0 points). Does not hold: no (+0.0 ± 0.0 points). "
        "Inconclusive with these data: unknown (-50.0 points). Not run: missing."
    )
    assert Claim("", "Question: which?", (yes,)).sentence() == "Question: which? Holds: yes (-50.0 ± 0.0 points)."


def test_shares_and_scales_in_words():
    texts = [mac_claims.in_words(value) for value in (None, 0.0, 0.123, 1.0)]
    assert texts == [None, "0", "12.3%", "100%"]
    assert mac_claims.scales([outcome(), outcome() | {"scale": 1024.0}]) == "2^10 to 2^16"
    assert mac_claims.scales([outcome()]) == "2^16" and mac_claims.scales([]) is None
