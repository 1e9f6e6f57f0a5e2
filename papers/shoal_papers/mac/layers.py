"""Normalisation and activation functions in low precision, which the slides leave open.

Products are float32 in the first part, so that these layers alone are narrow, and go through E5M2:5+E6M5 in the
second. The transformer has layer normalisation, softmax and GELU where the ResNet has batch normalisation and ReLU.
"""

from shoal.results import Result
from shoal.waiting import Advance
from shoal_papers.cells import total_seconds
from shoal_papers.mac.claims import Claim, accuracy_panel, baseline, claim_study, keeps, kind_table
from shoal_papers.mac.runs import DYNAMIC, NONE, Found, Kind, Trainings, cells
from shoal_papers.mac.runs import measured as train_all
from shoal_papers.study import Options

FORMATS = ("bf16", "E6M9", "E5M2", "E4M3", "E3M4", "E4M2", "E3M2")
ROLES = ("normalisation", "activations")
BEHIND_UNIT = ("E6M9", "E5M2", "E4M3")
UNIT = "E5M2:5+E6M5"
PLANS = ("resnet8", "transformer")


def kind(role: str, format: str, products: str = "float32", plan: str = "resnet8") -> Kind:
    """One role in a format, or `both`."""
    fields = "; ".join(f"{one}={format}" for one in (ROLES if role == "both" else (role,)))
    return Kind(f"{products}; {fields}", NONE if products == "float32" else DYNAMIC, plan)


def kinds(quick: bool) -> list[Kind]:
    """Both roles in all formats, alone and behind the unit."""
    formats = ("E5M2", "E4M3") if quick else FORMATS
    found = [baseline(), *(kind(role, one) for one in formats for role in ROLES)]
    if quick:
        return found
    found += [Kind(UNIT), *(kind("both", one, UNIT) for one in BEHIND_UNIT)]
    return [
        *found,
        baseline("transformer"),
        *(kind(role, one, plan="transformer") for one in FORMATS for role in ROLES),
    ]


def length(quick: bool, options: Options) -> float:
    """Approximate seconds."""
    return total_seconds(cells(kinds(quick), quick))


def measured(quick: bool, advance: Advance, options: Options) -> Found:
    """Train with every format."""
    return train_all("mac-layers", kinds(quick), quick, advance, options)


def study(found: Found) -> Result:
    """Accuracy by role and format."""
    held = Trainings(found["rows"])
    tables = [kind_table("Normalisation and activations", held, kinds(quick=False), plan) for plan in PLANS]
    panels = [
        accuracy_panel(
            f"{plan}, float32 products", held, FORMATS,
            {role: [kind(role, one, plan=plan) for one in FORMATS] for role in ROLES}, "format", baseline(plan),
        )
        for plan in PLANS
    ]  # fmt: skip
    title = "Normalisation and activations in low precision (open in the slides)"
    return claim_study("mac-layers", title, found, tables, claims_of(held), panels)


def claims_of(held: Trainings) -> list[Claim]:
    """Questions, because the slides have no claims here."""
    found = []
    for plan in PLANS:
        for role in ROLES:
            parts = [
                keeps(f"{one} against float32", held.differences(kind(role, one, plan=plan), baseline(plan)))
                for one in FORMATS
            ]
            found.append(Claim("", f"Question ({plan}): which formats of {role} keep the accuracy?", tuple(parts)))
    unit = [keeps(f"both {one}", held.differences(kind("both", one, UNIT), Kind(UNIT))) for one in BEHIND_UNIT]
    return [*found, Claim("", f"Question: behind {UNIT}, against the unit alone?", tuple(unit))]
