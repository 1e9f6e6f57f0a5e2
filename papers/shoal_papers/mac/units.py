"""Claims (a) to (g): multipliers, accumulators and whole units.

The slides' text does not name every part of the units in its figures; each study says what is used here. Products of
E5M2 in CFG-5 are exact in E6M5.
"""

from itertools import product

from shoal.results import Column, Panel, Table, Value
from shoal_papers.mac.claims import (
    Claim,
    MacStudy,
    Part,
    Trainings,
    accuracy_panel,
    in_points,
    in_words,
    kind_table,
    loses,
    setting,
)
from shoal_papers.mac.runs import DYNAMIC, EVENTS, NONE, PRODUCTS, Kind, baseline, behind, share

# ---- (a), (b): multiplier formats -----------------------------------------------------------------------------------

FORMATS = ("E4M2", "E4M3", "E5M1", "E5M2", "E5M3", "E6M1", "E6M2", "E6M3")
QUICK_FORMATS = ("E4M2", "E5M2", "E6M3")
SHRINKING = {"E5M2:5": ("fp32", "E6M5", "E5M5"), "E4M2:5": ("fp32", "E5M5")}
"""Accumulators from wide to narrow, by multiplier."""
SCALES = (DYNAMIC, NONE)


def multiplier(format: str, cfg: int, loss_scale: str = DYNAMIC) -> Kind:
    """A narrow multiplier before a float32 accumulator."""
    return Kind(f"{format}:{cfg}+fp32", loss_scale)


class MacFormats(MacStudy, name="mac-formats"):
    """Which multiplier formats train, and which of them need loss scaling.

    The multiplier is in CFG-1 and the accumulator float32, so that the multiplier alone is narrow; CFG-5 beside it.
    """

    title = "Multiplier formats and loss scaling (claims a, b)"
    table_title = "Narrow multipliers"

    def kinds(self, quick: bool) -> list[Kind]:
        """Multipliers with and without loss scaling; accumulators that shrink."""
        formats = QUICK_FORMATS if quick else FORMATS
        kinds = [baseline(), *(multiplier(format, 1, scale) for format in formats for scale in SCALES)]
        if not quick:
            kinds += [multiplier(format, 5) for format in formats]
        for format, sums in SHRINKING.items():
            kinds += [Kind(f"{format}+{sum}", scale) for sum in (sums[1:2] if quick else sums) for scale in SCALES]
        return kinds

    def panels(self, view: Trainings) -> list[Panel]:
        shrunk = [f"{format}+{sum}" for format, sums in SHRINKING.items() for sum in sums]
        multipliers = {
            "CFG-1, no loss scale": [multiplier(format, 1, NONE) for format in FORMATS],
            "CFG-1, dynamic loss scale": [multiplier(format, 1) for format in FORMATS],
            "CFG-5, dynamic loss scale": [multiplier(format, 5) for format in FORMATS],
        }
        units = {
            "CFG-5, no loss scale": [Kind(unit, NONE) for unit in shrunk],
            "CFG-5, dynamic loss scale": [Kind(unit) for unit in shrunk],
        }
        title, base = "Multiplier formats, float32 accumulator", baseline()
        return [
            accuracy_panel(title, view, FORMATS, multipliers, "multiplier", base),
            accuracy_panel("Accumulators that shrink", view, shrunk, units, "multiplier + accumulator", base),
        ]

    def claims(self, view: Trainings) -> list[Claim]:

        def without_scaling(format: str) -> tuple[str, Kind, Kind]:
            return f"{format} without against with it", multiplier(format, 1, NONE), multiplier(format, 1)

        needed = [view.loses(*without_scaling(format)) for format in FORMATS if format[:2] in ("E4", "E5")]
        free = [view.keeps(*without_scaling(format)) for format in FORMATS if format[:2] == "E6"]
        shrinking: list[Part] = []
        for format, (wide, *narrow) in SHRINKING.items():
            before = view.differences(Kind(f"{format}+{wide}", NONE), Kind(f"{format}+{wide}"))
            for sums in narrow:
                after = view.differences(Kind(f"{format}+{sums}", NONE), Kind(f"{format}+{sums}"))
                more = [two - one for one, two in zip(before, after, strict=False)]
                shrinking.append(loses(f"{format}+{sums}: loss without loss scaling, beyond that of +{wide}", more))
        workable = [
            view.keeps(f"E4M2 (CFG-{cfg}) against float32", multiplier("E4M2", cfg), baseline()) for cfg in (1, 5)
        ]
        return [
            Claim("a", "Slides: with E4 and E5 multipliers loss scaling is needed", needed),
            Claim("a", "Implied: E6 multipliers do without loss scaling", free),
            Claim("a", "Slides: the same trend shows when accumulators shrink", shrinking),
            Claim("b", "Slides: E4M2 is a workable first choice of multiplier input, with loss scaling", workable),
        ]


# ---- (c): configurations --------------------------------------------------------------------------------------------

MULTIPLIERS = ("E4M2", "E5M2")
CFGS = (1, 2, 3, 4, 5, 6)
QUICK_CFGS = (1, 2, 5)


class MacConfigs(MacStudy, name="mac-configs"):
    """What the steps from CFG-1 to CFG-6 of the multiplier cost.

    CFG-2 drops subnormal outputs, CFG-3 the rounding of the output, CFG-4 NaN; CFG-5 reads subnormal inputs as normal
    ones, CFG-6 as zero. The accumulator is float32, so that the multiplier alone is narrow.
    """

    title = "Multiplier configurations (claim c)"
    table_title = "Configurations of the multiplier"

    def kinds(self, quick: bool) -> list[Kind]:
        """Every configuration of both multipliers."""
        cfgs = QUICK_CFGS if quick else CFGS
        return [baseline(), *(multiplier(format, cfg) for format in MULTIPLIERS for cfg in cfgs)]

    def panels(self, view: Trainings) -> list[Panel]:
        bars = {format: [multiplier(format, cfg) for cfg in CFGS] for format in MULTIPLIERS}
        ticks, title = [f"CFG-{cfg}" for cfg in CFGS], "Dynamic loss scale, float32 accumulator"
        return [accuracy_panel(title, view, ticks, bars, "configuration", baseline())]

    def claims(self, view: Trainings) -> list[Claim]:

        def against(format: str, cfg: int, other: int) -> tuple[str, Kind, Kind]:
            return f"{format}, CFG-{cfg} against CFG-{other}", multiplier(format, cfg), multiplier(format, other)

        costs = [view.loses(*against(format, 2, 1)) for format in MULTIPLIERS]
        won = [view.keeps(*against(format, cfg, 1)) for format in MULTIPLIERS for cfg in (3, 4, 5)]
        zero = [view.keeps(*against(format, 6, 5)) for format in MULTIPLIERS]
        return [
            Claim("c", "Slides: CFG-2 costs much accuracy", costs),
            Claim("c", "Slides: CFG-3, CFG-4 and CFG-5 win it back", won),
            Claim("c", "Not in the slides' text: CFG-6 is as good as CFG-5, which they prefer", zero),
        ]


# ---- (d), (e): accumulators -----------------------------------------------------------------------------------------

EXPONENTS, MANTISSAS = (4, 5, 6, 7), (2, 3, 5, 7)
FRACTIONS = (6, 8, 10, 12, 13, 16)
FLOATS = tuple(f"E{e}M{m}" for e in EXPONENTS for m in MANTISSAS)
FIXED = tuple(f"Q8.{f}" for f in FRACTIONS)
QUICK_ACCUMULATORS = ("E4M5", "E5M5", "E6M3", "E6M5", "Q8.8", "Q8.12")
SAME_BITS = (("E4M5", "E6M3"), ("E4M7", "E6M5"), ("E5M3", "E6M2"), ("E4M3", "E5M2"))
"""Accumulators of the same width: fewer exponent bits, fewer mantissa bits."""


class MacAccumulators(MacStudy, name="mac-accumulators"):
    """How narrow an accumulator behind E5M2 in CFG-5 may be, by exponent and mantissa, and by fraction bits."""

    title = "Accumulator formats (claims d, e)"
    table_title = "Accumulators behind E5M2:5"

    def kinds(self, quick: bool) -> list[Kind]:
        """All accumulators with loss scaling; those that the claims name without it, too."""
        if quick:
            return [baseline(), *map(behind, QUICK_ACCUMULATORS)]
        unscaled = [behind(format, NONE) for format in ("E5M5", "E6M5")]
        return [baseline(), behind("fp32"), *map(behind, FLOATS + FIXED), *unscaled]

    def panels(self, view: Trainings) -> list[Panel]:
        floats = {f"{e} exponent bits": [behind(f"E{e}M{m}") for m in MANTISSAS] for e in EXPONENTS}
        fixed, base = {"Q8.f": list(map(behind, FIXED))}, baseline()
        ticks = [f"M{m}" for m in MANTISSAS]
        return [
            accuracy_panel("Float accumulators", view, ticks, floats, "mantissa bits", base),
            accuracy_panel("Fixed accumulators", view, FIXED, fixed, "format", base),
        ]

    def claims(self, view: Trainings) -> list[Claim]:
        exponent = [
            view.loses(f"{few_exponent} against {few_mantissa}", behind(few_exponent), behind(few_mantissa))
            for few_exponent, few_mantissa in SAME_BITS
        ]
        good = [
            view.keeps(f"E5M5 against {name}", behind("E5M5"), other)
            for name, other in (("float32", baseline()), ("a float32 accumulator", behind("fp32")))
        ]
        fewer = [view.loses(f"Q8.{f} against Q8.12", behind(f"Q8.{f}"), behind("Q8.12")) for f in FRACTIONS if f < 12]
        enough = [
            view.keeps(f"Q8.12 against {name}", behind("Q8.12"), other)
            for name, other in (("float32", baseline()), ("Q8.16", behind("Q8.16")))
        ]
        width = (
            "Slides: in a float accumulator the exponent's width matters more than the mantissa's, even with loss "
            "scaling (judged at equal width)"
        )
        return [
            Claim("d", width, exponent),
            Claim("d", "Slides: E5M5 is good", good),
            Claim("e", "Slides: a fixed accumulator Q8.f needs f = 12; fewer bits lose", fewer),
            Claim("e", "Slides: f = 12 is enough", enough),
        ]


# ---- (f), (g): whole units ------------------------------------------------------------------------------------------

SMALL = ("resnet20", "resnet8")
WIDE = "wide-resnet"
UNITS = ("E4M2:5+E5M5", "E4M2:5+Q8.12", "E5M2:5+E6M5", "E5M2:5+Q8.12", "E5M2:5+Q8.13")
WIDE_UNITS = ("E5M2:5+E6M5", "E5M2:5+Q8.13", "E5M2:5+Q11.13")
PAPER = {
    "resnet20": {"float32": 91.85, "E5M2:5+E6M5": 91.04, "E5M2:5+Q8.13": 90.95},
    WIDE: {"float32": 57.57, "E5M2:5+E6M5": 59.79, "E5M2:5+Q8.13": 10.92, "E5M2:5+Q11.13": 59.38},
}
"""Accuracies in per cent: ResNet-20 on CIFAR-10, ResNet-50 on ImageWoof."""


class MacFull(MacStudy, name="mac-full"):
    """Whole MAC units on ResNet-20 and ResNet-8, and fixed accumulators on a wide model.

    The slides' wide model is ResNet-50; here it is a ResNet with 64, 128 and 256 channels, whose sums have up to 2,304
    terms. It is trained for two epochs, because only saturation is in question.
    """

    title = "Whole MAC units on small and wide models (claims f, g)"

    def kinds(self, quick: bool) -> list[Kind]:
        """Whole units on small models, and fixed accumulators on the wide one."""
        if quick:
            return [baseline(), *map(Kind, UNITS)]
        small = [kind for task in SMALL for kind in (baseline(task), *(Kind(unit, task=task) for unit in UNITS))]
        wide = [baseline(WIDE), *(Kind(unit, task=WIDE) for unit in WIDE_UNITS)]
        return [*small, *wide, Kind("E5M2:5+Q11.13")]

    def kind_tables(self, view: Trainings) -> list[Table]:
        kinds = self.kinds(quick=False)
        return [
            paper_table(view),
            *(kind_table("Whole units", view, kinds, task) for task in (*SMALL, WIDE)),
            product_table(view),
        ]

    def panels(self, view: Trainings) -> list[Panel]:
        units = {**dict.fromkeys(SMALL, UNITS), WIDE: WIDE_UNITS}
        return [
            accuracy_panel(
                task, view, names, {"dynamic loss scale": [Kind(unit, task=task) for unit in names]}, "unit",
                baseline(task),
            )
            for task, names in units.items()
        ]  # fmt: skip

    def claims(self, view: Trainings) -> list[Claim]:
        claims = []
        for task in SMALL:

            def against(unit: str, task: str = task) -> tuple[str, Kind, Kind]:
                return f"{unit} against float32", Kind(unit, task=task), baseline(task)

            claims += [
                Claim(
                    "f", f"Slides (ResNet-20): E4M2 (CFG-5) with E5M5 or Q8.12 loses accuracy; here {task}",
                    [view.loses(*against(unit)) for unit in UNITS[:2]],
                ),
                Claim(
                    "f", f"Slides: E5M2 (CFG-5) recovers the all-float unit (91.04 against 91.85 %), but not Q8.12; "
                    f"here {task}",
                    [view.keeps(*against("E5M2:5+E6M5")), view.loses(*against("E5M2:5+Q8.12"))],
                ),
                Claim(
                    "f", f"Slides: Q8.13 recovers the mixed unit (90.95 against 91.85 %); here {task}",
                    [view.keeps(*against("E5M2:5+Q8.13"))],
                ),
            ]  # fmt: skip
        narrow, wide = Kind("E5M2:5+Q8.13", task=WIDE), Kind("E5M2:5+Q11.13", task=WIDE)
        size = [
            view.loses(f"{WIDE}: Q8.13 against Q11.13", narrow, wide),
            view.keeps(f"{WIDE}: Q11.13 against float32", wide, baseline(WIDE)),
            view.keeps("resnet8: Q8.13 against Q11.13", behind("Q8.13"), behind("Q11.13")),
        ]
        words = (
            "Slides: fixed accumulators depend on the size of the model: on ResNet-50 Q8.13 falls to 10.92 % "
            f"(chance), Q11.13 reaches 59.38 % (float32 57.57 %); here {WIDE}"
        )
        return [*claims, Claim("g", words, size)]


def paper_table(trainings: Trainings) -> Table:
    """The slides' accuracies beside ours."""
    rows: list[dict[Column, Value]] = []
    for task, accuracies in PAPER.items():
        for unit, accuracy in accuracies.items():
            kind, base = baseline(task) if unit == "float32" else Kind(unit, task=task), baseline(task)
            rows.append(
                {
                    Column("slides' model"): "ResNet-20, CIFAR-10" if task == "resnet20" else "ResNet-50, ImageWoof",
                    Column("our model"): setting(task),
                    Column("unit"): unit,
                    Column("slides", "%", ".2f"): accuracy,
                    Column("slides against float32", "points", "+.2f"): accuracy - accuracies["float32"],
                    Column("ours", "%"): in_points(trainings.accuracies(kind)),
                    Column("ours against float32", "points"): in_points(trainings.differences(kind, base), sign=True),
                }
            )
    return Table.of("The slides' accuracies beside ours", rows)


def product_table(trainings: Trainings) -> Table:
    """Where fixed accumulators saturate and underflow."""
    rows = [
        {
            Column("model"): task,
            Column("unit"): unit,
            Column("product"): role,
            **{Column(event): in_words(share(trainings.of(Kind(unit, task=task)), event, [role])) for event in EVENTS},
        }
        for task, unit, role in product((WIDE, "resnet8"), ("E5M2:5+Q8.13", "E5M2:5+Q11.13"), PRODUCTS)
    ]
    return Table.of("Events per multiply-accumulate, by product", rows)
