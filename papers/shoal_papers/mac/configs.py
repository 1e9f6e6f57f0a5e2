"""Claim (c): what the steps from CFG-1 to CFG-6 of the multiplier cost.

CFG-2 drops subnormal outputs, CFG-3 the rounding of the output, CFG-4 NaN; CFG-5 reads subnormal inputs as normal ones,
CFG-6 as zero. The accumulator is float32, so that the multiplier alone is narrow.
"""

from shoal.results import Result
from shoal.waiting import Advance
from shoal_papers.cells import total_seconds
from shoal_papers.mac.claims import Claim, accuracy_panel, baseline, claim_study, keeps, kind_table, loses
from shoal_papers.mac.runs import Found, Kind, Trainings, cells
from shoal_papers.mac.runs import measured as train_all
from shoal_papers.study import Options

MULTIPLIERS = ("E4M2", "E5M2")
CFGS = (1, 2, 3, 4, 5, 6)
QUICK_CFGS = (1, 2, 5)


def kind(multiplier: str, cfg: int) -> Kind:
    """A narrow multiplier before a float32 accumulator, with loss scaling."""
    return Kind(f"{multiplier}:{cfg}+fp32")


def kinds(quick: bool) -> list[Kind]:
    """Every configuration of both multipliers."""
    return [baseline(), *(kind(one, cfg) for one in MULTIPLIERS for cfg in (QUICK_CFGS if quick else CFGS))]


def length(quick: bool, options: Options) -> float:
    """Approximate seconds."""
    return total_seconds(cells(kinds(quick), quick))


def measured(quick: bool, advance: Advance, options: Options) -> Found:
    """Train through every configuration."""
    return train_all("mac-configs", kinds(quick), quick, advance, options)


def study(found: Found) -> Result:
    """Accuracy by configuration."""
    held = Trainings(found["rows"])
    table = kind_table("Configurations of the multiplier", held, kinds(quick=False))
    bars = {one: [kind(one, cfg) for cfg in CFGS] for one in MULTIPLIERS}
    ticks = [f"CFG-{cfg}" for cfg in CFGS]
    panel = accuracy_panel("Dynamic loss scale, float32 accumulator", held, ticks, bars, "configuration", baseline())
    return claim_study("mac-configs", "Multiplier configurations (claim c)", found, [table], claims_of(held), [panel])


def claims_of(held: Trainings) -> list[Claim]:
    """(c), and what the slides leave to a figure: CFG-6."""
    costs = [loses(f"{one}, CFG-2 against CFG-1", held.differences(kind(one, 2), kind(one, 1))) for one in MULTIPLIERS]
    won = [
        keeps(f"{one}, CFG-{cfg} against CFG-1", held.differences(kind(one, cfg), kind(one, 1)))
        for one in MULTIPLIERS
        for cfg in (3, 4, 5)
    ]
    zero = [keeps(f"{one}, CFG-6 against CFG-5", held.differences(kind(one, 6), kind(one, 5))) for one in MULTIPLIERS]
    return [
        Claim("c", "Slides: CFG-2 costs much accuracy", tuple(costs)),
        Claim("c", "Slides: CFG-3, CFG-4 and CFG-5 win it back", tuple(won)),
        Claim("c", "Not in the slides' text: CFG-6 is as good as CFG-5, which they prefer", tuple(zero)),
    ]
