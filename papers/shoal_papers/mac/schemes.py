"""Six published training schemes (the slides' table of six roles), with our accuracies beside the published ones.

Published: ResNet-18 on ImageNet, top-1. What the sources leave open is listed in docs/schemes.md.
"""

from shoal.results import Column, Result, Table, Value
from shoal.waiting import Advance
from shoal_papers.cells import total_seconds
from shoal_papers.mac.claims import (
    Claim,
    accuracy_panel,
    baseline,
    claim_study,
    keeps,
    kind_table,
    loses,
    with_interval,
)
from shoal_papers.mac.runs import NONE, Found, Kind, Trainings, cells
from shoal_papers.mac.runs import measured as train_all
from shoal_papers.study import Options

PUBLISHED = {
    "swalp": ("8", "8", "n/a", "8", "8", "32", 70.3, 65.8),
    "s2fp8": ("(5,2)/(8,23)", "(5,2)", "n/a", "(5,2)", "(5,2)", "(8,23)", 70.3, 69.6),
    "hfp8": ("(4,3)", "(4,3)", "(6,9)", "(6,9)", "(5,2)", "(6,9)", 69.4, 69.4),
    "bm8": ("(2,5)", "(2,5)", "31", "(6,9)", "(4,3)", "31", 69.7, 69.8),
    "fp8-seb": ("(4,3)", "(4,3)", "(4,3)", "(4,3)", "(4,3)", "(8,23)", 69.7, 69.0),
    "fp134": ("(3,4)", "(3,4)", "(3,4)", "(3,4)", "(3,4)", "(8,23)", 69.8, 69.8),
}
"""Weights, inputs, normalisation, gradients of weights and of activations, accumulator; % in float32 and the scheme."""
ROLES = ("weights", "inputs", "normalisation", "weight gradients", "activation gradients", "accumulator")
BESIDE = ("bf16", "fp16", "E5M2:5+E6M5")
"""Not in the table: baselines, and the slides' own unit."""
ORDER = ("s2fp8", "hfp8", "fp134", "swalp", "bm8", "fp8-seb")
"""Slow ones last."""
UNSCALED = ("fp16", "s2fp8", "hfp8", "fp134")
"""Tried without loss scaling as well."""
LOST = 2.0
"""Published losses from this many points on count as losses."""


def kinds(quick: bool) -> list[Kind]:
    """All schemes with loss scaling, some without."""
    if quick:
        return [baseline(), *map(Kind, ("bf16", "E5M2:5+E6M5", "s2fp8", "hfp8", "fp134"))]
    plain = [Kind(name, NONE) for name in UNSCALED]
    return [baseline(), *map(Kind, BESIDE), *plain, *map(Kind, ORDER)]


def length(quick: bool, options: Options) -> float:
    """Approximate seconds."""
    return total_seconds(cells(kinds(quick), quick))


def measured(quick: bool, advance: Advance, options: Options) -> Found:
    """Train in every scheme."""
    return train_all("schemes", kinds(quick), quick, advance, options)


def study(found: Found) -> Result:
    """Accuracy by scheme, the published ones beside ours."""
    held, names = Trainings(found["rows"]), [*BESIDE, *PUBLISHED]
    tables = [role_table(held), kind_table("Schemes", held, kinds(quick=False))]
    bars = {
        "no loss scale": [Kind(name, NONE) for name in names],
        "dynamic loss scale": [Kind(name) for name in names],
    }
    panel = accuracy_panel("Training schemes", held, names, bars, "scheme", baseline())
    title = "Published training schemes (the table of six roles)"
    return claim_study("schemes", title, found, tables, claims_of(held), [panel])


def role_table(held: Trainings) -> Table:
    """The slides' table, with our differences beside theirs."""
    rows: list[dict[Column, Value]] = []
    for name, (*formats, full, reached) in PUBLISHED.items():
        row: dict[Column, Value] = {Column("scheme"): name}
        row |= {Column(role): str(format) for role, format in zip(ROLES, formats, strict=True)}
        row |= {
            Column("published", "%", ".1f"): reached,
            Column("published against float32", "points", "+.1f"): reached - full,
            Column("ours", "%"): with_interval(held.accuracies(Kind(name))),
            Column("ours against float32", "points"): with_interval(
                held.differences(Kind(name), baseline()), sign=True
            ),
        }
        rows.append(row)
    return Table.of("Six roles: published (ResNet-18, ImageNet) beside ours (resnet8, digits)", rows)


def claims_of(held: Trainings) -> list[Claim]:
    """The published losses as claims, and the order of the schemes."""
    found = []
    for name, (*_, full, reached) in PUBLISHED.items():
        gaps = held.differences(Kind(name), baseline())
        part = (loses if full - reached >= LOST else keeps)(f"{name} against float32", gaps)
        words = f"Published: {reached:.1f} against {full:.1f} %, {reached - full:+.1f} points"
        found.append(Claim(name, words, (part,)))
    others = [name for name in PUBLISHED if name != "swalp"]
    worst = [loses(f"swalp against {name}", held.differences(Kind("swalp"), Kind(name))) for name in others]
    found.append(Claim("order", "Published: SWALP loses most", tuple(worst)))
    return found
