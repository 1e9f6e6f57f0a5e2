"""The datapath of a MAC unit: operands, product, converter and accumulator, and the bits of each, derived in one place.

    a, b ──► multiplier ──► product ──► converter, if any ──► adder ──► accumulator

Emulation (`plan`, `tiles`, `matmul`) reads from it what float32 and float64 can carry exactly, and `hardware` what a
unit costs. Nothing here is limited to what can be emulated: a unit with fp64 operands has a cost, too.
"""

import re
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from shoal.errors import UserError
from shoal.numerics.formats.encodings import encoding, operand_format
from shoal.numerics.formats.types import FixedFormat, FloatFormat, Scalar
from shoal.numerics.rounding.exact import exponent_of

Bits = tuple[int, int]  # exponent and mantissa bits, or bits before (the sign included) and after the point


@dataclass(frozen=True)
class Datapath:
    """The stages of a MAC unit: what depends on its formats and configuration, not on its rounding or order."""

    operands: tuple[Scalar, Scalar]
    """Float operands are given as the plain EeMm or as decoded, and kept as decoded."""
    accumulator: Scalar
    cfg: int | None = None
    """CFG-1 to CFG-6 of a float multiplier; None for a fixed-point one."""
    product: Scalar | None = field(default=None, compare=False)
    """Format of the multiplier's output; None for a unit known by name only, which has widths but no product range."""

    def __post_init__(self) -> None:
        a, b = self.operands
        for what, format in {"first operand": a, "second operand": b, "accumulator": self.accumulator}.items():
            if not isinstance(format, FloatFormat | FixedFormat):
                raise UserError(f"The {what} of a MAC unit is a FloatFormat or a FixedFormat, not {format!r}.")
        if type(a) is not type(b):
            raise UserError(f"{a} and {b} cannot be multiplied: operands are both floating point or both fixed point.")
        if isinstance(a, FloatFormat) and isinstance(b, FloatFormat):
            cfg = encoding(1 if self.cfg is None else self.cfg).cfg
            object.__setattr__(self, "cfg", cfg)
            object.__setattr__(self, "operands", (operand_format(a, cfg), operand_format(b, cfg)))
        elif self.cfg is not None:
            raise UserError(f"CFG-1 to 6 are encodings of floating-point operands, not of {a!r}.")

    def __str__(self) -> str:
        """E5M2:5+Q8.13, E4M3:5*E5M2:5+E6M6: formats and configuration; CFG-1 is not written."""
        names = "*".join(repr(operand) for operand in dict.fromkeys(self.operands))
        if self.cfg in (2, 3):  # operands are decoded as in CFG-1
            names = re.sub(r"M\d+", rf"\g<0>:{self.cfg}", names)
        return f"{names}+{self.accumulator!r}"

    @property
    def exact_bits(self) -> int:
        """Significant bits of the exact product of two significands."""
        return sum(operand.significant_bits for operand in self.operands)

    @property
    def product_bits(self) -> Bits:
        """Bits of the multiplier's output."""
        if self.product is not None:
            return bits_of(self.product)
        exact = self.cfg is not None and not encoding(self.cfg).rounded_output
        return product_bits(*self.operands, exact=exact)

    @property
    def product_significant_bits(self) -> int:
        """Significant bits that a product can have; multiplication by a power of two (no mantissa bits) adds none."""
        assert self.product is not None
        a, b = self.operands
        if isinstance(a, FloatFormat) and isinstance(b, FloatFormat) and min(a.mantissa, b.mantissa) == 0:
            return min(self.product.significant_bits, a.mantissa + b.mantissa + 1)
        return min(self.product.significant_bits, self.exact_bits)

    @cached_property
    def holds_products(self) -> bool:
        """Whether the output of a rounding float multiplier (CFG-1) has every exact product, so that nothing rounds."""
        product = self.product
        return (
            isinstance(product, FloatFormat)
            and self.cfg == 1
            and self.exact_bits <= product.significant_bits
            and self.largest_product <= Fraction(product.max)
            and sum(operand.lsb_exponent for operand in self.operands) >= product.lsb_exponent
        )

    @cached_property
    def largest_product(self) -> Fraction:
        """Bound of the magnitude of finite products, before any rounding."""
        a, b = (max(Fraction(operand.max), -Fraction(operand.min)) for operand in self.operands)
        return a * b

    @cached_property
    def smallest_product(self) -> Fraction:
        """Magnitude of the smallest product of operands other than zero, before any rounding."""
        a, b = (Fraction(operand.min_positive) for operand in self.operands)
        return a * b

    @cached_property
    def product_top(self) -> int:
        """Exponent of the largest product."""
        return exponent_of(self.largest_product)

    @cached_property
    def product_lsb(self) -> int:
        """Every product, exact or rounded, is a multiple of 2^product_lsb."""
        assert self.product is not None
        return min(sum(operand.lsb_exponent for operand in self.operands), self.product.lsb_exponent)

    @property
    def converts(self) -> bool:
        """Whether a float product is converted for a fixed-point accumulator."""
        return isinstance(self.operands[0], FloatFormat) and isinstance(self.accumulator, FixedFormat)

    @property
    def aligned(self) -> tuple[int, int]:
        """(top, lsb) of an exact sum of product and accumulator: it is below 2^top and a multiple of 2^lsb."""
        top = max(self.product_top, self.accumulator.highest_exponent) + 2
        return top, min(self.product_lsb, self.accumulator.lsb_exponent)

    @property
    def drops(self) -> bool:
        """Whether products may have bits below the accumulator's last one."""
        return self.product_lsb < self.accumulator.lsb_exponent


def bits_of(format: object) -> Bits:
    """Exponent and mantissa bits, or bits before (the sign included) and after the point."""
    if isinstance(format, FloatFormat):
        return format.exponent, format.mantissa
    assert isinstance(format, FixedFormat)
    return format.width - format.fraction, format.fraction


def product_bits(a: Scalar, b: Scalar, exact: bool) -> Bits:
    """Bits of the multiplier's output: all those of the exact product, or rounded, the larger of both operands'."""
    first, second = bits_of(a), bits_of(b)
    if not exact:
        return max(first[0], second[0]), max(first[1], second[1])
    if isinstance(a, FloatFormat):
        return max(first[0], second[0]) + 1, first[1] + second[1] + 1
    return first[0] + second[0], first[1] + second[1]
