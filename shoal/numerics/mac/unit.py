"""Multiply-accumulate units as frozen values: a multiplier, an accumulator, and the rules of the sum.

`mac/exact.py` defines what they compute, one number at a time; `matmul` computes it fast. Where the slides leave a
question open, the answer is a field with a recommended default.
"""

import re
from dataclasses import dataclass, fields, replace
from functools import cached_property

from shoal.errors import UserError, check_choice, whole_number
from shoal.numerics.formats.encodings import Encoding, encoding, operand_format
from shoal.numerics.formats.notation import UNIT_EXAMPLES, parse, unit_parts
from shoal.numerics.formats.types import FixedFormat, FloatFormat, Scalar, brackets, truth
from shoal.numerics.mac.datapath import Datapath, product_bits
from shoal.numerics.rounding.plan import NANS, VARIANTS, check_rules

FLUSHES = ("after-rounding", "before-rounding", "subnormal-grid")
PRODUCT_BIASES = ("sum", "ieee")
ORDERS = ("sequential", "pairwise", "kahan", "exact", "chunked(n)")
MAC_ROUNDINGS = ("nearest-even", "nearest-away", "toward-zero", "up", "down", "stochastic")
CARRIER_BITS = 53
"""Significant bits of float64, the widest type in which units are emulated."""


@dataclass(frozen=True, repr=False)
class FloatMultiplier:
    """A multiplier of floating-point operands in one of the configurations CFG-1 to 6 of the slides.

    CFG 1 and 2 round the product to the operands' format; 3 to 6 output it exactly, as E(max e + 1)M(mₐ + m_b + 1).
    NaN propagates. Infinity times zero is NaN in CFG 1 to 3. The sign of a product is the xor of the operands' signs,
    also for zero and infinity.
    """

    a: FloatFormat
    b: FloatFormat | None = None
    """Format of the second operand; by default that of the first."""
    cfg: int = 1
    output: FloatFormat | None = None
    """CFG 1 and 2: format of the rounded product; by default the operands', or E(max e)M(max m) if they differ."""
    product_rounding: str = "nearest-even"
    """CFG 1 and 2."""
    flush: str = "after-rounding"
    """CFG-2: results below 2^emin become 0; tested `after-rounding` with an unbounded exponent, `before-rounding`, or
    after rounding on the `subnormal-grid`."""
    product_bias: str = "sum"
    """CFG 3 to 6: the product's bias is the `sum` of the operands' biases (2b), which covers every CFG-5 and CFG-6
    product, or 2^e - 1 as in `ieee`, where the largest products overflow to infinity."""
    zero_times_infinity: str = "infinity"
    """CFG 4 to 6, which have no NaN: `infinity` or `zero`."""

    def __post_init__(self) -> None:
        chosen = encoding(self.cfg)
        for name in ("a", "b", "output"):
            if isinstance(given := getattr(self, name), str):
                object.__setattr__(self, name, parse(given))
        object.__setattr__(self, "a", operand_format(self.a, self.cfg))
        other = None if self.b is None else operand_format(self.b, self.cfg)
        object.__setattr__(self, "b", None if other == self.a else other)
        check_choice("product_rounding", self.product_rounding, MAC_ROUNDINGS[:-1])
        check_choice("flush", self.flush, FLUSHES)
        check_choice("product_bias", self.product_bias, PRODUCT_BIASES)
        check_choice("zero_times_infinity", self.zero_times_infinity, ("infinity", "zero"))
        if self.output is not None:
            if not chosen.rounded_output:
                raise UserError(f"output is given, but CFG-{self.cfg} does not round its product; omit it.")
            if not isinstance(self.output, FloatFormat) or self.output.subnormals != "gradual":
                raise UserError(f"output must be a float format with gradual underflow, not {self.output!r}.")
            if not (self.output.infinities and self.output.nans):
                raise UserError(f"output must have infinities and NaN, which CFG-{self.cfg} products can be.")
        bits = sum(format.significant_bits for format in self.formats)
        if bits > CARRIER_BITS:
            raise UserError(f"A product of {self} has {bits} significant bits; {CARRIER_BITS} are possible (float64).")
        top = max(format.highest_exponent for format in self.formats)
        bottom = min(format.lsb_exponent for format in self.formats)
        if top > 500 or bottom < -500:
            raise UserError(
                f"A product of {self} may exceed the range of float64; at most 9 exponent bits are possible."
            )
        _ = self.product  # raises if there is no such format

    @property
    def encoding(self) -> Encoding:
        """Inputs and output of the configuration."""
        return encoding(self.cfg)

    @property
    def format(self) -> FloatFormat:
        """The operand format as decoded; of two, the first."""
        return self.a

    @property
    def formats(self) -> tuple[FloatFormat, FloatFormat]:
        """Both operand formats."""
        return self.a, self.a if self.b is None else self.b

    @cached_property
    def product(self) -> FloatFormat:
        """Format of the output."""
        a, b = self.formats
        chosen = self.encoding
        if chosen.rounded_output:
            if self.output is not None:
                return self.output
            return a if a == b else FloatFormat(*product_bits(a, b, exact=False))
        bias = a.exponent_bias + b.exponent_bias if self.product_bias == "sum" else None
        subnormals = "normal" if chosen.subnormal_inputs == "normal" else "zero"
        return FloatFormat(*product_bits(a, b, exact=True), bias, subnormals, nans=chosen.nan_code)

    @property
    def smallest_normal(self) -> float:
        """CFG-2: smaller results become 0."""
        return self.product.min_normal

    @property
    def name(self) -> str:
        """E5M2:5, or E4M3*E5M2:5 for two operand formats; without the switches."""
        a, b = (replace(format, nans=True, subnormals="gradual") for format in self.formats)
        first, second = (repr(format).partition("(") for format in (a, b))
        one = f"{first[0]}:{self.cfg}{first[1]}{first[2]}"
        return one if a == b else f"{a!r}*{second[0]}:{self.cfg}{second[1]}{second[2]}"

    def __repr__(self) -> str:
        """The name; non-default switches in parentheses."""
        return self.name + brackets(_switches(self))


@dataclass(frozen=True, repr=False)
class FixedMultiplier:
    """An integer multiplier; its product is rounded and saturated to the operands' format, or kept exactly."""

    a: FixedFormat
    b: FixedFormat | None = None
    rounded: bool = True
    """Whether the product is rounded, as in the slides; otherwise all bits of the exact product are kept."""
    output: FixedFormat | None = None
    """Format of the rounded product; by default the operands', or the larger of each part if they differ."""
    product_rounding: str = "nearest-even"

    def __post_init__(self) -> None:
        for name in ("a", "b", "output"):
            given = getattr(self, name)
            if isinstance(given, str):
                object.__setattr__(self, name, given := parse(given))
            if not isinstance(given, FixedFormat) and (name == "a" or given is not None):
                raise UserError(f"A FixedMultiplier multiplies fixed-point numbers, not {given!r}.")
        if self.b == self.a:
            object.__setattr__(self, "b", None)
        check_choice("product_rounding", self.product_rounding, MAC_ROUNDINGS[:-1])
        truth("rounded", self.rounded)
        if self.output is not None and not self.rounded:
            raise UserError("output is given, but rounded=False keeps the exact product; omit one of them.")
        if max(format.width for format in self.formats) > 32:
            raise UserError(f"{self} has more than 32 bits; fixed-point operands of up to 32 are possible.")
        if not self.rounded and sum(format.width for format in self.formats) > CARRIER_BITS:
            raise UserError(f"An exact product of {self} needs more than {CARRIER_BITS} bits; leave it rounded.")
        if self.rounded and self.product.width > 32:
            raise UserError(f"A rounded product has at most 32 bits, not {self.product.width} as {self.product}.")

    @property
    def format(self) -> FixedFormat:
        """The operand format; of two, the first."""
        return self.a

    @property
    def formats(self) -> tuple[FixedFormat, FixedFormat]:
        """Both operand formats."""
        return self.a, self.a if self.b is None else self.b

    @property
    def product(self) -> FixedFormat:
        """Format of the output."""
        a, b = self.formats
        if self.output is not None:
            return self.output
        return a if self.rounded and a == b else FixedFormat(*product_bits(a, b, exact=not self.rounded))

    @property
    def name(self) -> str:
        """Q8.8, or Q8.8*Q4.4 for two operand formats; without the switches."""
        a, b = self.formats
        return repr(a) if a == b else f"{a!r}*{b!r}"

    def __repr__(self) -> str:
        """The name; non-default fields in parentheses."""
        return self.name + brackets(_switches(self))


@dataclass(frozen=True, repr=False)
class MacUnit:
    """A multiplier and an accumulator: for each k, accumulator ← rounded(accumulator + product).

    A floating-point accumulator adds exactly and rounds once. A fixed-point one is preceded by a converter that rounds
    and saturates the product to its format; the addition then only saturates. Sums start at +0. Infinite products make
    a floating-point accumulator infinite if it has infinities; inf - inf is NaN, or leaves the accumulator unchanged if
    it has no NaN.
    """

    multiplier: FloatMultiplier | FixedMultiplier
    accumulator: Scalar
    order: str = "sequential"
    """`sequential` (k ascending, one accumulator), `chunked(n)` (n products at a time from +0, then the chunk sums),
    `pairwise` (products rounded to the accumulator's format, then added in a binary tree), `kahan` (with one
    compensation term per output), or `exact` (all products summed exactly, one rounding)."""
    rounding: str = "nearest-even"
    """Rounding of a floating-point sum, or of the converter before a fixed-point accumulator."""
    overflow: str = "saturate"
    """`saturate`; `infinity` or `nan` for floating point; `wrap` for fixed point."""
    fused: bool | None = None
    """Floating point: False rounds each product to the accumulator's format before it is added."""
    nan: str = "error"
    """What to do with NaN in an operand or accumulator format that has none: `error`, `zero` or `infinity`."""
    random_bits: int = 14
    """Stochastic: number of random bits."""
    variant: str = "A"
    """Stochastic: `A`, `B` or `C`."""

    def __post_init__(self) -> None:
        named: object = self.accumulator
        if isinstance(named, str):
            object.__setattr__(self, "accumulator", parse(named))
        if not isinstance(self.multiplier, FloatMultiplier | FixedMultiplier):
            raise UserError(f"A MacUnit's multiplier is a FloatMultiplier or FixedMultiplier, not {self.multiplier!r}.")
        if not isinstance(self.accumulator, FloatFormat | FixedFormat):
            raise UserError(f"A MacUnit's accumulator is a FloatFormat or a FixedFormat, not {self.accumulator!r}.")
        check_choice("rounding", self.rounding, MAC_ROUNDINGS)
        check_choice("variant", self.variant, VARIANTS)
        check_choice("nan", self.nan, NANS)
        check_rules(self.accumulator, self.rounding, self.overflow, "round", "error")
        for operand in self.multiplier.formats:
            if not (isinstance(operand, FloatFormat) and operand.nans):
                check_rules(operand, "nearest-even", None, "round", self.nan)
        object.__setattr__(self, "order", _order(self.order))
        fixed = isinstance(self.accumulator, FixedFormat)
        if self.fused is not None:
            truth("fused", self.fused)
        if fixed and self.fused:
            raise UserError("fused is True, but a fixed-point accumulator needs a converter before it; omit fused.")
        if fixed and self.order == "kahan":
            raise UserError("order 'kahan' compensates rounded sums, but fixed-point sums are exact.")
        object.__setattr__(self, "fused", not fixed if self.fused is None else self.fused)
        whole_number("random_bits", self.random_bits, 1, 32)
        self._check_feed()

    def _check_feed(self) -> None:
        """Refuse products that cannot feed the accumulator, and accumulators too wide for float64."""
        product, sums = self.multiplier.product, self.accumulator
        most = CARRIER_BITS - 2 - (self.random_bits if self.rounding == "stochastic" else 0)
        if sums.significant_bits > most:
            raise UserError(
                f"Accumulator {sums} has {sums.significant_bits} significant bits; at most {most} are possible here."
            )
        if sums.highest_exponent > 900 or sums.lsb_exponent < -900:
            raise UserError(
                f"Accumulator {sums} is too close to the limits of float64; at most 10 exponent bits are possible."
            )
        if product.min_positive > -sums.min:
            raise UserError(
                f"The smallest product of {self.multiplier}, {product.min_positive:g}, is beyond the largest value of "
                f"accumulator {sums}, {sums.max:g}: every product would overflow it."
            )
        if max(product.max, -product.min) * 2 < sums.min_positive:
            raise UserError(
                f"The largest product of {self.multiplier}, {product.max:g}, is below half the smallest value of "
                f"accumulator {sums}, {sums.min_positive:g}: every product would vanish."
            )

    @cached_property
    def datapath(self) -> Datapath:
        """The unit's stages and their bits."""
        multiplier = self.multiplier
        cfg = multiplier.cfg if isinstance(multiplier, FloatMultiplier) else None
        return Datapath(multiplier.formats, self.accumulator, cfg, multiplier.product)

    @property
    def chunk(self) -> int:
        """Products per chunk; 0 if the order is not `chunked`."""
        return int(self.order[8:-1]) if self.order.startswith("chunked") else 0

    def __repr__(self) -> str:
        """E5M2:5+E6M5, then non-default fields after commas; `parse_mac` reads it."""
        return f"{self.multiplier.name}+{self.accumulator!r}" + "".join(
            f", {name}={value}" for name, value in (_switches(self.multiplier) | _switches(self)).items()
        )


def parse_mac(text: str) -> MacUnit:
    """Parse the name of a unit: `E5M2:5+E6M5`, `E5M2:5+Q8.13`, `E4M3*E5M2:5+E6M9`, `Q8.8+Q8.8`.

    The number after the colon is the configuration, by default 1. Fields of the unit and of its multiplier follow
    after commas: `E5M2:5+E6M5, order=chunked(64), rounding=stochastic, random_bits=8`.
    """
    operands, cfg, accumulator, chosen = unit_parts(text)
    if accumulator is None:
        raise UserError(f"'{text}' has no accumulator; {UNIT_EXAMPLES}.")
    kind = FixedMultiplier if all(isinstance(operand, FixedFormat) for operand in operands) else FloatMultiplier
    if kind is FixedMultiplier and cfg is not None:
        raise UserError(f"'{text}' gives fixed-point operands a configuration; CFG-1 to 6 are for floating point.")
    own = {field.name for field in fields(kind)} - {"a", "b", "cfg"}
    units = {field.name for field in fields(MacUnit)} - {"multiplier", "accumulator"}
    if unknown := sorted(set(chosen) - own - units):
        raise UserError(f"Unknown field '{unknown[0]}' in '{text}'; choose from: {', '.join(sorted(own | units))}.")
    settings: dict[str, object] = {name: chosen[name] for name in own & set(chosen)}
    if kind is FloatMultiplier:
        settings["cfg"] = 1 if cfg is None else cfg
    multiplier = kind(*operands, **settings)  # type: ignore[arg-type]
    return MacUnit(multiplier, accumulator, **{name: chosen[name] for name in units & set(chosen)})  # type: ignore[arg-type]


def _order(order: object) -> str:
    """`order` in its canonical form, with the n of `chunked(n)` checked."""
    text = str(order).replace(" ", "")
    if match := re.fullmatch(r"chunked\((\d{1,18})\)", text):
        return f"chunked({whole_number('products per chunk', int(match[1]), 1, 2**31)})"
    check_choice("order", text, ORDERS)
    if text == "chunked(n)":
        raise UserError("order 'chunked(n)' needs a number of products, such as chunked(64).")
    return text


def _switches(value: object) -> dict[str, object]:
    """The non-default fields, except those that are part of the name."""
    shown = {"a", "b", "cfg", "multiplier", "accumulator"}
    different = {
        field.name: getattr(value, field.name)
        for field in fields(value)  # type: ignore[arg-type]
        if field.name not in shown and getattr(value, field.name) != field.default
    }
    if isinstance(value, MacUnit) and value.fused is not isinstance(value.accumulator, FixedFormat):
        different.pop("fused")
    return different
