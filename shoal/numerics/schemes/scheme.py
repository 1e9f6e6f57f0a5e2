"""A training scheme as a frozen value: the number format of each of its roles, the MAC units, and the weights' update.

The six roles are those of the slides' table: weights, inputs of products (GEMM), inputs of normalisations, gradients of
weights, gradients of activations, and the accumulator, which each of the three products has in its MAC unit. On top of
them are the master copy of the weights, the optimizer's state and the update. What is None is float32.

`parse_scheme` reads the name of a scheme: a built-in one (`SCHEMES`) or a MAC unit, and other fields after semicolons.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

from shoal.errors import UserError, check_choice, check_range, printable, whole_number
from shoal.numerics.formats.notation import parse
from shoal.numerics.formats.types import BlockFormat, FixedFormat, FloatFormat, Row, Scalar
from shoal.numerics.mac.unit import MacUnit, parse_mac
from shoal.numerics.rounding.plan import FLOAT32, fits
from shoal.numerics.schemes.cast import Cast, parse_cast
from shoal.numerics.schemes.loss_scale import shortest

CASTS = (
    "weights", "inputs", "normalisation", "activations", "weight_gradients", "activation_gradients", "master", "state",
)  # fmt: skip
UNITS = ("forward", "grad_input", "grad_weight")
OPERANDS = {
    "forward": ("inputs", "weights"),
    "grad_input": ("activation_gradients", "weights"),
    "grad_weight": ("inputs", "activation_gradients"),
}
"""The casts of the two operands of each product."""
PLAIN = ("float32", "fp32")  # names of what is not rounded
NEVER = "never"
EXAMPLES = "hfp8, E5M2:5+E6M5 and 'hfp8; master=E6M9, rounding=stochastic; update=compensated' are examples"

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

Accumulators = dict[tuple[str, str], Scalar]  # by layer and product


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
        for role in (*CASTS, *UNITS):
            object.__setattr__(self, role, _part(role, getattr(self, role)))
        check_choice("update", self.update, ("rounded", "compensated"))
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
        accumulators = parse_accumulators(self.accumulators).items()
        in_one_form = ", ".join(f"{layer}.{product}={format!r}" for (layer, product), format in accumulators)
        object.__setattr__(self, "accumulators", in_one_form)
        for role in UNITS:
            self._check_operands(role, getattr(self, role))
        for (_, role), unit in self.layer_units().items():
            self._check_operands(role, unit)

    def layer_units(self) -> dict[tuple[str, str], MacUnit]:
        """Units of layers with an accumulator of their own, by layer and product."""
        units = {}
        for (layer, role), accumulator in parse_accumulators(self.accumulators).items():
            unit: MacUnit | None = getattr(self, role)
            if unit is None:
                raise UserError(f"'{layer}' has an accumulator of its own, but {role} is float32 and has no unit.")
            fused = unit.fused if isinstance(accumulator, type(unit.accumulator)) else None
            units[layer, role] = replace(unit, accumulator=accumulator, fused=fused)
        return units

    def _check_operands(self, role: str, unit: MacUnit | None) -> None:
        """Refuse blocks that do not cut the sum at the same places, and casts whose values a unit cannot take."""
        casts: list[Cast | None] = [getattr(self, kind) for kind in OPERANDS[role]]
        if len({cast.run for cast in casts if cast is not None and cast.run is not None}) > 1:
            raise UserError(f"The operands of the {role} product have blocks of different widths; give them the same.")
        if unit is None:
            return
        formats: tuple[Scalar, ...] = unit.multiplier.formats
        for kind, cast, operand in zip(OPERANDS[role], casts, formats, strict=True):
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
        plain = dict(vars(self))
        return plain | {role: None if plain[role] is None else repr(plain[role]) for role in (*CASTS, *UNITS)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> "Scheme":
        """The inverse of `to_json`."""
        known = ("name", *FIELDS)
        if not isinstance(plain, Mapping) or (unknown := sorted(set(plain) - set(known))):
            what = f"the field '{unknown[0]}'" if isinstance(plain, Mapping) else repr(plain)
            raise UserError(f"This is not a scheme: {what} is not known; the fields are {', '.join(sorted(known))}.")
        return cls(**plain)

    def describe(self) -> list[Row]:
        """The scheme as a table of (role, value)."""
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
        unit = next((unit for role in UNITS if (unit := getattr(self, role)) is not None), None)
        if self.name in SCHEMES:
            base, text = SCHEMES[self.name], self.name
        elif unit is not None:
            base, text = _of_unit(unit), repr(unit)
        else:
            base, text = SCHEMES["float32"], "float32"
        different = {name: getattr(self, name) for name in FIELDS if getattr(self, name) != getattr(base, name)}
        return text + "".join(f"; {name}={_text(name, value)}" for name, value in different.items())


FIELDS = tuple(field.name for field in fields(Scheme) if field.name != "name")


def holds(container: Scalar, element: Scalar) -> bool:
    """Whether every finite value of `element` is one of `container`."""
    if container == element:
        return True
    fine = element.lsb_exponent >= container.lsb_exponent
    inside = element.max <= container.max and element.min >= container.min
    if isinstance(container, FixedFormat):
        return fine and inside
    enough = element.significant_bits <= container.significant_bits
    return container.subnormals == "gradual" and enough and fine and inside


def parse_accumulators(text: str) -> Accumulators:
    """`layer.product=format` or, for all its products, `layer=format`, after commas; a product's own entry wins."""
    entries = [part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip()]
    of_layers: Accumulators = {}
    of_products: Accumulators = {}
    for entry in entries:
        name, _, format = (word.strip() for word in entry.partition("="))
        accumulator = parse(format) if name and format else None
        if not isinstance(accumulator, FloatFormat | FixedFormat):
            raise UserError(
                f"'{printable(entry)}' in accumulators is not layer=format, such as stem.forward=E6M7 or out=Q8.13."
            )
        layer, _, product = name.rpartition(".")
        if layer and product in UNITS:
            of_products[layer, product] = accumulator
        else:
            of_layers |= {(name, product): accumulator for product in UNITS}
    return of_layers | of_products


def _part(role: str, value: object) -> Cast | MacUnit | None:
    """The cast or unit of a role, from a value or its name; None: float32."""
    if value is None or (isinstance(value, str) and value.strip().lower() in PLAIN):
        return None
    is_unit = role in UNITS
    if isinstance(value, str):
        return parse_mac(value) if is_unit else parse_cast(value)
    if isinstance(value, MacUnit if is_unit else Cast):
        return value
    if isinstance(value, Scalar | BlockFormat) and not is_unit:
        return Cast(value)
    wanted = "MacUnit" if is_unit else "Cast, a number format"
    raise UserError(f"{role} is {value!r}, but must be a {wanted} or the name of one.")


# ---- names -----------------------------------------------------------------------------------------------------------


def parse_scheme(text: str | Scheme) -> Scheme:
    """The scheme that a text names.

    A built-in scheme or a MAC unit for all products, then fields after semicolons: `E5M2:5+E6M5; master=bf16,
    rounding=stochastic`, `s2fp8; weight_gradients=float32`, `swalp; average_after=never`.
    """
    if isinstance(text, Scheme):
        return text
    if not isinstance(text, str):
        raise UserError(f"A scheme is written as a string such as 'hfp8' or 'E5M2:5+E6M5', not {text!r}.")
    return _parse(text)


@lru_cache(maxsize=256)
def _parse(text: str) -> Scheme:
    base, *rest = (part.strip() for part in text.split(";"))
    changes: dict[str, Any] = {}
    for part in rest:
        name, _, value = (word.strip() for word in part.partition("="))
        if not value or name in changes:
            raise UserError(
                f"'{printable(part)}' in '{printable(text)}' is not field=value, or is repeated; {EXAMPLES}."
            )
        check_choice("The field of a scheme", name, FIELDS)
        changes[name] = _value(name, value)
    scheme = SCHEMES.get(PLAIN[0] if base.lower() in PLAIN else base.lower())
    if scheme is None and "+" not in base:
        raise UserError(
            f"'{printable(base)}' is not a scheme; choose one of {', '.join(SCHEMES)}, or a unit such as E5M2:5+E6M5."
        )
    return replace(scheme or _of_unit(parse_mac(base)), **changes)


def _of_unit(unit: MacUnit) -> Scheme:
    """All products through one unit, all else in float32; operands are rounded to the unit's format, if it has one."""
    a, b = unit.multiplier.formats
    operand = Cast(a) if a == b and fits(a, FLOAT32) else None
    return Scheme(
        "unit", weights=operand, inputs=operand, activation_gradients=operand,
        forward=unit, grad_input=unit, grad_weight=unit,
    )  # fmt: skip


def _value(name: str, value: str) -> Any:
    if name in (*CASTS, *UNITS, "update", "accumulators"):
        return value
    if name == "average_after" and value == NEVER:
        return None
    try:
        return float(value) if name == "average_after" else int(value)
    except ValueError:
        kind = "number" if name == "average_after" else "whole number"
        raise UserError(f"{name} is '{printable(value)}', but must be a {kind}.") from None


def _text(name: str, value: Any) -> str:
    if value is None:
        return NEVER if name == "average_after" else PLAIN[0]
    return shortest(value) if name == "average_after" else str(value)


# ---- the built-in schemes --------------------------------------------------------------------------------------------
# Where a source leaves a question open, our reading is a field that can be given another value after a semicolon;
# docs/schemes.md lists these readings.

SOURCES = {
    "float32": "the baseline",
    "bf16": "mixed precision: operands in bfloat16, sums and master copy in float32",
    "fp16": "mixed precision: operands in binary16, sums and master copy in float32; use a loss scale",
    "swalp": "Yang et al., SWALP: Stochastic Weight Averaging in Low Precision, ICML 2019",
    "s2fp8": "Cambier et al., Shifted and Squeezed 8-bit Floating Point Format, ICLR 2020",
    "hfp8": "Sun et al., Hybrid 8-bit Floating Point (HFP8) Training and Inference, NeurIPS 2019",
    "bm8": "Fox et al., A Block Minifloat Representation for Training Deep Neural Networks, ICLR 2021",
    "fp8-seb": "Park et al., A Neural Network Training Processor with 8-Bit Shared Exponent Bias, JSSC 2021",
    "fp134": "Lee et al., Towards Efficient Low-Precision Training: Hysteresis Quantization, ICLR 2022",
}


def _scheme(name: str, everywhere: str, **others: Any) -> Scheme:
    """A scheme from texts: `everywhere` is the cast of operands and gradients."""
    rounded = ("weights", "inputs", "weight_gradients", "activation_gradients")
    return Scheme(name, **(dict.fromkeys(rounded, everywhere) | others))


# Block floating point: 8-bit integers, and products of two of them in a 32-bit sum.
_BFP, _BFP_UNIT = "Q1.7/row, rounding=stochastic", "Q1.7+Q18.14, rounded=False"

# HFP8's multipliers round to a format that holds every product, so products are exact.
_HFP8 = "E4M3(bias=4), overflow=saturate"
_HFP8_SUMS = "+E6M9, output=E7M9, order=chunked(64)"

# Block minifloats as integers: E2M5B2F has multiples of 2^-6 below 4, E4M3B8F multiples of 2^-10 below 256.
_MINIFLOAT, _WIDE_MINIFLOAT = "E2M5B2F/48x48, rounding=stochastic", "E4M3B8F/48x48, rounding=stochastic"

# E5M3 has every value of E4M3F, and E7M7 every product of two: only the tree's additions round.
_SEB, _SEB_UNIT = "E4M3F/tensor", "E5M3+fp32, output=E7M7, order=pairwise"

_FP134 = "E3M4F/tensor"

SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("float32"),
        _scheme("bf16", "bf16"),
        _scheme("fp16", "fp16"),
        _scheme(
            "swalp", _BFP, forward=_BFP_UNIT, grad_input=_BFP_UNIT, grad_weight=_BFP_UNIT, master=_BFP, state=_BFP,
            average_after=0.5,
        ),
        _scheme("s2fp8", "E5M2, squeeze=True"),
        _scheme(
            "hfp8", _HFP8, activation_gradients="E5M2", weight_gradients="E6M9", normalisation="E6M9",
            forward="E4M3(bias=4)" + _HFP8_SUMS,
            grad_input="E5M2*E4M3(bias=4)" + _HFP8_SUMS,
            grad_weight="E4M3(bias=4)*E5M2" + _HFP8_SUMS,
        ),
        _scheme(
            "bm8", _MINIFLOAT, activation_gradients=_WIDE_MINIFLOAT, weight_gradients="E6M9",
            forward="Q3.6+Q19.12, rounded=False",
            grad_input="Q9.10*Q3.6+Q15.16, rounded=False",
            grad_weight="Q3.6*Q9.10+Q15.16, rounded=False",
        ),
        _scheme(
            "fp8-seb", _SEB, normalisation=_SEB, forward=_SEB_UNIT, grad_input=_SEB_UNIT, grad_weight=_SEB_UNIT,
        ),
        _scheme("fp134", _FP134, weights=f"{_FP134}, rounding=hysteresis", normalisation=_FP134),
    )
}  # fmt: skip
