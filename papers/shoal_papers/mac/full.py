"""Claims (f) and (g): whole MAC units on ResNet-20 and ResNet-8, and fixed accumulators on a wide model.

The slides' wide model is ResNet-50; here it is a ResNet with 64, 128 and 256 channels, whose sums have up to 2,304
terms. It is trained for two epochs, because only saturation is in question.
"""

from shoal.results import Column, Result, Table, Value
from shoal.waiting import Advance
from shoal_papers.cells import total_seconds
from shoal_papers.mac.claims import (
    Claim,
    accuracy_panel,
    baseline,
    claim_study,
    in_words,
    keeps,
    kind_table,
    loses,
    setting,
    with_interval,
)
from shoal_papers.mac.runs import EVENTS, PRODUCTS, Found, Kind, Trainings, cells, share
from shoal_papers.mac.runs import measured as train_all
from shoal_papers.study import Options

SMALL = ("resnet20", "resnet8")
WIDE = "wide-resnet"
UNITS = ("E4M2:5+E5M5", "E4M2:5+Q8.12", "E5M2:5+E6M5", "E5M2:5+Q8.12", "E5M2:5+Q8.13")
WIDE_UNITS = ("E5M2:5+E6M5", "E5M2:5+Q8.13", "E5M2:5+Q11.13")
PAPER = {
    "resnet20": {"float32": 91.85, "E5M2:5+E6M5": 91.04, "E5M2:5+Q8.13": 90.95},
    WIDE: {"float32": 57.57, "E5M2:5+E6M5": 59.79, "E5M2:5+Q8.13": 10.92, "E5M2:5+Q11.13": 59.38},
}
"""Accuracies in per cent: ResNet-20 on CIFAR-10, ResNet-50 on ImageWoof."""


def kind(unit: str, plan: str) -> Kind:
    """A unit on a model, with loss scaling."""
    return Kind(unit, plan=plan)


def kinds(quick: bool) -> list[Kind]:
    """Whole units on small models, and fixed accumulators on the wide one."""
    if quick:
        return [baseline(), *(kind(one, "resnet8") for one in UNITS)]
    small = [one for plan in SMALL for one in (baseline(plan), *(kind(unit, plan) for unit in UNITS))]
    return [*small, baseline(WIDE), *(kind(unit, WIDE) for unit in WIDE_UNITS), kind("E5M2:5+Q11.13", "resnet8")]


def length(quick: bool, options: Options) -> float:
    """Approximate seconds."""
    return total_seconds(cells(kinds(quick), quick))


def measured(quick: bool, advance: Advance, options: Options) -> Found:
    """Train through every unit."""
    return train_all("mac-full", kinds(quick), quick, advance, options)


def study(found: Found) -> Result:
    """Accuracy by unit and model, the slides' beside ours."""
    held = Trainings(found["rows"])
    tables = [paper_table(held)]
    tables += [kind_table("Whole units", held, kinds(quick=False), plan) for plan in (*SMALL, WIDE)]
    tables.append(product_table(held))
    panels = []
    for plan, units in (*((plan, UNITS) for plan in SMALL), (WIDE, WIDE_UNITS)):
        bars = {"dynamic loss scale": [kind(one, plan) for one in units]}
        panels.append(accuracy_panel(plan, held, units, bars, "unit", baseline(plan)))
    title = "Whole MAC units on small and wide models (claims f, g)"
    return claim_study("mac-full", title, found, tables, claims_of(held), panels)


def paper_table(held: Trainings) -> Table:
    """The slides' accuracies beside ours."""
    rows: list[dict[Column, Value]] = []
    for plan, accuracies in PAPER.items():
        for unit, accuracy in accuracies.items():
            own = baseline(plan) if unit == "float32" else kind(unit, plan)
            rows.append(
                {
                    Column("slides' model"): "ResNet-20, CIFAR-10" if plan == "resnet20" else "ResNet-50, ImageWoof",
                    Column("our model"): setting(plan),
                    Column("unit"): unit,
                    Column("slides", "%", ".2f"): accuracy,
                    Column("slides against float32", "points", "+.2f"): accuracy - accuracies["float32"],
                    Column("ours", "%"): with_interval(held.accuracies(own)),
                    Column("ours against float32", "points"): with_interval(
                        held.differences(own, baseline(plan)), sign=True
                    ),
                }
            )
    return Table.of("The slides' accuracies beside ours", rows)


def product_table(held: Trainings) -> Table:
    """Where fixed accumulators saturate and underflow."""
    rows = [
        {
            Column("model"): plan,
            Column("unit"): unit,
            Column("product"): role,
            **{Column(event): in_words(share(held.of(kind(unit, plan)), event, [role])) for event in EVENTS},
        }
        for plan in (WIDE, "resnet8")
        for unit in ("E5M2:5+Q8.13", "E5M2:5+Q11.13")
        for role in PRODUCTS
    ]
    return Table.of("Events per multiply-accumulate, by product", rows)


def claims_of(held: Trainings) -> list[Claim]:
    """(f) for each small model, and (g)."""
    found = []
    for plan in SMALL:
        base = baseline(plan)

        def against(unit: str, plan: str = plan, base: Kind = base) -> list[float]:
            return held.differences(kind(unit, plan), base)

        found += [
            Claim(
                "f", f"Slides (ResNet-20): E4M2 (CFG-5) with E5M5 or Q8.12 loses accuracy; here {plan}",
                tuple(loses(f"{unit} against float32", against(unit)) for unit in UNITS[:2]),
            ),
            Claim(
                "f", f"Slides: E5M2 (CFG-5) recovers the all-float unit (91.04 against 91.85 %), but not Q8.12; here "
                f"{plan}",
                (
                    keeps("E5M2:5+E6M5 against float32", against("E5M2:5+E6M5")),
                    loses("E5M2:5+Q8.12 against float32", against("E5M2:5+Q8.12")),
                ),
            ),
            Claim(
                "f", f"Slides: Q8.13 recovers the mixed unit (90.95 against 91.85 %); here {plan}",
                (keeps("E5M2:5+Q8.13 against float32", against("E5M2:5+Q8.13")),),
            ),
        ]  # fmt: skip
    narrow, wide = kind("E5M2:5+Q8.13", WIDE), kind("E5M2:5+Q11.13", WIDE)
    small = held.differences(kind("E5M2:5+Q8.13", "resnet8"), kind("E5M2:5+Q11.13", "resnet8"))
    found.append(
        Claim(
            "g", "Slides: fixed accumulators depend on the size of the model: on ResNet-50 Q8.13 falls to 10.92 % "
            f"(chance), Q11.13 reaches 59.38 % (float32 57.57 %); here {WIDE}",
            (
                loses(f"{WIDE}: Q8.13 against Q11.13", held.differences(narrow, wide)),
                keeps(f"{WIDE}: Q11.13 against float32", held.differences(wide, baseline(WIDE))),
                keeps("resnet8: Q8.13 against Q11.13", small),
            ),
        )
    )  # fmt: skip
    return found
