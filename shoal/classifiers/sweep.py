"""MAC units compared by what a training through them reaches, with their cost beside it."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.classifiers.comparison import SCHEMES, Comparison, compare, read_comparison
from shoal.classifiers.config import FLOAT32, ClassifierConfig
from shoal.classifiers.report import EVENTS, accuracies, counts
from shoal.classifiers.training import ClassifierResult
from shoal.errors import UserError, counted
from shoal.numerics.mac.unit import parse_mac
from shoal.numerics.sweep import COST_NOTE, LUTS, cost_json, cost_of, cost_table, numbered
from shoal.results import Column, Figure, Panel, Result, Series, Table
from shoal.runs.observer import Observer


def train_units(
    units: Sequence[str], config: ClassifierConfig, observer: Observer | None = None
) -> list[ClassifierResult]:
    """Train the same model through each unit, and in float32; in the folder `config.out`, where finished ones are kept.

    A training that was stopped by a signal ends the list.
    """
    names = [str(parse_mac(unit)) for unit in units]
    if not names:
        raise UserError("A sweep needs at least one MAC unit, such as E5M2:5+Q8.13.")
    schemes = (*dict.fromkeys(names), FLOAT32)
    comparison = Comparison(dataclasses.replace(config, baseline=False).checked(), schemes)
    resume = config.out is not None and (Path(config.out) / SCHEMES).exists()
    if resume:
        before = read_comparison(Path(str(config.out)))
        if before.schemes != schemes or before.config.settings != comparison.config.settings:
            raise UserError(f"'{config.out}' holds another sweep: choose another `out`.")
    return compare(comparison, observer, resume)[1]


def training_result(results: Sequence[ClassifierResult], config: ClassifierConfig) -> Result:
    """Accuracy, LUTs and energy as tables, and accuracy over LUTs."""
    title = f"{config.model} on {config.data} through MAC units, {counted(config.epochs, 'epoch')}, seed {config.seed}"
    baseline = next((result for result in results if result.scheme == FLOAT32), None)
    units = [result for result in results if result.scheme != FLOAT32]
    records = [{Column("unit"): one.scheme, **accuracies(one, baseline), **counts(one)} for one in results]
    notes = [
        f"Loss scale: {config.loss_scale}. One seed: differences of a point or two may be chance.",
        COST_NOTE,
        *(f"{unit.scheme}: {unit.diverged}" for unit in units if unit.diverged),
    ]
    costs = {unit.scheme: cost_of(parse_mac(unit.scheme)) for unit in units}
    trainings = [
        {
            "unit": result.scheme,
            "accuracy": result.accuracy,
            "diverged": result.diverged,
            "steps": result.steps,
            **{event: result.share(event) for event in EVENTS},
            **result.figures,
            "seconds": result.seconds,
            **cost_json(*costs.get(result.scheme, (None, None))),
        }
        for result in results
    ]
    tables, data = [Table.of(title, records), cost_table(costs)], {"trainings": trainings, "settings": config.settings}
    luts = {unit: system.luts for unit, (system, _) in costs.items() if system is not None}
    return Result("mac sweep", title, tables, notes, _figures(units, luts, baseline, title), data)


def _figures(
    units: Sequence[ClassifierResult], luts: Mapping[str, float], baseline: ClassifierResult | None, title: str
) -> list[Figure]:
    """Accuracy over LUTs, the units numbered; nothing where no unit has both."""
    points = [
        (luts[unit.scheme], unit.accuracy, unit) for unit in units if unit.scheme in luts and unit.accuracy is not None
    ]
    if not points:
        return []
    points.sort(key=lambda point: point[0])
    places, reached = [place for place, _, _ in points], [accuracy for _, accuracy, _ in points]
    hollow = [bool(unit.diverged) for _, _, unit in points]
    spans, key = numbered({unit.scheme: (place, [accuracy]) for place, accuracy, unit in points})
    panel = Panel(
        "", "accuracy on the test images", [Series("MAC units", [*reached], at=places, hollow=hollow), spans], LUTS,
        points=True, level=None if baseline is None else baseline.accuracy, level_label="float32",
        rings="diverged" if any(hollow) else "",
    )  # fmt: skip
    return [Figure("accuracy", f"Accuracy over area: {title}", [panel], key=key)]
