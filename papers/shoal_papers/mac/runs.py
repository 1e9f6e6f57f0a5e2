"""Trainings of classifiers through emulated MAC units as cells, which all studies of MAC units share.

A `Kind` is a training without its seed. Its settings are a `Task`'s: all kinds of one task differ in nothing but the
arithmetic, so that they are compared seed by seed. A kind that several studies need is trained once: their cells are
in one folder.
"""

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.runs.folder import file_name
from shoal_papers.cells import Cells, StudyCell
from shoal_papers.seeds import mean_or_none

FOLDER = "mac"  # the folder of the cells of all these studies
SEEDS = 3  # seeds of every kind; claims are judged with no fewer
DYNAMIC, NONE = "dynamic", "none"
QUIET: dict[str, Any] = {
    "baseline": False, "tensorboard": False, "checkpoint_every": 0, "threads": 1, "log_every": 10**6,
}  # fmt: skip
POINTS = 20  # points of a stored curve, at most
EVENTS = ("saturated", "overflowed", "underflowed")
PRODUCTS = ("forward", "grad_input", "grad_weight")
CASTS = ("weights", "inputs", "activation_gradients", "weight_gradients")
CLASSES = 10  # of all data sets here
Outcome = Mapping[str, Any]  # what is kept of a training: see `train_one`


@dataclass(frozen=True)
class Task:
    """Model, data and length of a training."""

    model: str
    epochs: int
    quick_epochs: int = 1
    data: str = "digits"
    step_seconds: float = 0.05
    """About, for a step through E5M2:5+E6M5 on one core."""

    def settings(self, quick: bool) -> dict[str, Any]:
        """Those of a `ClassifierConfig`."""
        return {"model": self.model, "data": self.data, "epochs": self.quick_epochs if quick else self.epochs}


TASKS = {
    "resnet8": Task("resnet8", 4),
    "resnet20": Task("resnet20", 4, step_seconds=0.1),
    "wide-resnet": Task("wide-resnet", 2, step_seconds=0.45),
    "transformer": Task("transformer", 4),
}
STEPS_PER_EPOCH = 22  # 1,438 images of digits in mini-batches of 64
SLOWNESS = {
    "bm8": 20.0, "fp8-seb": 1.4, "swalp": 9.0, "hfp8": 1.2, "float32": 0.25, "bf16": 0.8, "fp16": 0.8,
}  # fmt: skip
"""Time of a step over that of E5M2:5+E6M5, by what a scheme's name begins with."""
SLOW_PARTS = {
    "/32": 4.5, "/tensor": 1.2, "order=chunked": 3.5, "order=pairwise": 3.0, "order=kahan": 11.0, "order=exact": 6.5,
    "E4M2:1+": 6.0, "E4M2:2+": 6.0, "E4M3:1+": 4.0, "E4M2:5+": 3.0, "E4M3:5+": 3.0, ":1+": 1.8, ":2+": 1.8,
}  # fmt: skip
"""The same by what it contains, which comes first; E4 operands overflow in the first steps, which are slow."""


@dataclass(frozen=True)
class Kind:
    """A training, without its seed."""

    scheme: str
    loss_scale: str = DYNAMIC
    task: str = "resnet8"
    label: str = field(default="", compare=False)
    """A shorter name of the scheme, for tables and files."""

    @property
    def name(self) -> str:
        """The scheme's short name."""
        return self.label or self.scheme

    def cell(self, seed: int, quick: bool) -> StudyCell:
        """One training."""
        train = TASKS[self.task].settings(quick) | {"scheme": self.scheme, "loss_scale": self.loss_scale, "seed": seed}
        name = file_name(f"{self.task} {self.name} scale {self.loss_scale} seed {seed}".replace("+", "_"))
        return StudyCell(name, {"train": train, "classes": CLASSES}, self.seconds(quick))

    def seconds(self, quick: bool) -> float:
        """About how long it takes on one core."""
        task = TASKS[self.task]
        slow = [factor for text, factor in SLOW_PARTS.items() if text in self.scheme]
        slow += [factor for text, factor in SLOWNESS.items() if self.scheme.startswith(text)]
        epochs = task.quick_epochs if quick else task.epochs
        return epochs * STEPS_PER_EPOCH * task.step_seconds * (slow or [1.0])[0] * 1.1


def behind(accumulator: str, loss_scale: str = DYNAMIC) -> Kind:
    """An accumulator behind an E5M2 multiplier in CFG-5, whose products are exact in E6M5."""
    return Kind(f"E5M2:5+{accumulator}", loss_scale)


def baseline(task: str = "resnet8") -> Kind:
    """Float32 of a task."""
    return Kind("float32", NONE, task)


# ---- one training ---------------------------------------------------------------------------------------------------


def train_one(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A cell: one training. That it diverges is a result, too: its accuracy is that of the last epoch, or chance."""
    from shoal.classifiers.config import ClassifierConfig
    from shoal.classifiers.training import TrainingDiverged, train_classifier

    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        config = ClassifierConfig(**settings["train"], **QUIET, out=str(run))
        try:
            result = train_classifier(config)
        except TrainingDiverged as error:
            result = error.result
        if result.signal is not None:
            raise KeyboardInterrupt
        log = run / "metrics.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    chance = 1 / settings["classes"]
    return {
        "seed": config.seed,
        "accuracy": chance if result.accuracy is None else result.accuracy,
        "best_accuracy": chance if result.best_accuracy is None else result.best_accuracy,
        "train_loss": result.train_loss,
        "curve": thinned(lines),  # [epoch, accuracy, training loss] after epochs
        "scale": result.figures.get("scale"),  # at the end
        "skipped": int(result.figures.get("skipped", 0)),
        "steps": result.steps,
        "diverged": result.diverged,  # how; empty if it did not
        "roles": roles(result.layers),
        "seconds": round(result.seconds, 2),
    }


def thinned(lines: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """[epoch, accuracy, training loss] of the lines that have an accuracy; the last one always."""
    points = [[round(line[name], 5) for name in ("epoch", "accuracy", "train_loss")]
              for line in lines if line.get("accuracy") is not None and line.get("train_loss") is not None]  # fmt: skip
    every = -(-len(points) // POINTS) or 1
    return points[::-1][::every][::-1]


def roles(layers: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """MACs or rounded numbers by role over all layers, and the shares of events among them."""
    sums: dict[str, dict[str, int]] = {}
    for layer in layers:
        role = sums.setdefault(layer["role"], dict.fromkeys(("numbers", *EVENTS), 0))
        for name in role:
            role[name] += layer[name]
    return {
        name: {"numbers": role["numbers"]}
        | {event: float(f"{role[event] / role['numbers']:.4g}") if role["numbers"] else 0.0 for event in EVENTS}
        for name, role in sums.items()
    }


# ---- all trainings of a study ---------------------------------------------------------------------------------------


def cells(kinds: Iterable[Kind], quick: bool) -> list[StudyCell]:
    """One cell per kind and seed, seed 0 of everything first."""
    return [kind.cell(seed, quick) for seed in range(1 if quick else SEEDS) for kind in dict.fromkeys(kinds)]


def trained(done: Cells, kinds: Sequence[Kind], quick: bool) -> list[dict[str, Any]]:
    """Train every kind with every seed, as many at a time as there are CPUs."""
    results = done.run(cells(kinds, quick), train_one)
    by_cell = {kind.cell(seed, quick).name: kind for seed in range(SEEDS) for kind in kinds}
    rows = []
    for name, outcome in results.items():
        kind = by_cell[name]
        about = {"scheme": kind.scheme, "loss_scale": kind.loss_scale, "plan": kind.task, "label": kind.label}
        rows.append({**about, "outcome": outcome})
    return rows


def share(outcomes: Sequence[Outcome], event: str, roles: Sequence[str]) -> float | None:
    """The share of an event among all numbers of these roles, mean over seeds; None where nothing was emulated."""
    shares = []
    for outcome in outcomes:
        chosen = [outcome["roles"][role] for role in roles if role in outcome["roles"]]
        if numbers := sum(role["numbers"] for role in chosen):
            shares.append(sum(role["numbers"] * role[event] for role in chosen) / numbers)
    return mean_or_none(shares)
