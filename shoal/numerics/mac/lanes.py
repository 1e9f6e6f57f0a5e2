"""Vectors of numbers, for loops that must stay in vector registers: a thin layer over LLVM's vector operations.

Numba has no vector type, and whether LLVM vectorises a loop with the sums kept in registers depends on small details.
Here they are vectors from the start. No operation allows reassociation or contraction; `fused` is used only where the
product is exact, so that it does not matter whether the processor has such an instruction.
"""

from typing import Any, NamedTuple, Self

from llvmlite import ir  # type: ignore[import-untyped]

from shoal.system.processors import vector_features
from shoal.system.tiles import call

WIDE = "avx512f" in vector_features()
"""Whether there are 32 vector registers of 512 bits; otherwise 16 of 256 are assumed."""
FUSED = not vector_features().isdisjoint({"fma", "arm64"})
"""Whether the processor multiplies and adds in one instruction; emulating it would be slow."""
COLUMNS = 16  # numbers in a row of a tile


class Carrier(NamedTuple):
    """The type of the numbers in a vector."""

    bits: int
    mantissa: int
    bias: int
    width: int  # numbers per vector

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


def _operation(name: str) -> Any:
    """One of LLVM's operations, lane by lane, with another vector or with a number."""

    def operation(self: Any, other: Any) -> Any:
        return type(self)(self.builder, getattr(self.builder, name)(self.value, self._of(other)))

    return operation


class Lanes:
    """A vector of numbers."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def constant(self, value: float) -> Self:
        """A number in all lanes."""
        return type(self)(self.builder, self._of(value))

    def max(self, other: Self | int) -> Self:
        """The larger, as signed numbers; neither is NaN."""
        return self._chosen(">", other)

    def min(self, other: Self | int) -> Self:
        """The smaller, as signed numbers; neither is NaN."""
        return self._chosen("<", other)

    def where(self, relation: str, other: Self | int) -> "Ints":
        """All ones where the relation, such as `==`, holds; else zero."""
        holds = self._compared(relation, self._of(other))
        return Ints(self.builder, self.builder.sext(holds, _ints_like(self.value.type)))

    def differs(self, other: Self | int) -> "Ints":
        """All ones where not equal, else zero."""
        return self.where("!=", other)

    def _chosen(self, relation: str, other: Self | int) -> Self:
        value = self._of(other)
        return type(self)(self.builder, self.builder.select(self._compared(relation, value), self.value, value))

    def _of(self, other: Any) -> Any:
        return (
            other.value if isinstance(other, Lanes) else ir.Constant(self.value.type, [other] * self.value.type.count)
        )

    def _compared(self, relation: str, value: Any) -> Any:
        """One bit per lane."""
        return self.builder.fcmp_ordered(relation, self.value, value)


class Ints(Lanes):
    """A vector of integers; `>>` shifts zeros in."""

    __add__, __sub__, __mul__ = map(_operation, ("add", "sub", "mul"))
    __and__, __or__, __xor__ = map(_operation, ("and_", "or_", "xor"))
    __lshift__, __rshift__ = map(_operation, ("shl", "lshr"))

    def __invert__(self) -> Self:
        return type(self)(self.builder, self.builder.not_(self.value))

    def sign_mask(self) -> "Ints":
        """All ones where negative, else zero."""
        return Ints(self.builder, self.builder.ashr(self.value, self._of(self.value.type.element.width - 1)))

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

    def _of(self, other: Any) -> Any:
        return super()._of(other & ((1 << self.value.type.element.width) - 1) if isinstance(other, int) else other)

    def _compared(self, relation: str, value: Any) -> Any:
        return self.builder.icmp_signed(relation, self.value, value)


class Floats(Lanes):
    """A vector of floating-point numbers."""

    __add__, __sub__, __mul__ = map(_operation, ("fadd", "fsub", "fmul"))

    def __neg__(self) -> "Floats":
        bits = self.bits()
        return (bits ^ (1 << (bits.value.type.element.width - 1))).as_floats()

    def fused(self, other: "Floats", added: "Floats") -> "Floats":
        """self·other + added, rounded once."""
        return self._call("fma", other, added)

    def bits(self) -> Ints:
        """The same bits as integers."""
        return Ints(self.builder, self.builder.bitcast(self.value, _ints_like(self.value.type)))

    def round(self, how: str) -> "Floats":
        """To whole numbers: `rint` (ties to even), `floor`, `ceil` or `trunc`."""
        return self._call(how)

    def _call(self, what: str, *others: "Floats") -> "Floats":
        """One of LLVM's functions."""
        kind = self.value.type
        name = f"llvm.{what}.v{kind.count}f{32 if isinstance(kind.element, ir.FloatType) else 64}"
        return Floats(self.builder, call(self.builder, name, kind, self.value, *(other.value for other in others)))


def _floats_like(kind: Any) -> Any:
    return ir.VectorType(ir.FloatType() if kind.element.width == 32 else ir.DoubleType(), kind.count)


def _ints_like(kind: Any) -> Any:
    if isinstance(kind.element, ir.IntType):
        return kind
    return ir.VectorType(ir.IntType(32 if isinstance(kind.element, ir.FloatType) else 64), kind.count)
