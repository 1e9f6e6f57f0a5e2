"""Formats guided by error analysis, which the slides leave open: an accumulator for each product of each layer.

A short float32 training gives, for each product Σ x·w of K terms, the range of its results, its condition
Σ|x||w| / |Σ x·w| and the size of a random walk of its terms, √(Σ (x·w)²). They predict

- exponent bits: the format covers the largest result, and is normal down to the smallest hundredth of them;
- mantissa bits: K roundings of partial sums, of relative size u each, leave an error of about
  u·√(K/6)·max(1, √(Σ (x·w)²) / |Σ x·w|), root mean square, relative to the results.

Bits are then given to the products so that all have about the same predicted error, at the same mean LUTs per MAC as
one unit for all: the same area does the same work.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from shoal.errors import UserError
from shoal.numerics.hardware.area import mac_cost
from shoal.results import Column, Result, Table, Value
from shoal.waiting import Advance
from shoal_papers.cells import Cells, StudyCell, total_seconds
from shoal_papers.mac import runs as mac_runs
from shoal_papers.mac.claims import (
    Claim,
    accuracy_panel,
    baseline,
    claim_study,
    kind_table,
    loses,
)
from shoal_papers.mac.runs import FOLDER, PLANS, Kind, Trainings
from shoal_papers.study import Options

MULTIPLIER = "E5M2:5"
BUDGETS = ("E6M2", "E6M3", "E5M3")
"""Accumulators for all layers, whose LUTs the units by layer may take."""
SCALE = 2.0**16
"""Loss scale under which gradients are looked at: the one that dynamic scaling starts with."""
EXPONENTS, MANTISSAS = range(4, 8), range(2, 10)
STEPS = 22
"""Steps of the float32 training before the ranges are taken."""
ANALYSIS_SECONDS = 3.0


class Range(TypedDict):
    """What a float32 training says of one product of one layer."""

    layer: str
    product: str
    terms: int
    """K."""
    macs: int
    largest: float
    """Of the results."""
    low: float
    """A hundredth of the results that are not zero are smaller."""
    condition: float
    """Σ|x||w| / |Σ x·w|, root mean squares over the results."""
    walk: float
    """√(Σ (x·w)²) / |Σ x·w|, root mean squares over the results."""


class Found(mac_runs.Found):
    """The data of the study."""

    ranges: list[Range]


# ---- the analysis ---------------------------------------------------------------------------------------------------


def ranges_cell(quick: bool) -> StudyCell:
    """A float32 training of a few steps."""
    train = PLANS["resnet8"].settings(quick) | {"scheme": "float32", "loss_scale": "none", "seed": 0}
    return StudyCell("ranges resnet8 float32", {"train": train, "steps": STEPS, "scale": SCALE}, ANALYSIS_SECONDS)


def ranges(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A cell: train in float32 for some steps, and look at all products of the next one."""
    from torch import nn

    from shoal.classifiers.config import ClassifierConfig
    from shoal.classifiers.training import ClassifierTraining

    training = ClassifierTraining(ClassifierConfig(**settings["train"], threads=1).checked())
    for _ in range(min(settings["steps"], training.steps - 1)):
        training.take_step()
    seen: dict[str, list[Any]] = {}
    layers = {name: one for name, one in training.model.named_modules() if isinstance(one, nn.Conv2d | nn.Linear)}

    def watch(name: str, layer: nn.Module) -> Any:
        """Take the layer's input, and later the gradient of its output."""

        def take(module: nn.Module, inputs: Any, output: Any) -> None:
            seen[name] = [layer, inputs[0].detach()]
            output.register_hook(seen[name].append)

        return layer.register_forward_hook(take)

    hooks = [watch(name, layer) for name, layer in layers.items()]
    training.take_step()
    for hook in hooks:
        hook.remove()
    found = [
        one
        for name, (layer, x, gradient) in seen.items()
        for one in layer_ranges(name, layer, x, settings["scale"] * gradient)
    ]
    return {"ranges": found}


def layer_ranges(name: str, layer: Any, x: Any, gradient: Any) -> list[Range]:
    """The three products of a layer, from its input and the scaled gradient of its output."""
    from torch import nn
    from torch.nn import grad
    from torch.nn.functional import conv2d

    weight = layer.weight.detach()
    if isinstance(layer, nn.Conv2d):
        how: dict[str, Any] = {"stride": layer.stride, "padding": layer.padding}
        window = weight[0, 0].numel() / (layer.stride[0] * layer.stride[1])
        products: dict[str, tuple[Callable[..., Any], Any, Any, int]] = {
            "forward": (lambda a, b: conv2d(a, b, **how), x, weight, weight[0].numel()),
            "grad_input": (
                lambda a, b: grad.conv2d_input(x.shape, b, a, **how), gradient, weight,
                round(len(weight) * window),
            ),
            "grad_weight": (
                lambda a, b: grad.conv2d_weight(a, weight.shape, b, **how), x, gradient,
                gradient[:, 0].numel(),
            ),
        }  # fmt: skip
    else:
        products = {
            "forward": (lambda a, b: a @ b.T, x, weight, weight.shape[1]),
            "grad_input": (lambda a, b: a @ b, gradient, weight, len(weight)),
            "grad_weight": (lambda a, b: b.T @ a, x, gradient, len(x)),
        }
    return [range_of(name, product, *parts) for product, parts in products.items()]


def range_of(layer: str, product: str, multiply: Callable[..., Any], a: Any, b: Any, terms: int) -> Range:
    """Magnitudes, condition and random walk of a product."""
    result = multiply(a, b)
    sizes = result.abs().flatten()
    own = sizes[sizes > 0]
    if not len(own):
        raise UserError(f"All results of the product {product} of {layer} are zero.")
    size = float(result.square().mean().sqrt())
    return {
        "layer": layer,
        "product": product,
        "terms": terms,
        "macs": result.numel() * terms,
        "largest": float(sizes.max()),
        "low": float(own.sort().values[len(own) // 100]),
        "condition": float(multiply(a.abs(), b.abs()).square().mean().sqrt()) / size,
        "walk": math.sqrt(float(multiply(a.square(), b.square()).mean())) / size,
    }


def predicted_error(one: Range, mantissa: int) -> float:
    """Relative error of the results with this many mantissa bits, root mean square."""
    return float(2.0 ** -(mantissa + 1)) * math.sqrt(one["terms"] / 6) * max(1.0, one["walk"])


def exponent_bits(one: Range) -> int:
    """The fewest that cover the range, with a factor of two above it."""
    for bits in EXPONENTS:
        top = 2 ** (bits - 1) - 1
        if 2 * one["largest"] < 2.0**top and one["low"] >= 2.0 ** (1 - top):
            return bits
    return EXPONENTS[-1]


@cache
def luts(accumulator: str) -> float:
    """Of a unit with this accumulator."""
    return mac_cost(f"{MULTIPLIER}+{accumulator}").unit.luts


def mean_luts(found: Sequence[Range], accumulators: Sequence[str]) -> float:
    """LUTs per MAC: what the units would take if each product had as many as it has work."""
    areas = {name: luts(name) for name in set(accumulators)}
    macs = [one["macs"] for one in found]
    return sum(areas[name] * n for name, n in zip(accumulators, macs, strict=True)) / sum(macs)


def by_layer(found: Sequence[Range], budget: str) -> list[str]:
    """An accumulator for each product: the same predicted error everywhere, as small as the budget's LUTs allow."""
    allowed, chosen = luts(budget), [f"E{exponent_bits(one)}M{MANTISSAS[0]}" for one in found]
    needs = [math.log2(predicted_error(one, 0)) for one in found]
    for offset in range(-4 * 16, 4 * 16):
        mantissas = [min(max(round(need + offset / 4), MANTISSAS[0]), MANTISSAS[-1]) for need in needs]
        named = [f"E{exponent_bits(one)}M{bits}" for one, bits in zip(found, mantissas, strict=True)]
        if mean_luts(found, named) > allowed:
            break
        chosen = named
    return chosen


# ---- the trainings --------------------------------------------------------------------------------------------------


def uniform(budget: str) -> Kind:
    """One unit for all."""
    return Kind(f"{MULTIPLIER}+{budget}")


def designed(found: Sequence[Range], budget: str) -> Kind:
    """A unit for each product of each layer."""
    names = by_layer(found, budget)
    texts = [f"{one['layer']}.{one['product']}={name}" for one, name in zip(found, names, strict=True)]
    return Kind(f"{MULTIPLIER}+{budget}; accumulators={', '.join(texts)}", label=f"{MULTIPLIER}+{budget} by layer")


def kinds(quick: bool, found: Sequence[Range]) -> list[Kind]:
    """Each budget, spent on one unit for all and by layer."""
    budgets = BUDGETS[:1] if quick else BUDGETS
    return [baseline(), *(kind for one in budgets for kind in (uniform(one), designed(found, one)))]


def length(quick: bool, options: Options) -> float:
    """Approximate seconds."""
    count = 1 if quick else len(BUDGETS)
    todo = [baseline(), *(Kind(f"{MULTIPLIER}+E6M{number}") for number in range(2 * count))]
    return ANALYSIS_SECONDS + total_seconds(mac_runs.cells(todo, quick))


def measured(quick: bool, advance: Advance, options: Options) -> Found:
    """The analysis, then the trainings that follow from it."""
    done = Cells("mac-error", quick, options, advance, folder=FOLDER)
    cell = ranges_cell(quick)
    results = done.run([cell], ranges, workers=1, short=bool(options.budget))
    found = results[cell.name]["ranges"] if cell.name in results else []
    trained = mac_runs.measured("mac-error", kinds(quick, found) if found else [baseline()], quick, advance, options)
    return {**trained, "ranges": found, "failed": [*done.failed, *trained["failed"]]}


def study(found: Found) -> Result:
    """The predictions, and what they are worth at equal LUTs."""
    held, own = Trainings(found["rows"]), found["ranges"]
    tables = [range_table(own)]
    claims, panels, designs = [], [], []
    if own:
        designs = [(budget, uniform(budget), designed(own, budget)) for budget in BUDGETS]
        tables += [budget_table(own), kind_table("At equal LUTs", held, kinds(quick=False, found=own))]
        panels.append(
            accuracy_panel(
                "The same LUTs per MAC", held, [f"{MULTIPLIER}+{budget}" for budget in BUDGETS],
                {"one unit for all": [one for _, one, _ in designs], "by layer": [two for _, _, two in designs]},
                "budget: the LUTs of this unit", baseline(),
            )
        )  # fmt: skip
    parts = [loses(f"one {one.scheme} for all against by layer", held.differences(one, two)) for _, one, two in designs]
    claims.append(Claim("", "Question: is an accumulator for each layer better at equal LUTs?", tuple(parts)))
    title = "Formats guided by error analysis (open in the slides)"
    return claim_study("mac-error", title, found, tables, claims, panels)


def range_table(found: Sequence[Range]) -> Table:
    """The analysis: one row per product."""
    designs: Mapping[str, list[str]] = {budget: by_layer(found, budget) for budget in BUDGETS} if found else {}
    rows: list[dict[Column, Value]] = []
    for number, one in enumerate(found):
        row: dict[Column, Value] = {
            Column("layer"): one["layer"],
            Column("product"): one["product"],
            Column("K", format=",d"): one["terms"],
            Column("largest result", format=".3g"): one["largest"],
            Column("1 % below", format=".2g"): one["low"],
            Column("condition", format=".3g"): one["condition"],
            Column("walk over result", format=".3g"): one["walk"],
            Column("predicted error, M3", "%", ".2g"): 100 * predicted_error(one, 3),
        }
        rows.append(row | {Column(f"as {MULTIPLIER}+{name}"): own[number] for name, own in designs.items()})
    return Table.of("Float32 ranges and conditions, and accumulators by layer (loss scale 2^16)", rows)


def budget_table(found: Sequence[Range]) -> Table:
    """LUTs and the largest predicted error, of one unit for all and by layer."""
    rows: list[dict[Column, Value]] = []
    for budget in BUDGETS:
        same = [budget] * len(found)
        for how, names in (("one unit for all", same), ("by layer", by_layer(found, budget))):
            bits = [int(name.partition("M")[2]) for name in names]
            rows.append(
                {
                    Column("budget"): f"{MULTIPLIER}+{budget}",
                    Column("how"): how,
                    Column("LUTs per unit, mean over MACs", format=".1f"): mean_luts(found, names),
                    Column("largest predicted error", "%", ".2g"): 100
                    * max(predicted_error(one, m) for one, m in zip(found, bits, strict=True)),
                    Column("products short of exponent bits"): sum(
                        int(name[1]) < exponent_bits(one) for one, name in zip(found, names, strict=True)
                    ),
                }
            )
    return Table.of("Predicted, at equal LUTs", rows)
