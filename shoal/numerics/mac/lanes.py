"""Vectors of numbers, for loops that must stay in vector registers: a thin layer over LLVM's vector operations.

Numba has no vector type, and whether LLVM vectorises a loop with the sums kept in registers depends on small details.
Here they are vectors from the start. No operation allows reassociation or contraction; `fused` is used only where the
product is exact, so that it does not matter whether the processor has such an instruction.
"""

from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-untyped]

from shoal.system.processors import vector_features
from shoal.system.tiles import call

WIDE = "avx512f" in vector_features()
"""Whether there are 32 vector registers of 512 bits; otherwise 16 of 256 are assumed."""
FUSED = not vector_features().isdisjoint({"fma", "arm64"})
"""Whether the processor multiplies and adds in one instruction; emulating it would be slow."""
COLUMNS = 16
"""Numbers in a row of a tile."""


class Carrier(NamedTuple):
    """The type of the numbers in a vector."""

    bits: int
    mantissa: int
    bias: int
    width: int
    """Numbers per vector."""

    @property
    def floats(self) -> Any:
        """The vector type of the numbers."""
        return ir.VectorType(ir.FloatType() if self.bits == 32 else ir.DoubleType(), self.width)

    @property
    def ints(self) -> Any:
        """The vector type of integers of the same size."""
        return ir.VectorType(ir.IntType(self.bits), self.width)

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << (self.bits - 1)

    @property
    def magnitude(self) -> int:
        """All bits but the sign."""
        return self.sign - 1

    @property
    def fraction(self) -> int:
        """The bits of the mantissa."""
        return (1 << self.mantissa) - 1

    @property
    def exponent(self) -> int:
        """The bits of the exponent field."""
        return self.magnitude - self.fraction


SINGLE = Carrier(32, 23, 127, 16 if WIDE else 8)
DOUBLE = Carrier(64, 52, 1023, 8 if WIDE else 4)


class Ints:
    """A vector of integers."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def _of(self, other: "Ints | int") -> Any:
        if isinstance(other, Ints):
            return other.value
        kind = self.value.type
        return ir.Constant(kind, [other & ((1 << kind.element.width) - 1)] * kind.count)

    def __add__(self, other: "Ints | int") -> "Ints":
        return Ints(self.builder, self.builder.add(self.value, self._of(other)))

    def __sub__(self, other: "Ints | int") -> "Ints":
        return Ints(self.builder, self.builder.sub(self.value, self._of(other)))

    def __mul__(self, other: "Ints | int") -> "Ints":
        return Ints(self.builder, self.builder.mul(self.value, self._of(other)))

    def __and__(self, other: "Ints | int") -> "Ints":
        return Ints(self.builder, self.builder.and_(self.value, self._of(other)))

    def __or__(self, other: "Ints | int") -> "Ints":
        return Ints(self.builder, self.builder.or_(self.value, self._of(other)))

    def __xor__(self, other: "Ints | int") -> "Ints":
        return Ints(self.builder, self.builder.xor(self.value, self._of(other)))

    def __invert__(self) -> "Ints":
        return self ^ -1

    def __lshift__(self, places: "Ints | int") -> "Ints":
        return Ints(self.builder, self.builder.shl(self.value, self._of(places)))

    def __rshift__(self, places: "Ints | int") -> "Ints":
        """Logical: zeros are shifted in."""
        return Ints(self.builder, self.builder.lshr(self.value, self._of(places)))

    def constant(self, value: int) -> "Ints":
        """A number in all lanes."""
        return Ints(self.builder, self._of(value))

    def sign_mask(self) -> "Ints":
        """All ones where negative, else zero."""
        return Ints(self.builder, self.builder.ashr(self.value, self._of(self.value.type.element.width - 1)))

    def max(self, other: "Ints | int") -> "Ints":
        """The larger, as signed numbers."""
        o = self._of(other)
        return Ints(self.builder, self.builder.select(self.builder.icmp_signed(">", self.value, o), self.value, o))

    def min(self, other: "Ints | int") -> "Ints":
        """The smaller, as signed numbers."""
        o = self._of(other)
        return Ints(self.builder, self.builder.select(self.builder.icmp_signed("<", self.value, o), self.value, o))

    def differs(self, other: "Ints | int") -> "Ints":
        """All ones where not equal, else zero."""
        unequal = self.builder.icmp_signed("!=", self.value, self._of(other))
        return Ints(self.builder, self.builder.sext(unequal, self.value.type))

    def plus_where(self, mask: "Ints") -> "Ints":
        """One more where the mask is not zero: one instruction where there are mask registers."""
        chosen = self.builder.icmp_signed("!=", mask.value, mask._of(0))
        return Ints(self.builder, self.builder.select(chosen, (self + 1).value, self.value))

    def resized(self, bits: int) -> "Ints":
        """As integers of another size; zeros are added, or upper bits dropped."""
        have, kind = self.value.type.element.width, ir.VectorType(ir.IntType(bits), self.value.type.count)
        if have == bits:
            return self
        return Ints(self.builder, (self.builder.zext if have < bits else self.builder.trunc)(self.value, kind))

    def as_floats(self) -> "Floats":
        """The same bits as floats."""
        return Floats(self.builder, self.builder.bitcast(self.value, _floats_like(self.value.type)))

    def to_floats(self) -> "Floats":
        """The same numbers as floats."""
        return Floats(self.builder, self.builder.sitofp(self.value, _floats_like(self.value.type)))


class Floats:
    """A vector of floating-point numbers."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def __add__(self, other: "Floats") -> "Floats":
        return Floats(self.builder, self.builder.fadd(self.value, other.value))

    def __sub__(self, other: "Floats") -> "Floats":
        return Floats(self.builder, self.builder.fsub(self.value, other.value))

    def __mul__(self, other: "Floats") -> "Floats":
        return Floats(self.builder, self.builder.fmul(self.value, other.value))

    def __neg__(self) -> "Floats":
        bits = self.bits()
        return (bits ^ (1 << (bits.value.type.element.width - 1))).as_floats()

    def fused(self, other: "Floats", added: "Floats") -> "Floats":
        """self·other + added, rounded once."""
        return self._call("fma", other, added)

    def bits(self) -> Ints:
        """The same bits as integers."""
        return Ints(self.builder, self.builder.bitcast(self.value, _ints_like(self.value.type)))

    def max(self, other: "Floats") -> "Floats":
        """The larger; neither is NaN."""
        larger = self.builder.fcmp_ordered(">", self.value, other.value)
        return Floats(self.builder, self.builder.select(larger, self.value, other.value))

    def min(self, other: "Floats") -> "Floats":
        """The smaller; neither is NaN."""
        smaller = self.builder.fcmp_ordered("<", self.value, other.value)
        return Floats(self.builder, self.builder.select(smaller, self.value, other.value))

    def constant(self, value: float) -> "Floats":
        """A number in all lanes."""
        return Floats(self.builder, ir.Constant(self.value.type, [value] * self.value.type.count))

    def below(self, other: "Floats") -> Ints:
        """All ones where less than the other, else zero."""
        return self._compared("<", other)

    def equals(self, other: "Floats") -> Ints:
        """All ones where equal, else zero."""
        return self._compared("==", other)

    def differs(self, other: "Floats") -> Ints:
        """All ones where not equal, else zero."""
        return self._compared("!=", other)

    def round(self, how: str) -> "Floats":
        """To whole numbers: `rint` (ties to even), `floor`, `ceil` or `trunc`."""
        return self._call(how)

    def _compared(self, how: str, other: "Floats") -> Ints:
        found = self.builder.fcmp_ordered(how, self.value, other.value)
        return Ints(self.builder, self.builder.sext(found, _ints_like(self.value.type)))

    def _call(self, what: str, *others: "Floats") -> "Floats":
        """One of LLVM's functions."""
        kind = self.value.type
        name = f"llvm.{what}.v{kind.count}f{32 if isinstance(kind.element, ir.FloatType) else 64}"
        return Floats(self.builder, call(self.builder, name, kind, self.value, *(other.value for other in others)))


def _floats_like(kind: Any) -> Any:
    return ir.VectorType(ir.FloatType() if kind.element.width == 32 else ir.DoubleType(), kind.count)


def _ints_like(kind: Any) -> Any:
    return ir.VectorType(ir.IntType(32 if isinstance(kind.element, ir.FloatType) else 64), kind.count)
