"""MAC units compared by what a training through them reaches, with their cost beside it."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.classifiers.comparison import Comparison, compare, read_comparison
from shoal.classifiers.config import FLOAT32, ClassifierConfig
from shoal.classifiers.report import EVENTS, accuracies, counts
from shoal.classifiers.training import ClassifierResult
from shoal.errors import UserError, counted
from shoal.numerics.hardware.area import Area
from shoal.numerics.hardware.energy import Operation
from shoal.numerics.mac.unit import parse_mac
from shoal.numerics.sweep import COST_NOTE, LUTS, cost_json, cost_of, cost_table, numbered
from shoal.results import Column, Figure, Panel, Result, Series, Table
from shoal.runs.observer import Observer


@dataclass(frozen=True)
class TrainedUnit:
    """A training through one unit, and the unit's cost."""

    result: ClassifierResult
    system: Area | None
    """LUTs; None if the slides have no figures."""
    spent: Operation | None
    """Energy of a multiply-accumulate in pJ."""

    def json(self) -> dict[str, Any]:
        """Plain values, each cost with its kind."""
        return {
            "unit": self.result.scheme,
            "accuracy": self.result.accuracy,
            "diverged": self.result.diverged,
            "steps": self.result.steps,
            **{event: self.result.share(event) for event in EVENTS},
            **self.result.figures,
            "seconds": self.result.seconds,
            **cost_json(self.system, self.spent),
        }


def train_units(units: Sequence[str], config: ClassifierConfig, observer: Observer | None = None) -> list[TrainedUnit]:
    """Train the same model through each unit, and in float32; in the folder `config.out`, where finished ones are kept.

    A training that was stopped by a signal ends the list.
    """
    names = [str(parse_mac(unit)) for unit in units]
    if not names:
        raise UserError("A sweep needs at least one MAC unit, such as E5M2:5+Q8.13.")
    schemes = (*dict.fromkeys(names), FLOAT32)
    comparison = Comparison(dataclasses.replace(config, baseline=False).checked(), schemes)
    resume = config.out is not None and (Path(config.out) / "schemes.json").exists()
    if resume:
        before = read_comparison(Path(str(config.out)))
        if before.schemes != schemes or before.config.settings != comparison.config.settings:
            raise UserError(f"'{config.out}' holds another sweep: choose another `out`.")
    _, results = compare(comparison, observer, resume)
    costs = {name: cost_of(parse_mac(name)) for name in names}
    return [TrainedUnit(result, *costs.get(result.scheme, (None, None))) for result in results]


def training_result(trained: Sequence[TrainedUnit], config: ClassifierConfig) -> Result:
    """Accuracy, LUTs and energy as tables, and accuracy over LUTs."""
    title = f"{config.model} on {config.data} through MAC units, {counted(config.epochs, 'epoch')}, seed {config.seed}"
    baseline = next((unit.result for unit in trained if unit.result.scheme == FLOAT32), None)
    units = [unit for unit in trained if unit.result.scheme != FLOAT32]
    records = [
        {Column("unit"): unit.result.scheme, **accuracies(unit.result, baseline), **counts(unit.result)}
        for unit in trained
    ]
    table = Table.of(title, records)
    notes = [
        f"Loss scale: {config.loss_scale}. One seed: differences of a point or two may be chance.",
        COST_NOTE,
        *(f"{unit.result.scheme}: {unit.result.diverged}" for unit in units if unit.result.diverged),
    ]
    data = {"trainings": [unit.json() for unit in trained], "settings": config.settings}
    costs = cost_table({unit.result.scheme: (unit.system, unit.spent) for unit in units})
    figures = _figures(units, None if baseline is None else baseline.accuracy, title)
    return Result("mac sweep", title, [table, costs], notes, figures, data)


def _figures(units: Sequence[TrainedUnit], baseline: float | None, title: str) -> list[Figure]:
    """Accuracy over LUTs, the units numbered; nothing where no unit has both."""
    points = [
        (unit.system.luts, unit.result.accuracy, unit.result)
        for unit in units if unit.system is not None and unit.result.accuracy is not None
    ]  # fmt: skip
    if not points:
        return []
    points.sort(key=lambda point: point[0])
    hollow = [bool(result.diverged) for _, _, result in points]
    reached = Series(
        "MAC units", [accuracy for _, accuracy, _ in points], at=[luts for luts, _, _ in points], hollow=hollow
    )
    spans, key = numbered({result.scheme: (luts, [accuracy]) for luts, accuracy, result in points})
    panel = Panel(
        "", "accuracy on the test images", [reached, spans], LUTS, points=True, level=baseline, level_label="float32",
        rings="diverged" if any(hollow) else "",
    )  # fmt: skip
    return [Figure("accuracy", f"Accuracy over area: {title}", [panel], key=key)]
