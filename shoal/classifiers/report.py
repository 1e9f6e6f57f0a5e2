"""Tables, findings and figures of classifiers' trainings."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.classifiers.comparison import Comparison
from shoal.classifiers.config import FLOAT32, ClassifierConfig, is_float32
from shoal.classifiers.training import ClassifierResult
from shoal.errors import counted
from shoal.numerics.mac.unit import parse_mac
from shoal.numerics.sweep import COST_NOTE, LUTS, cost_json, cost_of, cost_table, numbered
from shoal.results import Column, Figure, Panel, Result, Series, Table, Value, share_text
from shoal.results.figure import FAINT_INK, Numbers
from shoal.runs.folder import METRICS
from shoal.runs.metrics import read_metrics

EVENTS = ("saturated", "overflowed", "underflowed")
ROLES = {
    "weights": "weights", "inputs": "inputs", "normalisation": "norm inputs", "activations": "activations",
    "activation_gradients": "act. grads", "weight_gradients": "weight grads", "forward": "forward",
    "grad_input": "grad input", "grad_weight": "grad weight", "master": "master", "state": "state",
}  # fmt: skip
"""Roles in the order of the picture, with their headings."""
PRODUCTS = {"forward", "grad_input", "grad_weight"}
"""Roles whose numbers are multiply-accumulates; those of the others are rounded numbers."""
PICTURE = "training"  # name of the picture of a run, without its suffix
WIDE = 20  # ratio of values from which a curve has a logarithmic scale
NOTICED = 0.01  # share of saturated or overflowed numbers that a finding names its layer for


def comparison_result(comparison: Comparison, folder: Path, results: Sequence[ClassifierResult]) -> Result:
    """All schemes in one table and one figure; a single one with its layers."""
    config = comparison.config
    title = f"{config.model} on {config.data}, {counted(config.epochs, 'epoch')}, seed {config.seed}"
    baseline = next((result for result in results if is_float32(result.scheme)), None)
    rows: list[dict[Column, Value]] = [
        {
            Column("scheme"): result.scheme,
            **_accuracies(result, baseline),
            Column("best", format=".2%"): result.best_accuracy,
            Column("test loss", format=".4f"): result.test_loss,
            Column("loss scale", format=",g"): result.figures.get("scale"),
            **_counts(result),
        }
        for result in results
    ]
    data = {
        "run": str(folder),
        "settings": {name: value for name, value in config.settings.items() if name != "scheme"},
        "schemes": list(comparison.schemes),
        "runs": [dataclasses.asdict(result) for result in results],
    }
    figure = run_figure(results[0], baseline, title) if len(comparison.schemes) == 1 else _figure(results, title)
    return Result("mac train", title, [Table.of(title, rows)], _findings(results, baseline), [figure], data)


def _accuracies(result: ClassifierResult, baseline: ClassifierResult | None) -> dict[Column, Value]:
    """The accuracy, and its difference from the baseline's."""
    behind = None if result is baseline else _points(result, baseline)
    return {Column("accuracy", format=".2%"): result.accuracy, Column("against float32", "points", "+.2f"): behind}


def _counts(result: ClassifierResult) -> dict[Column, Value]:
    """Skipped steps, events per multiply-accumulate, and time."""
    shares = {event: result.share(event) for event in EVENTS}
    return {
        Column("skipped", "steps"): int(result.figures.get("skipped", 0)),
        **{Column(event): None if share is None else share_text(share) for event, share in shares.items()},
        Column("time", "s", ",.1f"): result.seconds,
    }


def _points(result: ClassifierResult, baseline: ClassifierResult | None) -> float | None:
    """Percentage points of accuracy more than the baseline."""
    if baseline is None or result.accuracy is None or baseline.accuracy is None:
        return None
    return 100 * (result.accuracy - baseline.accuracy)


def training_result(results: Sequence[ClassifierResult], config: ClassifierConfig) -> Result:
    """A sweep over units: accuracy, LUTs and energy as tables, and accuracy over LUTs."""
    title = f"{config.model} on {config.data} through MAC units, {counted(config.epochs, 'epoch')}, seed {config.seed}"
    baseline = next((result for result in results if result.scheme == FLOAT32), None)
    units = [result for result in results if result.scheme != FLOAT32]
    records = [{Column("unit"): one.scheme, **_accuracies(one, baseline), **_counts(one)} for one in results]
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
    return Result("mac sweep", title, tables, notes, _over_luts(units, luts, baseline, title), data)


def _over_luts(
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


def _findings(results: Sequence[ClassifierResult], baseline: ClassifierResult | None) -> list[str]:
    findings = []
    for result in results:
        if result.diverged:
            findings.append(f"{result.scheme} diverged: {result.diverged}")
        elif baseline is not result and (points := _points(result, baseline)) is not None:
            findings.append(
                f"{result.scheme}: {result.accuracy:.1%} of the test images are right, {abs(points):.1f} points "
                f"{'fewer' if points < 0 else 'more'} than in float32 (one seed)."
            )
        shares = [
            (layer[event] / layer["numbers"], layer, event)
            for layer in result.layers for event in ("saturated", "overflowed") if layer["numbers"]
        ]  # fmt: skip
        share, layer, event = max(shares, key=lambda entry: entry[0], default=(0.0, {}, ""))
        if share >= NOTICED:
            role = ROLES.get(layer["role"], layer["role"])
            findings.append(f"{result.scheme}: most {event} in {_short(layer['layer'])}, {role}: {share:.1%}.")
    if any(result.figures.get("mac/macs") for result in results):
        findings.append("Saturated, overflowed, underflowed: fraction of the multiply-accumulates.")
    return findings


def run_figure(result: ClassifierResult, baseline: ClassifierResult | None, title: str) -> Figure:
    """Accuracy, loss and loss scale over steps, then what saturates, overflows and underflows by layer and role."""
    others = [] if baseline is None or baseline is result else [baseline]
    return Figure(PICTURE, f"{result.scheme}: {title}", _curves([result, *others]) + _layers(result))


def _figure(results: Sequence[ClassifierResult], title: str) -> Figure:
    """The curves of several schemes, and what happened in the products and casts of each."""
    panels = _curves(results)
    rows: dict[str, Numbers] = {}
    for result in results:
        products, casts = (
            [layer for layer in result.layers if (layer["role"] in PRODUCTS) == products] for products in (True, False)
        )
        rows[result.scheme] = [*_shares(products), *_shares(casts)]
    rows = {scheme: shares for scheme, shares in rows.items() if any(share is not None for share in shares)}
    if rows:
        ticks = [f"{what} {event}" for what in ("MACs", "casts") for event in EVENTS]
        heading = "share of the MACs and of the rounded numbers"
        panels.append(Panel(heading, "", [], "", ticks, rows=list(rows), cells=[*rows.values()]))
    return Figure(PICTURE, title, panels)


def _shares(layers: Sequence[dict[str, Any]]) -> Numbers:
    """Each event as a share of all numbers of these layers."""
    numbers = sum(layer["numbers"] for layer in layers)
    return [sum(layer[event] for layer in layers) / numbers if numbers else None for event in EVENTS]


def _curves(results: Sequence[ClassifierResult]) -> list[Panel]:
    """Accuracy and loss over steps, and the loss scale where it is ever used."""
    every = [(result, read_metrics(Path(result.run) / METRICS)) for result in results]
    panels = []
    for key, title, y in (
        ("accuracy", "accuracy on the test images", "share of images"),
        ("loss", "training loss", "cross-entropy"),
        ("scale", "loss scale", "factor"),
    ):
        series, every_value = [], list[float]()
        for result, lines in every:
            measured = [line for line in lines if _is_number(line.get(key)) and _is_number(line.get("step"))]
            steps, values = [line["step"] for line in measured], [line[key] for line in measured]
            if measured and (key != "scale" or any(value != 1 for value in values)):
                colour = FAINT_INK if is_float32(result.scheme) else ""
                series.append(Series(result.scheme, values, at=steps, colour=colour))
                every_value += values
        if series:
            low, high = min(every_value), max(every_value)
            wide = key != "accuracy" and low > 0 and high > WIDE * low
            panels.append(Panel(title, y, series, "step", log=wide))
    return panels


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _layers(result: ClassifierResult) -> list[Panel]:
    """Maps of the events by layer and role; layers without products are left out where nothing happened in them."""
    by_role: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for layer in result.layers:
        if layer["numbers"]:
            by_role.setdefault(_short(layer["layer"]), {}).setdefault(layer["role"], []).append(layer)
    shares = {name: {role: _shares(layers) for role, layers in roles.items()} for name, roles in by_role.items()}
    shares = {
        layer: roles for layer, roles in shares.items() if roles.keys() & PRODUCTS or any(map(any, roles.values()))
    }
    present = {role for roles in shares.values() for role in roles}
    roles = [*(role for role in ROLES if role in present), *sorted(present - ROLES.keys())]
    ticks, nothing = [ROLES.get(role, role) for role in roles], [None] * len(EVENTS)
    return [
        Panel(
            f"{event}, by layer and role", "", [], "", ticks, rows=list(shares),
            cells=[[by_role.get(role, nothing)[number] for role in roles] for by_role in shares.values()],
        )
        for number, event in enumerate(EVENTS) if shares
    ]  # fmt: skip


def _short(layer: str) -> str:
    """The layer of a parameter."""
    return layer.removesuffix(".weight").removesuffix(".bias")
