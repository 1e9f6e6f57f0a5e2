"""Claims (a) and (b): which multiplier formats train, and which of them need loss scaling.

The slides' text does not say which configuration and accumulator their figure of multiplier formats has; here it is
CFG-1 with a float32 accumulator, so that the multiplier alone is narrow, and CFG-5 beside it.
"""

from shoal.results import Result
from shoal.waiting import Advance
from shoal_papers.cells import total_seconds
from shoal_papers.mac.claims import Claim, Part, accuracy_panel, baseline, claim_study, keeps, kind_table, loses
from shoal_papers.mac.runs import DYNAMIC, NONE, Found, Kind, Trainings, cells
from shoal_papers.mac.runs import measured as train_all
from shoal_papers.study import Options

FORMATS = ("E4M2", "E4M3", "E5M1", "E5M2", "E5M3", "E6M1", "E6M2", "E6M3")
QUICK_FORMATS = ("E4M2", "E5M2", "E6M3")
CFGS = (1, 5)
SHRINKING = {"E5M2:5": ("fp32", "E6M5", "E5M5"), "E4M2:5": ("fp32", "E5M5")}
"""Accumulators from wide to narrow, by multiplier."""
SCALES = (DYNAMIC, NONE)


def unit(multiplier: str, cfg: int) -> str:
    """A narrow multiplier before a float32 accumulator."""
    return f"{multiplier}:{cfg}+fp32"


def kinds(quick: bool) -> list[Kind]:
    """Multipliers with and without loss scaling; accumulators that shrink."""
    formats = QUICK_FORMATS if quick else FORMATS
    found = [baseline()]
    found += [Kind(unit(one, 1), scale) for one in formats for scale in SCALES]
    if not quick:
        found += [Kind(unit(one, 5)) for one in formats]
    for multiplier, sums in SHRINKING.items():
        found += [Kind(f"{multiplier}+{one}", scale) for one in (sums[1:2] if quick else sums) for scale in SCALES]
    return found


def length(quick: bool, options: Options) -> float:
    """Approximate seconds."""
    return total_seconds(cells(kinds(quick), quick))


def measured(quick: bool, advance: Advance, options: Options) -> Found:
    """Train every format with and without loss scaling."""
    return train_all("mac-formats", kinds(quick), quick, advance, options)


def study(found: Found) -> Result:
    """Accuracy by multiplier format and by accumulator, with and without loss scaling."""
    held, base = Trainings(found["rows"]), baseline()
    shrunk = [f"{one}+{sums}" for one, accumulators in SHRINKING.items() for sums in accumulators]
    panels = [
        accuracy_panel(
            "Multiplier formats, float32 accumulator", held, FORMATS,
            {
                "CFG-1, no loss scale": [Kind(unit(one, 1), NONE) for one in FORMATS],
                "CFG-1, dynamic loss scale": [Kind(unit(one, 1)) for one in FORMATS],
                "CFG-5, dynamic loss scale": [Kind(unit(one, 5)) for one in FORMATS],
            },
            "multiplier", base,
        ),
        accuracy_panel(
            "Accumulators that shrink", held, shrunk,
            {
                "CFG-5, no loss scale": [Kind(one, NONE) for one in shrunk],
                "CFG-5, dynamic loss scale": [Kind(one) for one in shrunk],
            },
            "multiplier + accumulator", base,
        ),
    ]  # fmt: skip
    table = kind_table("Narrow multipliers", held, kinds(quick=False))
    title = "Multiplier formats and loss scaling (claims a, b)"
    return claim_study("mac-formats", title, found, [table], claims_of(held), panels)


def claims_of(held: Trainings) -> list[Claim]:
    """(a) and (b)."""
    gaps = {one: held.differences(Kind(unit(one, 1), NONE), Kind(unit(one, 1))) for one in FORMATS}
    needed = [loses(f"{one} without against with it", gaps[one]) for one in FORMATS if one[:2] in ("E4", "E5")]
    free = [keeps(f"{one} without against with it", gaps[one]) for one in FORMATS if one[:2] == "E6"]
    shrinking: list[Part] = []
    for multiplier, (wide, *narrow) in SHRINKING.items():
        before = held.differences(Kind(f"{multiplier}+{wide}", NONE), Kind(f"{multiplier}+{wide}"))
        for sums in narrow:
            after = held.differences(Kind(f"{multiplier}+{sums}", NONE), Kind(f"{multiplier}+{sums}"))
            more = [two - one for one, two in zip(before, after, strict=False)]
            shrinking.append(loses(f"{multiplier}+{sums}: loss without loss scaling, beyond that of +{wide}", more))
    workable = [
        keeps(f"E4M2 (CFG-{cfg}) against float32", held.differences(Kind(unit("E4M2", cfg)), baseline()))
        for cfg in CFGS
    ]
    return [
        Claim("a", "Slides: with E4 and E5 multipliers loss scaling is needed", tuple(needed)),
        Claim("a", "Implied: E6 multipliers do without loss scaling", tuple(free)),
        Claim("a", "Slides: the same trend shows when accumulators shrink", tuple(shrinking)),
        Claim("b", "Slides: E4M2 is a workable first choice of multiplier input, with loss scaling", tuple(workable)),
    ]
