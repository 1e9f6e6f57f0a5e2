"""Which order of accumulation helps narrow accumulators (the slides name accumulation architectures as open).

Sequential is one accumulator over all products; chunked adds 16 or 64 products at a time and then the chunks; pairwise
is a binary tree; kahan has a second, compensating number per sum; exact rounds once at the end, which is the best that
any order can do.
"""

from shoal.results import Result
from shoal.waiting import Advance
from shoal_papers.cells import total_seconds
from shoal_papers.mac.claims import Claim, accuracy_panel, baseline, claim_study, keeps, kind_table, loses
from shoal_papers.mac.runs import Found, Kind, Trainings, cells
from shoal_papers.mac.runs import measured as train_all
from shoal_papers.study import Options

ACCUMULATORS = ("E6M2", "E6M3", "E6M5")
ORDERS = ("sequential", "chunked(16)", "chunked(64)", "pairwise", "kahan", "exact")
FAST = ("sequential", "chunked(16)", "chunked(64)")


def kind(accumulator: str, order: str) -> Kind:
    """An accumulator behind E5M2 in CFG-5."""
    unit = f"E5M2:5+{accumulator}"
    return Kind(unit if order == ORDERS[0] else f"{unit}, order={order}")


def kinds(quick: bool) -> list[Kind]:
    """All orders for each accumulator; the slow ones last."""
    found = [baseline(), *(kind(one, order) for order in FAST for one in ACCUMULATORS[:2])]
    if quick:
        return found[:-2]
    found.append(kind("E6M5", "sequential"))
    return [*found, *(kind(one, order) for order in ORDERS if order not in FAST for one in ACCUMULATORS[:2])]


def length(quick: bool, options: Options) -> float:
    """Approximate seconds."""
    return total_seconds(cells(kinds(quick), quick))


def measured(quick: bool, advance: Advance, options: Options) -> Found:
    """Train in every order."""
    return train_all("mac-orders", kinds(quick), quick, advance, options)


def study(found: Found) -> Result:
    """Accuracy by order and accumulator."""
    held = Trainings(found["rows"])
    table = kind_table("Orders of accumulation", held, kinds(quick=False))
    bars = {order: [kind(one, order) for one in ACCUMULATORS] for order in ORDERS}
    panel = accuracy_panel("E5M2:5 multiplier", held, ACCUMULATORS, bars, "accumulator", baseline())
    title = "Orders of accumulation (open in the slides)"
    return claim_study("mac-orders", title, found, [table], claims_of(held), [panel])


def claims_of(held: Trainings) -> list[Claim]:
    """Questions, because the slides have no claims here."""
    narrow = ACCUMULATORS[:2]
    plain = {one: kind(one, "sequential") for one in ACCUMULATORS}
    lost = [loses(f"{one} sequential against E6M5", held.differences(plain[one], plain["E6M5"])) for one in narrow]
    helped = [
        loses(f"{one}: sequential against {order}", held.differences(plain[one], kind(one, order)))
        for one in narrow
        for order in ORDERS[1:]
    ]
    enough = [
        keeps(f"{one} {order} against E6M5 sequential", held.differences(kind(one, order), plain["E6M5"]))
        for one in narrow
        for order in ORDERS[1:]
    ]
    return [
        Claim("", "Question: do narrow accumulators lose accuracy in the plain order?", tuple(lost)),
        Claim("", "Question: which order helps?", tuple(helped)),
        Claim("", "Question: which order makes up for the missing mantissa bits?", tuple(enough)),
    ]
