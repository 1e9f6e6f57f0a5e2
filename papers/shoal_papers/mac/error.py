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
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import UserError
from shoal.numerics.hardware.area import mac_cost
from shoal.results import Column, Panel, Table, Value
from shoal_papers.cells import Cells, Options, StudyCell
from shoal_papers.mac import runs
from shoal_papers.mac.claims import Claim, MacStudy, Trainings, accuracy_panel, kind_table
from shoal_papers.mac.runs import TASKS, Kind, baseline, behind
from shoal_papers.study import Data

MULTIPLIER = "E5M2:5"
BUDGETS = ("E6M2", "E6M3", "E5M3")  # accumulators for all layers, whose LUTs the units by layer may take
SCALE = 2.0**16  # loss scale under which gradients are looked at: the one that dynamic scaling starts with
EXPONENTS, MANTISSAS = range(4, 8), range(2, 10)
STEPS = 22  # steps of the float32 training before the ranges are taken
ANALYSIS_SECONDS = 3.0

Range = dict[str, Any]  # what a float32 training says of one product of one layer: see `range_of`

# ---- the analysis ---------------------------------------------------------------------------------------------------


def ranges(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A cell: train in float32 for some steps, and look at all products of the next one."""
    from torch import nn

    from shoal.classifiers.config import ClassifierConfig
    from shoal.classifiers.training import ClassifierTraining

    training = ClassifierTraining(ClassifierConfig(**settings["train"], threads=1).checked())
    for _ in range(min(settings["steps"], training.total - 1)):
        training.take_step()
    seen: dict[str, list[Any]] = {}
    modules = training.model.named_modules()
    layers = {name: module for name, module in modules if isinstance(module, nn.Conv2d | nn.Linear)}

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
    scale = settings["scale"]
    return {"ranges": [r for name, (layer, x, g) in seen.items() for r in layer_ranges(name, layer, x, scale * g)]}


def layer_ranges(name: str, layer: Any, x: Any, gradient: Any) -> list[Range]:
    """The three products of a layer, from its input and the scaled gradient of its output."""
    from torch import nn
    from torch.nn import grad
    from torch.nn.functional import conv2d

    weight = layer.weight.detach()
    if isinstance(layer, nn.Conv2d):
        options: dict[str, Any] = {"stride": layer.stride, "padding": layer.padding}
        window = weight[0, 0].numel() / (layer.stride[0] * layer.stride[1])
        products: dict[str, tuple[Callable[..., Any], Any, Any, int]] = {
            "forward": (lambda a, b: conv2d(a, b, **options), x, weight, weight[0].numel()),
            "grad_input": (
                lambda a, b: grad.conv2d_input(x.shape, b, a, **options), gradient, weight,
                round(len(weight) * window),
            ),
            "grad_weight": (
                lambda a, b: grad.conv2d_weight(a, weight.shape, b, **options), x, gradient,
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
    nonzero = sizes[sizes > 0]
    if not len(nonzero):
        raise UserError(f"All results of the product {product} of {layer} are zero.")
    size = float(result.square().mean().sqrt())
    return {
        "layer": layer,
        "product": product,
        "terms": terms,  # K
        "macs": result.numel() * terms,
        "largest": float(sizes.max()),
        "low": float(nonzero.sort().values[len(nonzero) // 100]),
        "condition": float(multiply(a.abs(), b.abs()).square().mean().sqrt()) / size,  # root mean squares
        "walk": math.sqrt(float(multiply(a.square(), b.square()).mean())) / size,
    }


def predicted_error(product: Range, mantissa: int) -> float:
    """Relative error of the results with this many mantissa bits, root mean square."""
    return float(2.0 ** -(mantissa + 1)) * math.sqrt(product["terms"] / 6) * max(1.0, product["walk"])


def exponent_bits(product: Range) -> int:
    """The fewest that cover the range, with a factor of two above it."""
    for bits in EXPONENTS:
        top = 2 ** (bits - 1) - 1
        if 2 * product["largest"] < 2.0**top and product["low"] >= 2.0 ** (1 - top):
            return bits
    return EXPONENTS[-1]


@cache
def luts(accumulator: str) -> float:
    """Of a unit with this accumulator."""
    return mac_cost(f"{MULTIPLIER}+{accumulator}").unit.luts


def mean_luts(products: Sequence[Range], accumulators: Sequence[str]) -> float:
    """LUTs per MAC: what the units would take if each product had as many as it has work."""
    macs = [product["macs"] for product in products]
    return sum(luts(name) * n for name, n in zip(accumulators, macs, strict=True)) / sum(macs)


def by_layer(products: Sequence[Range], budget: str) -> list[str]:
    """An accumulator for each product: the same predicted error everywhere, as small as the budget's LUTs allow."""
    allowed, chosen = luts(budget), [f"E{exponent_bits(product)}M{MANTISSAS[0]}" for product in products]
    needs = [math.log2(predicted_error(product, 0)) for product in products]
    for offset in range(-4 * 16, 4 * 16):
        mantissas = [min(max(round(need + offset / 4), MANTISSAS[0]), MANTISSAS[-1]) for need in needs]
        names = [f"E{exponent_bits(product)}M{bits}" for product, bits in zip(products, mantissas, strict=True)]
        if mean_luts(products, names) > allowed:
            break
        chosen = names
    return chosen


# ---- the trainings --------------------------------------------------------------------------------------------------


def designed(products: Sequence[Range], budget: str) -> Kind:
    """A unit for each product of each layer."""
    names = by_layer(products, budget)
    texts = [f"{one['layer']}.{one['product']}={name}" for one, name in zip(products, names, strict=True)]
    return Kind(f"{MULTIPLIER}+{budget}; accumulators={', '.join(texts)}", label=f"{MULTIPLIER}+{budget} by layer")


def kinds(quick: bool, products: Sequence[Range]) -> list[Kind]:
    """Each budget, spent on one unit for all and by layer; without an analysis float32 alone."""
    budgets = (BUDGETS[:1] if quick else BUDGETS) if products else ()
    return [baseline(), *(kind for budget in budgets for kind in (behind(budget), designed(products, budget)))]


class Analysed(NamedTuple):
    """The trainings, and the analysis that they follow from."""

    trainings: Trainings
    ranges: list[Range]


class MacError(MacStudy, name="mac-error"):
    """The predictions, and what they are worth at equal LUTs."""

    title = "Formats guided by error analysis (open in the slides)"

    def length(self, quick: bool, options: Options) -> float:
        """Designed units take as long as others."""
        count = 1 if quick else len(BUDGETS)
        cells = runs.cells([baseline(), *(behind(f"E6M{number}") for number in range(2 * count))], quick)
        return ANALYSIS_SECONDS + sum(cell.seconds for cell in cells)

    def computed(self, done: Cells, quick: bool, options: Options) -> dict[str, Any]:
        """The analysis, then the trainings that follow from it."""
        train = TASKS["resnet8"].settings(quick) | {"scheme": "float32", "loss_scale": "none", "seed": 0}
        settings = {"train": train, "steps": STEPS, "scale": SCALE}
        cell = StudyCell("ranges resnet8 float32", settings, ANALYSIS_SECONDS)
        analysed = done.run([cell], ranges, workers=1, short=bool(options.budget), optional=True)
        products = analysed[cell.name]["ranges"] if analysed else []
        return {"rows": runs.trained(done, kinds(quick, products), quick), "ranges": products}

    def view(self, data: Data) -> Analysed:
        return Analysed(Trainings(data["rows"]), data["ranges"])

    def kind_tables(self, view: Analysed) -> list[Table]:
        if not view.ranges:
            return [range_table([])]
        trained = kind_table("At equal LUTs", view.trainings, kinds(quick=False, products=view.ranges))
        return [range_table(view.ranges), budget_table(view.ranges), trained]

    def panels(self, view: Analysed) -> list[Panel]:
        if not view.ranges:
            return []
        layered = [designed(view.ranges, budget) for budget in BUDGETS]
        bars = {"one unit for all": map(behind, BUDGETS), "by layer": layered}
        ticks, x = [f"{MULTIPLIER}+{budget}" for budget in BUDGETS], "budget: the LUTs of this unit"
        return [accuracy_panel("The same LUTs per MAC", view.trainings, ticks, bars, x, baseline())]

    def claims(self, view: Analysed) -> list[Claim]:
        parts = [
            view.trainings.loses(
                f"one {MULTIPLIER}+{budget} for all against by layer", behind(budget), designed(view.ranges, budget)
            )
            for budget in BUDGETS
            if view.ranges
        ]
        return [Claim("", "Question: is an accumulator for each layer better at equal LUTs?", parts)]


def range_table(products: Sequence[Range]) -> Table:
    """The analysis: one row per product."""
    designs = {budget: by_layer(products, budget) for budget in BUDGETS} if products else {}
    rows: list[dict[Column, Value]] = [
        {
            Column("layer"): product["layer"],
            Column("product"): product["product"],
            Column("K", format=",d"): product["terms"],
            Column("largest result", format=".3g"): product["largest"],
            Column("1 % below", format=".2g"): product["low"],
            Column("condition", format=".3g"): product["condition"],
            Column("walk over result", format=".3g"): product["walk"],
            Column("predicted error, M3", "%", ".2g"): 100 * predicted_error(product, 3),
            **{Column(f"as {MULTIPLIER}+{budget}"): names[number] for budget, names in designs.items()},
        }
        for number, product in enumerate(products)
    ]
    return Table.of("Float32 ranges and conditions, and accumulators by layer (loss scale 2^16)", rows)


def budget_table(products: Sequence[Range]) -> Table:
    """LUTs and the largest predicted error, of one unit for all and by layer."""
    rows: list[dict[Column, Value]] = []
    for budget in BUDGETS:
        for label, names in (("one unit for all", [budget] * len(products)), ("by layer", by_layer(products, budget))):
            bits = [int(name.partition("M")[2]) for name in names]
            worst = max(predicted_error(product, m) for product, m in zip(products, bits, strict=True))
            short = sum(int(name[1]) < exponent_bits(product) for product, name in zip(products, names, strict=True))
            rows.append(
                {
                    Column("budget"): f"{MULTIPLIER}+{budget}",
                    Column("how"): label,
                    Column("LUTs per unit, mean over MACs", format=".1f"): mean_luts(products, names),
                    Column("largest predicted error", "%", ".2g"): 100 * worst,
                    Column("products short of exponent bits"): short,
                }
            )
    return Table.of("Predicted, at equal LUTs", rows)
