"""Six published training schemes (the slides' table of six roles), with our accuracies beside the published ones.

Published: ResNet-18 on ImageNet, top-1. What the sources leave open is listed in docs/schemes.md.
"""

from shoal.results import Column, Panel, Table, Value
from shoal_papers.mac.claims import Claim, MacStudy, Trainings, accuracy_panel, in_points, kind_table
from shoal_papers.mac.runs import NONE, Kind, baseline

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
BESIDE = ("bf16", "fp16", "E5M2:5+E6M5")  # not in the table: baselines, and the slides' own unit
ORDER = ("s2fp8", "hfp8", "fp134", "swalp", "bm8", "fp8-seb")  # slow ones last
UNSCALED = ("fp16", "s2fp8", "hfp8", "fp134")  # tried without loss scaling as well
LOST = 2.0  # published losses from this many points on count as losses


class Schemes(MacStudy, name="schemes"):
    """Trainings in all schemes, most with loss scaling."""

    title = "Published training schemes (the table of six roles)"

    def kinds(self, quick: bool) -> list[Kind]:
        """All schemes with loss scaling, some without."""
        if quick:
            return [baseline(), *map(Kind, ("bf16", "E5M2:5+E6M5", "s2fp8", "hfp8", "fp134"))]
        plain = [Kind(name, NONE) for name in UNSCALED]
        return [baseline(), *map(Kind, BESIDE), *plain, *map(Kind, ORDER)]

    def kind_tables(self, view: Trainings) -> list[Table]:
        return [role_table(view), kind_table("Schemes", view, self.kinds(quick=False))]

    def panels(self, view: Trainings) -> list[Panel]:
        names = [*BESIDE, *PUBLISHED]
        bars = {
            "no loss scale": [Kind(name, NONE) for name in names],
            "dynamic loss scale": [Kind(name) for name in names],
        }
        return [accuracy_panel("Training schemes", view, names, bars, "scheme", baseline())]

    def claims(self, view: Trainings) -> list[Claim]:
        claims = []
        for name, (*_, full, reached) in PUBLISHED.items():
            judge = view.loses if full - reached >= LOST else view.keeps
            words = f"Published: {reached:.1f} against {full:.1f} %, {reached - full:+.1f} points"
            claims.append(Claim(name, words, [judge(f"{name} against float32", Kind(name), baseline())]))
        others = [name for name in PUBLISHED if name != "swalp"]
        worst = [view.loses(f"swalp against {name}", Kind("swalp"), Kind(name)) for name in others]
        return [*claims, Claim("order", "Published: SWALP loses most", worst)]


def role_table(trainings: Trainings) -> Table:
    """The slides' table, with our differences beside theirs."""
    rows: list[dict[Column, Value]] = []
    for name, (*formats, full, reached) in PUBLISHED.items():
        differences = trainings.differences(Kind(name), baseline())
        rows.append(
            {
                Column("scheme"): name,
                **{Column(role): str(format) for role, format in zip(ROLES, formats, strict=True)},
                Column("published", "%", ".1f"): reached,
                Column("published against float32", "points", "+.1f"): reached - full,
                Column("ours", "%"): in_points(trainings.accuracies(Kind(name))),
                Column("ours against float32", "points"): in_points(differences, sign=True),
            }
        )
    return Table.of("Six roles: published (ResNet-18, ImageNet) beside ours (resnet8, digits)", rows)
