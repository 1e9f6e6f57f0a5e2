"""Trainings of classifiers through emulated MAC units as cells, which all studies of MAC units share.

A `Kind` is a training without its seed. Its settings are a `Plan`'s: all kinds of one plan differ in nothing but the
arithmetic, so that they are compared seed by seed. A kind that several studies need is trained once: their cells are
in one folder.
"""

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from shoal.runs.folder import file_name
from shoal.waiting import Advance
from shoal_papers.cells import Cells, StudyCell
from shoal_papers.study import Options

FOLDER = "mac"
"""The folder of the cells of all these studies."""
SEEDS = 3
"""Seeds of every kind; claims are judged with no fewer."""
DYNAMIC, NONE = "dynamic", "none"
QUIET: dict[str, Any] = {
    "baseline": False, "tensorboard": False, "checkpoint_every": 0, "threads": 1, "log_every": 10**6,
}  # fmt: skip
POINTS = 20
"""Points of a stored curve, at most."""
EVENTS = ("saturated", "overflowed", "underflowed")
PRODUCTS = ("forward", "grad_input", "grad_weight")
CASTS = ("weights", "inputs", "activation_gradients", "weight_gradients")


@dataclass(frozen=True)
class Plan:
    """Model, data and length of a training."""

    model: str
    epochs: int
    quick_epochs: int = 1
    data: str = "digits"
    train_images: int | None = None
    test_images: int | None = None
    step_seconds: float = 0.05
    """About, for a step through E5M2:5+E6M5 on one core."""

    def settings(self, quick: bool) -> dict[str, Any]:
        """Those of a `ClassifierConfig`."""
        held = {"model": self.model, "data": self.data, "epochs": self.quick_epochs if quick else self.epochs}
        images = {"train_images": self.train_images, "test_images": self.test_images}
        return held | {name: count for name, count in images.items() if count is not None}

    @property
    def classes(self) -> int:
        """All data sets here have ten."""
        return 10


PLANS = {
    "resnet8": Plan("resnet8", 4),
    "resnet20": Plan("resnet20", 4, step_seconds=0.1),
    "wide-resnet": Plan("wide-resnet", 2, step_seconds=0.45),
    "transformer": Plan("transformer", 4, step_seconds=0.05),
}
STEPS_PER_EPOCH = 22
"""1,438 images of digits in mini-batches of 64."""
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
    plan: str = "resnet8"
    label: str = field(default="", compare=False)
    """A shorter name of the scheme, for tables and files."""

    @property
    def name(self) -> str:
        """The scheme's short name."""
        return self.label or self.scheme

    @property
    def scaled(self) -> bool:
        """Whether the loss is scaled."""
        return self.loss_scale != NONE

    def cell(self, seed: int, quick: bool) -> StudyCell:
        """One training."""
        plan = PLANS[self.plan]
        train = plan.settings(quick) | {"scheme": self.scheme, "loss_scale": self.loss_scale, "seed": seed}
        name = file_name(f"{self.plan} {self.name} scale {self.loss_scale} seed {seed}".replace("+", "_"))
        return StudyCell(name, {"train": train, "classes": plan.classes}, self.seconds(quick))

    def seconds(self, quick: bool) -> float:
        """About how long it takes on one core."""
        plan = PLANS[self.plan]
        slow = [factor for text, factor in SLOW_PARTS.items() if text in self.scheme]
        slow += [factor for text, factor in SLOWNESS.items() if self.scheme.startswith(text)]
        epochs = plan.quick_epochs if quick else plan.epochs
        return epochs * STEPS_PER_EPOCH * plan.step_seconds * (slow or [1.0])[0] * 1.1


class Shares(TypedDict):
    """Events of one role in a whole training."""

    numbers: int
    """MACs, or rounded numbers."""
    saturated: float
    overflowed: float
    underflowed: float


class Outcome(TypedDict):
    """What is kept of a training."""

    seed: int
    accuracy: float
    """On the test images, at the end. Of a diverged training: after its last finished epoch, or chance without one."""
    best_accuracy: float
    train_loss: float | None
    """Mean over the last finished epoch."""
    curve: list[list[float]]
    """[epoch, accuracy, training loss] after epochs."""
    scale: float | None
    """Loss scale at the end."""
    skipped: int
    steps: int
    diverged: str
    """How; empty if it did not."""
    roles: dict[str, Shares]
    seconds: float


class Row(TypedDict):
    """One training of a study."""

    scheme: str
    loss_scale: str
    plan: str
    label: NotRequired[str]
    outcome: Outcome


class Found(TypedDict):
    """The data of a study."""

    rows: list[Row]
    failed: list[str]
    machines: NotRequired[list[str]]
    interrupted: NotRequired[bool]


# ---- one training ---------------------------------------------------------------------------------------------------


def work(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A cell: one training; returns an `Outcome`. That it diverges is a result, too."""
    from shoal.classifiers.config import ClassifierConfig
    from shoal.classifiers.training import TrainingDiverged, train_classifier

    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        config = ClassifierConfig(**settings["train"], **QUIET, out=str(run))
        try:
            result = train_classifier(config)
        except TrainingDiverged as how:
            result = how.result
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
        "curve": thinned(lines),
        "scale": result.figures.get("scale"),
        "skipped": int(result.figures.get("skipped", 0)),
        "steps": result.steps,
        "diverged": result.diverged,
        "roles": roles(result.layers),
        "seconds": round(result.seconds, 2),
    }


def thinned(lines: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """[epoch, accuracy, training loss] of the lines that have an accuracy; the last one always."""
    held = [[round(line[name], 5) for name in ("epoch", "accuracy", "train_loss")]
            for line in lines if line.get("accuracy") is not None and line.get("train_loss") is not None]  # fmt: skip
    every = -(-len(held) // POINTS) or 1
    return held[::-1][::every][::-1]


def roles(layers: Iterable[Mapping[str, Any]]) -> dict[str, Shares]:
    """Shares of events by role, over all layers."""
    sums: dict[str, dict[str, int]] = {}
    for layer in layers:
        own = sums.setdefault(layer["role"], dict.fromkeys(("numbers", *EVENTS), 0))
        for name in own:
            own[name] += layer[name]
    return {
        role: {
            "numbers": own["numbers"],
            "saturated": _share(own, "saturated"),
            "overflowed": _share(own, "overflowed"),
            "underflowed": _share(own, "underflowed"),
        }
        for role, own in sums.items()
    }


def _share(own: Mapping[str, int], event: str) -> float:
    return float(f"{own[event] / own['numbers']:.4g}") if own["numbers"] else 0.0


# ---- all trainings of a study ---------------------------------------------------------------------------------------


def cells(kinds: Sequence[Kind], quick: bool) -> list[StudyCell]:
    """One cell per kind and seed, seed 0 of everything first."""
    distinct = list(dict.fromkeys(kinds))
    return [kind.cell(seed, quick) for seed in range(1 if quick else SEEDS) for kind in distinct]


def measured(study: str, kinds: Sequence[Kind], quick: bool, advance: Advance, options: Options) -> Found:
    """Train every kind with every seed, as many at a time as there are CPUs."""
    done = Cells(study, quick, options, advance, folder=FOLDER)
    distinct = list(dict.fromkeys(kinds))
    results = done.run(cells(distinct, quick), work)
    rows: list[Row] = []
    for seed in range(1 if quick else SEEDS):
        for kind in distinct:
            if (result := results.get(kind.cell(seed, quick).name)) is not None:
                rows.append({**asdict(kind), "outcome": result})  # type: ignore[typeddict-item]
    return {"rows": rows, "failed": done.failed, "machines": done.machines(), "interrupted": done.interrupted}


class Trainings:
    """The outcomes of a study by kind and seed."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._held: dict[Kind, dict[int, Outcome]] = {}
        for row in rows:
            outcome = row["outcome"]
            kind = Kind(row["scheme"], row["loss_scale"], row["plan"])
            self._held.setdefault(kind, {})[outcome["seed"]] = outcome

    def of(self, kind: Kind) -> list[Outcome]:
        """By seed; none if it was not run."""
        held = self._held.get(kind, {})
        return [held[seed] for seed in sorted(held)]

    def accuracies(self, kind: Kind) -> list[float]:
        """By seed."""
        return [outcome["accuracy"] for outcome in self.of(kind)]

    def differences(self, kind: Kind, other: Kind) -> list[float]:
        """Accuracy of the first minus that of the second, for each seed that both have."""
        own, base = self._held.get(kind, {}), self._held.get(other, {})
        return [own[seed]["accuracy"] - base[seed]["accuracy"] for seed in sorted(own) if seed in base]


def share(outcomes: Sequence[Outcome], event: str, roles: Sequence[str]) -> float | None:
    """The share of an event among all numbers of these roles, mean over seeds; None where nothing was emulated."""
    shares = []
    for outcome in outcomes:
        own = [outcome["roles"][role] for role in roles if role in outcome["roles"]]
        if numbers := sum(one["numbers"] for one in own):
            events = sum(one["numbers"] * one[event] for one in own)  # type: ignore[literal-required]
            shares.append(events / numbers)
    return sum(shares) / len(shares) if shares else None
