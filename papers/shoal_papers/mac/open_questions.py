"""What the slides leave open: updates, orders of accumulation, other layers and other number systems.

They have no claims here, so the studies ask questions.
"""

from itertools import product

from shoal.results import Panel, Table
from shoal_papers.mac.claims import Claim, MacStudy, Trainings, accuracy_panel, kind_table
from shoal_papers.mac.runs import DYNAMIC, NONE, Kind, baseline, behind

UNIT = "E5M2:5+E6M5"
"""Studies of something else than products go through it in their second part; in the first, products are float32."""


def beside(products: str, fields: str, task: str = "resnet8") -> Kind:
    """Something narrow beside these products; float32 ones need no loss scale."""
    return Kind(f"{products}; {fields}", NONE if products == "float32" else DYNAMIC, task)


# ---- updates --------------------------------------------------------------------------------------------------------

MASTERS = ("bf16", "E6M9", "E5M10", "E4M7", "E5M6", "E4M3")
WAYS = {"nearest": "", "stochastic": ", rounding=stochastic", "compensated": "; update=compensated"}
STATES, STATE_WAYS = ("bf16", "E6M9", "E5M2", "E4M3"), ("nearest", "stochastic")
MASTERS_BEHIND_UNIT = ("bf16", "E6M9")
BOTH_NARROW = beside(UNIT, "master=bf16, rounding=stochastic; state=bf16, rounding=stochastic")
"""Nothing wider than 16 bits is kept from one step to the next."""


def master(format: str, way: str, products: str = "float32") -> Kind:
    """Master weights in a format."""
    return beside(products, f"master={format}{WAYS[way]}")


def state(format: str, way: str, products: str = "float32") -> Kind:
    """Momentum in a format."""
    return beside(products, f"state={format}{WAYS[way]}")


class MacUpdates(MacStudy, name="mac-updates"):
    """Master weights and optimizer state in low precision: alone, and behind a unit."""

    title = "Updates in low precision (open in the slides)"
    table_title = "Master weights and optimizer state in low precision"

    def kinds(self, quick: bool) -> list[Kind]:
        """Masters and states behind float32 products and behind the unit."""
        kinds = [baseline(), *(master(format, way) for format in (MASTERS[:2] if quick else MASTERS) for way in WAYS)]
        if quick:
            return kinds
        kinds += [state(format, way) for format in STATES for way in STATE_WAYS]
        kinds += [Kind(UNIT), *(master(format, way, UNIT) for format in MASTERS_BEHIND_UNIT for way in WAYS)]
        return [*kinds, state("bf16", "nearest", UNIT), BOTH_NARROW]

    def panels(self, view: Trainings) -> list[Panel]:
        alone = {way: [master(format, way) for format in MASTERS] for way in WAYS}
        behind_unit = {way: [master(format, way, UNIT) for format in MASTERS_BEHIND_UNIT] for way in WAYS}
        states = {way: [state(format, way) for format in STATES] for way in STATE_WAYS}
        masters, base = "format of the master weights", baseline()
        return [
            accuracy_panel("Master weights, float32 products", view, MASTERS, alone, masters, base),
            accuracy_panel(f"Master weights, {UNIT}", view, MASTERS_BEHIND_UNIT, behind_unit, masters, base),
            accuracy_panel("Momentum, float32 products", view, STATES, states, "format of the momentum", base),
        ]

    def claims(self, view: Trainings) -> list[Claim]:
        base, better_ways = baseline(), ("stochastic", "compensated")
        nearest = [view.loses(f"{format} nearest against float32", master(format, "nearest"), base)
                   for format in MASTERS]  # fmt: skip
        better = [
            view.keeps(f"{format} {way} against float32", master(format, way), base)
            for format, way in product(MASTERS, better_ways)
        ]
        states = [
            view.keeps(f"{format} {way} against float32", state(format, way), base)
            for format, way in product(STATES, STATE_WAYS)
        ]
        unit = [
            view.keeps(f"{format} {way} against a float32 master", master(format, way, UNIT), Kind(UNIT))
            for format, way in product(MASTERS_BEHIND_UNIT, better_ways)
        ]
        unit.append(view.keeps("master and momentum bf16 stochastic", BOTH_NARROW, Kind(UNIT)))
        return [
            Claim("", "Question: does rounding a narrow master to nearest lose accuracy?", nearest),
            Claim("", "Question: do stochastic or compensated updates keep the accuracy?", better),
            Claim("", "Question: can the momentum be narrow?", states),
            Claim("", f"Question: does that hold behind {UNIT}, too?", unit),
        ]


# ---- orders of accumulation -----------------------------------------------------------------------------------------

ACCUMULATORS = ("E6M2", "E6M3", "E6M5")
ORDERS = ("sequential", "chunked(16)", "chunked(64)", "pairwise", "kahan", "exact")
FAST = ORDERS[:3]


def ordered(accumulator: str, order: str) -> Kind:
    """An accumulator behind E5M2 in CFG-5."""
    return behind(accumulator if order == ORDERS[0] else f"{accumulator}, order={order}")


class MacOrders(MacStudy, name="mac-orders"):
    """Which order of accumulation helps narrow accumulators.

    Sequential is one accumulator over all products; chunked adds 16 or 64 products at a time and then the chunks;
    pairwise is a binary tree; kahan has a second, compensating number per sum; exact rounds once at the end, which is
    the best that any order can do.
    """

    title = "Orders of accumulation (open in the slides)"
    table_title = "Orders of accumulation"

    def kinds(self, quick: bool) -> list[Kind]:
        """All orders for each accumulator; the slow ones last."""
        narrow = ACCUMULATORS[:2]
        kinds = [baseline(), *(ordered(accumulator, order) for order in FAST for accumulator in narrow)]
        if quick:
            return kinds[:-2]
        kinds.append(ordered("E6M5", "sequential"))
        return [*kinds, *(ordered(accumulator, order) for order in ORDERS[3:] for accumulator in narrow)]

    def panels(self, view: Trainings) -> list[Panel]:
        bars = {order: [ordered(accumulator, order) for accumulator in ACCUMULATORS] for order in ORDERS}
        return [accuracy_panel("E5M2:5 multiplier", view, ACCUMULATORS, bars, "accumulator", baseline())]

    def claims(self, view: Trainings) -> list[Claim]:
        narrow = ACCUMULATORS[:2]
        plain = {accumulator: ordered(accumulator, "sequential") for accumulator in ACCUMULATORS}
        others = [(accumulator, order, ordered(accumulator, order)) for accumulator in narrow for order in ORDERS[1:]]
        lost = [view.loses(f"{one} sequential against E6M5", plain[one], plain["E6M5"]) for one in narrow]
        helped = [view.loses(f"{one}: sequential against {order}", plain[one], kind) for one, order, kind in others]
        enough = [
            view.keeps(f"{one} {order} against E6M5 sequential", kind, plain["E6M5"]) for one, order, kind in others
        ]
        return [
            Claim("", "Question: do narrow accumulators lose accuracy in the plain order?", lost),
            Claim("", "Question: which order helps?", helped),
            Claim("", "Question: which order makes up for the missing mantissa bits?", enough),
        ]


# ---- normalisation and activations ----------------------------------------------------------------------------------

LAYER_FORMATS = ("bf16", "E6M9", "E5M2", "E4M3", "E3M4", "E4M2", "E3M2")
ROLES = ("normalisation", "activations")
LAYERS_BEHIND_UNIT = ("E6M9", "E5M2", "E4M3")
LAYER_TASKS = ("resnet8", "transformer")


def layer(role: str, format: str, task: str = "resnet8") -> Kind:
    """One role in a format, beside float32 products."""
    return beside("float32", f"{role}={format}", task)


def both_roles(format: str) -> Kind:
    """Both roles in a format, beside the unit."""
    return beside(UNIT, "; ".join(f"{role}={format}" for role in ROLES))


class MacLayers(MacStudy, name="mac-layers"):
    """Normalisation and activation functions in low precision: alone, and behind a unit.

    The transformer has layer normalisation, softmax and GELU where the ResNet has batch normalisation and ReLU.
    """

    title = "Normalisation and activations in low precision (open in the slides)"

    def kinds(self, quick: bool) -> list[Kind]:
        """Both roles in all formats, alone and behind the unit."""
        formats = ("E5M2", "E4M3") if quick else LAYER_FORMATS
        kinds = [baseline(), *(layer(role, format) for format in formats for role in ROLES)]
        if quick:
            return kinds
        kinds += [Kind(UNIT), *map(both_roles, LAYERS_BEHIND_UNIT), baseline("transformer")]
        return [*kinds, *(layer(role, format, "transformer") for format in LAYER_FORMATS for role in ROLES)]

    def kind_tables(self, view: Trainings) -> list[Table]:
        kinds = self.kinds(quick=False)
        return [kind_table("Normalisation and activations", view, kinds, task) for task in LAYER_TASKS]

    def panels(self, view: Trainings) -> list[Panel]:
        return [
            accuracy_panel(
                f"{task}, float32 products", view, LAYER_FORMATS,
                {role: [layer(role, format, task) for format in LAYER_FORMATS] for role in ROLES}, "format",
                baseline(task),
            )
            for task in LAYER_TASKS
        ]  # fmt: skip

    def claims(self, view: Trainings) -> list[Claim]:
        claims = [
            Claim(
                "", f"Question ({task}): which formats of {role} keep the accuracy?",
                [view.keeps(f"{format} against float32", layer(role, format, task), baseline(task))
                 for format in LAYER_FORMATS],
            )
            for task, role in product(LAYER_TASKS, ROLES)
        ]  # fmt: skip
        unit = [view.keeps(f"both {format}", both_roles(format), Kind(UNIT)) for format in LAYERS_BEHIND_UNIT]
        return [*claims, Claim("", f"Question: behind {UNIT}, against the unit alone?", unit)]


# ---- other number systems -------------------------------------------------------------------------------------------

BLOCKS = ("E4M3F/tensor", "Q1.7/tensor", "E4M3F/32", "E2M1F/32", "Q1.7/32", "Q1.3/32")
"""FP8 and integers of 8 bits by tensor; FP8, FP4, and integers of 8 and 4 bits along 32 products."""
E8 = ("E8M2", "E8M3", "E8M5")
SAME_MANTISSA = ("E6M2", "E6M3", "E6M5")


def block(format: str) -> Kind:
    """All operands in a block format, float32 products; blocks adjust to their range and need no loss scale."""
    roles = ("weights", "inputs", "activation_gradients")
    return beside("float32", "; ".join(f"{role}={format}" for role in roles))


class MacOtherFormats(MacStudy, name="mac-other-formats"):
    """Block formats as operands, and accumulators with an E8 exponent.

    Blocks share an exponent along runs of 32 products, as in the OCP microscaling formats; their sums are float32. An
    E8 accumulator has the range of float32, so that the mantissa alone is narrow.
    """

    title = "Other number systems (open in the slides)"
    table_title = "Other formats"

    def kinds(self, quick: bool) -> list[Kind]:
        """Block formats, then the accumulators, which are slow with eight exponent bits."""
        if quick:
            return [baseline(), *map(block, BLOCKS[:2])]
        return [baseline(), *map(block, BLOCKS), *map(behind, SAME_MANTISSA + E8)]

    def panels(self, view: Trainings) -> list[Panel]:
        blocks, base = {"no loss scale": list(map(block, BLOCKS))}, baseline()
        sums = (*SAME_MANTISSA, *E8)
        scaled = {"dynamic loss scale": list(map(behind, sums))}
        return [
            accuracy_panel("Block formats, float32 sums", view, BLOCKS, blocks, "operands", base),
            accuracy_panel("Accumulators behind E5M2:5", view, sums, scaled, "accumulator", base),
        ]

    def claims(self, view: Trainings) -> list[Claim]:
        blocks = [view.keeps(f"{format} against float32", block(format), baseline()) for format in BLOCKS]
        exponents = [
            view.keeps(f"{format} against E8{format[2:]}", behind(format), behind(f"E8{format[2:]}"))
            for format in SAME_MANTISSA
        ]
        return [
            Claim("", "Question: which block formats keep the accuracy?", blocks),
            Claim("", "Question: is E6 as good as E8 in an accumulator of the same mantissa?", exponents),
        ]
