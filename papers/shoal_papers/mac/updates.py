"""What the slides leave open: low-precision updates. Master weights and optimizer state in low precision.

Everything but the update is float32 in the first part, so that the update alone is narrow, and goes through E5M2:5+E6M5
in the second.
"""

from shoal.results import Result
from shoal.waiting import Advance
from shoal_papers.cells import total_seconds
from shoal_papers.mac.claims import Claim, accuracy_panel, baseline, claim_study, keeps, kind_table, loses
from shoal_papers.mac.runs import DYNAMIC, NONE, Found, Kind, Trainings, cells
from shoal_papers.mac.runs import measured as train_all
from shoal_papers.study import Options

MASTERS = ("bf16", "E6M9", "E5M10", "E4M7", "E5M6", "E4M3")
WAYS = {"nearest": "", "stochastic": ", rounding=stochastic", "compensated": "; update=compensated"}
STATES = ("bf16", "E6M9", "E5M2", "E4M3")
UNIT = "E5M2:5+E6M5"
BEHIND_UNIT = ("bf16", "E6M9")
"""Masters that are also tried behind the unit."""


def master(format: str, way: str, products: str = "float32") -> Kind:
    """Master weights in a format."""
    return _kind(products, f"master={format}{WAYS[way]}")


def state(format: str, way: str, products: str = "float32") -> Kind:
    """Momentum in a format."""
    return _kind(products, f"state={format}{WAYS[way]}")


def _kind(products: str, field: str) -> Kind:
    return Kind(f"{products}; {field}", NONE if products == "float32" else DYNAMIC)


def kinds(quick: bool) -> list[Kind]:
    """Masters and states behind float32 products and behind the unit."""
    found = [baseline(), *(master(one, way) for one in (MASTERS[:2] if quick else MASTERS) for way in WAYS)]
    if quick:
        return found
    found += [state(one, way) for one in STATES for way in ("nearest", "stochastic")]
    found += [Kind(UNIT), *(master(one, way, UNIT) for one in BEHIND_UNIT for way in WAYS)]
    return [*found, state("bf16", "nearest", UNIT), both_narrow()]


def both_narrow() -> Kind:
    """Nothing wider than 16 bits is kept from one step to the next."""
    return Kind(f"{UNIT}; master=bf16, rounding=stochastic; state=bf16, rounding=stochastic")


def length(quick: bool, options: Options) -> float:
    """Approximate seconds."""
    return total_seconds(cells(kinds(quick), quick))


def measured(quick: bool, advance: Advance, options: Options) -> Found:
    """Train with every master and state."""
    return train_all("mac-updates", kinds(quick), quick, advance, options)


def study(found: Found) -> Result:
    """Accuracy by the master's format and the way of updating."""
    held, base = Trainings(found["rows"]), baseline()
    table = kind_table("Master weights and optimizer state in low precision", held, kinds(quick=False))
    panels = [
        accuracy_panel(
            "Master weights, float32 products", held, MASTERS,
            {way: [master(one, way) for one in MASTERS] for way in WAYS}, "format of the master weights", base,
        ),
        accuracy_panel(
            f"Master weights, {UNIT}", held, BEHIND_UNIT,
            {way: [master(one, way, UNIT) for one in BEHIND_UNIT] for way in WAYS}, "format of the master weights",
            base,
        ),
        accuracy_panel(
            "Momentum, float32 products", held, STATES,
            {way: [state(one, way) for one in STATES] for way in ("nearest", "stochastic")}, "format of the momentum",
            base,
        ),
    ]  # fmt: skip
    title = "Updates in low precision (open in the slides)"
    return claim_study("mac-updates", title, found, [table], claims_of(held), panels)


def claims_of(held: Trainings) -> list[Claim]:
    """Questions, because the slides have no claims here."""
    base = baseline()
    nearest = [loses(f"{one} nearest against float32", held.differences(master(one, "nearest"), base))
               for one in MASTERS]  # fmt: skip
    better = [
        keeps(f"{one} {way} against float32", held.differences(master(one, way), base))
        for one in MASTERS
        for way in ("stochastic", "compensated")
    ]
    states = [
        keeps(f"{one} {way} against float32", held.differences(state(one, way), base))
        for one in STATES
        for way in ("nearest", "stochastic")
    ]
    unit = [
        keeps(f"{one} {way} against a float32 master", held.differences(master(one, way, UNIT), Kind(UNIT)))
        for one in BEHIND_UNIT
        for way in ("stochastic", "compensated")
    ]
    unit.append(keeps("master and momentum bf16 stochastic", held.differences(both_narrow(), Kind(UNIT))))
    return [
        Claim("", "Question: does rounding a narrow master to nearest lose accuracy?", tuple(nearest)),
        Claim("", "Question: do stochastic or compensated updates keep the accuracy?", tuple(better)),
        Claim("", "Question: can the momentum be narrow?", tuple(states)),
        Claim("", f"Question: does that hold behind {UNIT}, too?", tuple(unit)),
    ]
