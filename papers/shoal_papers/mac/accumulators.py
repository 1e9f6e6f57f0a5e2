"""Claims (d) and (e): how narrow an accumulator may be, by exponent and mantissa, and by fraction bits.

The slides' text does not name the multiplier of these figures; here it is E5M2 in CFG-5, whose products are exact in
E6M5.
"""

from shoal.results import Result
from shoal.waiting import Advance
from shoal_papers.cells import total_seconds
from shoal_papers.mac.claims import Claim, accuracy_panel, baseline, claim_study, keeps, kind_table, loses
from shoal_papers.mac.runs import DYNAMIC, NONE, Found, Kind, Trainings, cells
from shoal_papers.mac.runs import measured as train_all
from shoal_papers.study import Options

MULTIPLIER = "E5M2:5"
EXPONENTS, MANTISSAS = (4, 5, 6, 7), (2, 3, 5, 7)
FRACTIONS = (6, 8, 10, 12, 13, 16)
FLOATS = tuple(f"E{e}M{m}" for e in EXPONENTS for m in MANTISSAS)
FIXED = tuple(f"Q8.{f}" for f in FRACTIONS)
QUICK = ("E4M5", "E5M5", "E6M3", "E6M5", "Q8.8", "Q8.12")
SAME_BITS = (("E4M5", "E6M3"), ("E4M7", "E6M5"), ("E5M3", "E6M2"), ("E4M3", "E5M2"))
"""Accumulators of the same width: fewer exponent bits, fewer mantissa bits."""


def kind(accumulator: str, scale: str = DYNAMIC) -> Kind:
    """An accumulator behind the multiplier."""
    return Kind(f"{MULTIPLIER}+{accumulator}", scale)


def kinds(quick: bool) -> list[Kind]:
    """All accumulators with loss scaling; those that the claims name without it, too."""
    if quick:
        return [baseline(), *map(kind, QUICK)]
    return [baseline(), kind("fp32"), *map(kind, FLOATS + FIXED), *(kind(one, NONE) for one in ("E5M5", "E6M5"))]


def length(quick: bool, options: Options) -> float:
    """Approximate seconds."""
    return total_seconds(cells(kinds(quick), quick))


def measured(quick: bool, advance: Advance, options: Options) -> Found:
    """Train through every accumulator."""
    return train_all("mac-accumulators", kinds(quick), quick, advance, options)


def study(found: Found) -> Result:
    """Accuracy by the accumulator's bits."""
    held, base = Trainings(found["rows"]), baseline()
    table = kind_table(f"Accumulators behind {MULTIPLIER}", held, kinds(quick=False))
    bars = {f"{e} exponent bits": [kind(f"E{e}M{m}") for m in MANTISSAS] for e in EXPONENTS}
    panels = [
        accuracy_panel("Float accumulators", held, [f"M{m}" for m in MANTISSAS], bars, "mantissa bits", base),
        accuracy_panel("Fixed accumulators", held, FIXED, {"Q8.f": [kind(one) for one in FIXED]}, "format", base),
    ]
    title = "Accumulator formats (claims d, e)"
    return claim_study("mac-accumulators", title, found, [table], claims_of(held), panels)


def claims_of(held: Trainings) -> list[Claim]:
    """(d) and (e)."""
    exponent = [
        loses(f"{few_exponent} against {few_mantissa}", held.differences(kind(few_exponent), kind(few_mantissa)))
        for few_exponent, few_mantissa in SAME_BITS
    ]
    good = [
        keeps(f"E5M5 against {other}", held.differences(kind("E5M5"), one))
        for other, one in (("float32", baseline()), ("a float32 accumulator", kind("fp32")))
    ]
    fewer = [
        loses(f"Q8.{f} against Q8.12", held.differences(kind(f"Q8.{f}"), kind("Q8.12"))) for f in FRACTIONS if f < 12
    ]
    enough = [keeps(f"Q8.12 against {other}", held.differences(kind("Q8.12"), one))
              for other, one in (("float32", baseline()), ("Q8.16", kind("Q8.16")))]  # fmt: skip
    return [
        Claim(
            "d", "Slides: in a float accumulator the exponent's width matters more than the mantissa's, even with loss "
            "scaling (judged at equal width)", tuple(exponent),
        ),
        Claim("d", "Slides: E5M5 is good", tuple(good)),
        Claim("e", "Slides: a fixed accumulator Q8.f needs f = 12; fewer bits lose", tuple(fewer)),
        Claim("e", "Slides: f = 12 is enough", tuple(enough)),
    ]  # fmt: skip
