"""Other number systems, which the slides leave open: block formats as operands, and accumulators with an E8 exponent.

Blocks share an exponent along runs of 32 products, as in the OCP microscaling formats; their sums are float32. An E8
accumulator has the range of float32, so that the mantissa alone is narrow.
"""

from shoal.results import Result
from shoal.waiting import Advance
from shoal_papers.cells import total_seconds
from shoal_papers.mac.claims import Claim, accuracy_panel, baseline, claim_study, keeps, kind_table
from shoal_papers.mac.runs import NONE, Found, Kind, Trainings, cells
from shoal_papers.mac.runs import measured as train_all
from shoal_papers.study import Options

BLOCKS = ("E4M3F/32", "E2M1F/32", "Q1.7/32", "Q1.3/32")
"""FP8, FP4, and integers of 8 and 4 bits."""
TENSOR = ("E4M3F/tensor", "Q1.7/tensor")
QUICK = ("E4M3F/tensor", "Q1.7/tensor")
E8 = ("E8M2", "E8M3", "E8M5")
SAME_MANTISSA = ("E6M2", "E6M3", "E6M5")


def block(format: str) -> Kind:
    """All operands in a block format, float32 products; blocks adjust to their range and need no loss scale."""
    casts = "; ".join(f"{role}={format}" for role in ("weights", "inputs", "activation_gradients"))
    return Kind(f"float32; {casts}", NONE)


def accumulator(format: str) -> Kind:
    """An accumulator behind E5M2 in CFG-5."""
    return Kind(f"E5M2:5+{format}")


def kinds(quick: bool) -> list[Kind]:
    """Block formats, then the accumulators, which are slow with eight exponent bits."""
    if quick:
        return [baseline(), *map(block, QUICK)]
    narrow = [accumulator(one) for one in SAME_MANTISSA]
    return [baseline(), *map(block, TENSOR + BLOCKS), *narrow, *map(accumulator, E8)]


def length(quick: bool, options: Options) -> float:
    """Approximate seconds."""
    return total_seconds(cells(kinds(quick), quick))


def measured(quick: bool, advance: Advance, options: Options) -> Found:
    """Train with every format."""
    return train_all("mac-other-formats", kinds(quick), quick, advance, options)


def study(found: Found) -> Result:
    """Accuracy by format."""
    held, formats = Trainings(found["rows"]), (*TENSOR, *BLOCKS)
    table = kind_table("Other formats", held, kinds(quick=False))
    sums = (*SAME_MANTISSA, *E8)
    panels = [
        accuracy_panel(
            "Block formats, float32 sums", held, formats, {"no loss scale": [block(one) for one in formats]},
            "operands", baseline(),
        ),
        accuracy_panel(
            "Accumulators behind E5M2:5", held, sums, {"dynamic loss scale": [accumulator(one) for one in sums]},
            "accumulator", baseline(),
        ),
    ]  # fmt: skip
    title = "Other number systems (open in the slides)"
    return claim_study("mac-other-formats", title, found, [table], claims_of(held), panels)


def claims_of(held: Trainings) -> list[Claim]:
    """Questions, because the slides have no claims here."""
    blocks = [keeps(f"{one} against float32", held.differences(block(one), baseline())) for one in (*TENSOR, *BLOCKS)]
    range_ = [
        keeps(f"{one} against E8{one[2:]}", held.differences(accumulator(one), accumulator(f"E8{one[2:]}")))
        for one in SAME_MANTISSA
    ]
    return [
        Claim("", "Question: which block formats keep the accuracy?", tuple(blocks)),
        Claim("", "Question: is E6 as good as E8 in an accumulator of the same mantissa?", tuple(range_)),
    ]
