"""A training scheme as a frozen value: the number format of each of its roles, the MAC units, and the weights' update.

The six roles are those of the slides' table: weights, inputs of products (GEMM), inputs of normalisations, gradients of
weights, gradients of activations, and the accumulator, which each of the three products has in its MAC unit. On top of
them are the master copy of the weights, the optimizer's state and the update. What is None is float32.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from shoal.errors import UserError, check_choice, check_range, whole_number
from shoal.numerics.formats.types import BlockFormat, FixedFormat, Row, Scalar
from shoal.numerics.mac.unit import MacUnit, parse_mac
from shoal.numerics.schemes.cast import Cast, parse_cast
from shoal.numerics.schemes.layers import accumulators_text, parse_accumulators

CASTS = (
    "weights", "inputs", "normalisation", "activations", "weight_gradients", "activation_gradients", "master", "state",
)  # fmt: skip
UNITS = ("forward", "grad_input", "grad_weight")
UPDATES = ("rounded", "compensated")
FLOAT32 = ("float32", "fp32")
"""Names of what is not rounded."""
NEVER = "never"

MEANINGS = {
    "weights": "weights, as operands of products",
    "inputs": "inputs of products",
    "normalisation": "inputs of normalisations",
    "activations": "outputs of activation functions",
    "weight_gradients": "gradients of weights",
    "activation_gradients": "gradients of activations, as operands",
    "forward": "MAC unit, forward",
    "grad_input": "MAC unit, gradients of inputs",
    "grad_weight": "MAC unit, gradients of weights",
    "master": "master copy of the weights",
    "state": "optimizer state",
    "update": "update of the master copy",
}


@dataclass(frozen=True, repr=False)
class Scheme:
    """Formats and MAC units of a training; None is float32."""

    name: str = field(default="float32", compare=False)
    """Where it comes from: a built-in scheme, or `unit`. Schemes that differ in nothing else are equal."""
    weights: Cast | None = None
    """Rounded once after every update, for all products until the next one."""
    inputs: Cast | None = None
    """A product's operands that are neither weights nor gradients; rounded once, for the forward and backward pass."""
    normalisation: Cast | None = None
    activations: Cast | None = None
    """Rounding of what activation functions return, in addition to the rounding of the products' inputs."""
    weight_gradients: Cast | None = None
    """Gradients of all parameters, before the loss scale is undone."""
    activation_gradients: Cast | None = None
    """Gradients as operands of products; rounded once for both."""
    forward: MacUnit | None = None
    """None: torch's float32 products of the rounded operands. Where `inputs` and so on are None, the unit's own operand
    formats apply."""
    grad_input: MacUnit | None = None
    grad_weight: MacUnit | None = None
    master: Cast | None = None
    """What is kept of the weights from one update to the next."""
    state: Cast | None = None
    """Moments and momentum, rounded after every update."""
    update: str = "rounded"
    """`rounded`: the optimizer's new weights are rounded to the master's format. `compensated`: Kahan's compensation
    remembers what rounding lost, in the master's format."""
    average_after: float | None = None
    """Average the weights from this step on (SWALP): a number of steps, or below 1 a share of the training; None:
    never."""
    average_every: int = 1
    """Steps between two weights of the average."""
    accumulators: str = ""
    """Accumulators of single layers in place of the units': `stem.forward=E6M7, classify=E5M5`."""

    def __post_init__(self) -> None:
        for role in CASTS:
            object.__setattr__(self, role, _cast(role, getattr(self, role)))
        for role in UNITS:
            object.__setattr__(self, role, _unit(role, getattr(self, role)))
        check_choice("update", self.update, UPDATES)
        check_range("average_every", whole_number("average_every", self.average_every), 1)
        if self.average_after is not None:
            if isinstance(self.average_after, bool) or not isinstance(self.average_after, int | float):
                raise UserError(f"average_after is {self.average_after!r}, but must be a number or None.")
            check_range("average_after", self.average_after, 0, 2**53)
        if self.update == "compensated" and self.master is None:
            raise UserError("update=compensated needs a master format, such as master=bf16; float32 is not rounded.")
        for role in CASTS:
            cast = getattr(self, role)
            if cast is not None and cast.rounding == "hysteresis" and role != "weights":
                raise UserError(f"rounding=hysteresis is for weights, which persist from step to step, not for {role}.")
        if self.weights is not None and self.weights.rounding == "hysteresis" and self.weights.shares == "blocks":
            raise UserError(
                f"weights are {self.weights.format}, whose blocks each product rounds for itself; rounding=hysteresis "
                "remembers one result per weight, so use /tensor."
            )
        object.__setattr__(self, "accumulators", accumulators_text(parse_accumulators(self.accumulators)))
        for role in UNITS:
            self._check_widths(role)
            if getattr(self, role) is not None:
                self._check_operands(role, getattr(self, role))
        for (_, role), unit in self.layer_units().items():
            self._check_operands(role, unit)

    def layer_units(self) -> dict[tuple[str, str], MacUnit]:
        """Units of layers with an accumulator of their own, by layer and product."""
        found = {}
        for (layer, role), accumulator in parse_accumulators(self.accumulators).items():
            unit: MacUnit | None = getattr(self, role)
            if unit is None:
                raise UserError(f"'{layer}' has an accumulator of its own, but {role} is float32 and has no unit.")
            fused = unit.fused if isinstance(accumulator, type(unit.accumulator)) else None
            found[layer, role] = replace(unit, accumulator=accumulator, fused=fused)
        return found

    def _check_widths(self, role: str) -> None:
        """Refuse blocks that do not cut the sum at the same places."""
        casts: list[Cast | None] = [getattr(self, kind) for kind in operand_kinds(role)]
        if len({cast.run for cast in casts if cast is not None and cast.run is not None}) > 1:
            raise UserError(f"The operands of the {role} product have blocks of different widths; give them the same.")

    def _check_operands(self, role: str, unit: MacUnit) -> None:
        """Refuse casts whose values a unit cannot take."""
        casts: list[Cast | None] = [getattr(self, kind) for kind in operand_kinds(role)]
        formats: tuple[Scalar, ...] = unit.multiplier.formats
        for kind, cast, operand in zip(operand_kinds(role), casts, formats, strict=True):
            if cast is None:
                continue
            if cast.squeeze:
                raise UserError(f"{kind} are squeezed to numbers that no unit can take; leave {role} in float32.")
            if not holds(operand, cast.element):
                raise UserError(
                    f"{kind} are rounded to {cast.element}, which has values that the operand {operand} of the "
                    f"{role} unit {unit} cannot represent."
                )
        sums, product = unit.accumulator, unit.multiplier.product
        shared = any(cast is not None and cast.shares for cast in casts)
        if shared and isinstance(sums, FixedFormat) and not holds(sums, product):
            raise UserError(
                f"The accumulator {sums} of the {role} unit is narrower than its products, {product}: blocks with a "
                "shared exponent are summed as integers, exactly."
            )

    @property
    def is_plain(self) -> bool:
        """Whether the forward and backward pass are float32 throughout."""
        return all(getattr(self, role) is None for role in (*CASTS[:4], "activation_gradients", *UNITS))

    def to_json(self) -> dict[str, Any]:
        """Plain values by field; formats and units by name."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        return plain | {role: None if plain[role] is None else repr(plain[role]) for role in (*CASTS, *UNITS)}

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> "Scheme":
        """The inverse of `to_json`."""
        known = {one.name for one in fields(cls)}
        if not isinstance(held, Mapping) or (unknown := sorted(set(held) - known)):
            what = f"the field '{unknown[0]}'" if isinstance(held, Mapping) else repr(held)
            raise UserError(f"This is not a scheme: {what} is not known; the fields are {', '.join(sorted(known))}.")
        return cls(**held)

    def describe(self) -> list[Row]:
        """The scheme as a table of (role, value)."""
        from shoal.numerics.schemes.published import SOURCES

        rows = [("scheme", repr(self))]
        if self.name in SOURCES:
            rows.append(("source", SOURCES[self.name]))
        for role, meaning in MEANINGS.items():
            value = getattr(self, role)
            rows.append((meaning, "float32" if value is None else str(value)))
        if self.accumulators:
            rows.append(("accumulators of single layers", self.accumulators))
        if self.average_after is not None:
            share = self.average_after < 1
            since = f"{self.average_after:.0%} of the training" if share else f"{self.average_after:,.0f} steps"
            rows.append(("average of the weights", f"after {since}, every {self.average_every} steps"))
        return rows

    def __repr__(self) -> str:
        """The built-in scheme or unit, then fields that differ from it after semicolons; `parse_scheme` reads it."""
        from shoal.numerics.schemes.notation import scheme_text

        return scheme_text(self)


def operand_kinds(role: str) -> tuple[str, str]:
    """The kinds of the two operands of a product in this role."""
    return {
        "forward": ("inputs", "weights"),
        "grad_input": ("activation_gradients", "weights"),
        "grad_weight": ("inputs", "activation_gradients"),
    }[role]


def holds(container: Scalar, element: Scalar) -> bool:
    """Whether every finite value of `element` is one of `container`."""
    if container == element:
        return True
    if isinstance(container, FixedFormat):
        least, most = element.lsb_exponent >= container.lsb_exponent, element.max <= container.max
        return least and most and element.min >= container.min
    return (
        container.subnormals == "gradual"
        and element.significant_bits <= container.significant_bits
        and element.lsb_exponent >= container.lsb_exponent
        and element.max <= container.max
        and element.min >= container.min
    )


def _cast(role: str, value: object) -> Cast | None:
    if value is None or (isinstance(value, str) and value.strip().lower() in FLOAT32):
        return None
    if isinstance(value, str):
        return parse_cast(value)
    if isinstance(value, Cast):
        return value
    if isinstance(value, Scalar | BlockFormat):
        return Cast(value)
    raise UserError(f"{role} is {value!r}, but must be a Cast, a number format or the name of one.")


def _unit(role: str, value: object) -> MacUnit | None:
    if value is None or (isinstance(value, str) and value.strip().lower() in FLOAT32):
        return None
    if isinstance(value, str):
        return parse_mac(value)
    if isinstance(value, MacUnit):
        return value
    raise UserError(f"{role} is {value!r}, but must be a MacUnit or the name of one.")
