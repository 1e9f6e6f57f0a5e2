"""Vectors of eight numbers, for loops that must stay in vector registers: a thin layer over LLVM's vector operations.

Numba has no vector type, and whether LLVM vectorises a loop with the sums kept in registers depends on small details.
Here they are vectors from the start. No operation allows reassociation or contraction.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]

WIDTH = 8
FLOATS = ir.VectorType(ir.FloatType(), WIDTH)
INTS = ir.VectorType(ir.IntType(32), WIDTH)


class Ints:
    """Eight 32-bit integers."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def _of(self, other: "Ints | int") -> Any:
        return other.value if isinstance(other, Ints) else ir.Constant(INTS, [other & 0xFFFFFFFF] * WIDTH)

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
        return Ints(self.builder, self.builder.ashr(self.value, self._of(31)))

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
        return Ints(self.builder, self.builder.sext(self.builder.icmp_signed("!=", self.value, self._of(other)), INTS))

    def as_floats(self) -> "Floats":
        """The same bits as floats."""
        return Floats(self.builder, self.builder.bitcast(self.value, FLOATS))

    def to_floats(self) -> "Floats":
        """The same numbers as floats."""
        return Floats(self.builder, self.builder.sitofp(self.value, FLOATS))


class Floats:
    """Eight float32 numbers."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def __add__(self, other: "Floats") -> "Floats":
        return Floats(self.builder, self.builder.fadd(self.value, other.value))

    def __sub__(self, other: "Floats") -> "Floats":
        return Floats(self.builder, self.builder.fsub(self.value, other.value))

    def __mul__(self, other: "Floats") -> "Floats":
        return Floats(self.builder, self.builder.fmul(self.value, other.value))

    def bits(self) -> Ints:
        """The same bits as integers."""
        return Ints(self.builder, self.builder.bitcast(self.value, INTS))

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
        return Floats(self.builder, ir.Constant(FLOATS, [value] * WIDTH))

    def below(self, other: "Floats") -> Ints:
        """All ones where less than the other, else zero."""
        return Ints(self.builder, self.builder.sext(self.builder.fcmp_ordered("<", self.value, other.value), INTS))

    def equals(self, other: "Floats") -> Ints:
        """All ones where equal, else zero."""
        return Ints(self.builder, self.builder.sext(self.builder.fcmp_ordered("==", self.value, other.value), INTS))

    def differs(self, other: "Floats") -> Ints:
        """All ones where not equal, else zero."""
        return Ints(self.builder, self.builder.sext(self.builder.fcmp_ordered("!=", self.value, other.value), INTS))

    def round(self, how: str) -> "Floats":
        """To whole numbers: `rint` (ties to even), `floor`, `ceil` or `trunc`."""
        name, kind = f"llvm.{how}.v{WIDTH}f32", ir.FunctionType(FLOATS, [FLOATS])
        known = self.builder.module.globals
        function = known[name] if name in known else ir.Function(self.builder.module, kind, name)
        return Floats(self.builder, self.builder.call(function, [self.value]))


def splat(builder: Any, scalar: Any) -> Any:
    """A scalar in all lanes."""
    vector = ir.VectorType(scalar.type, WIDTH)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)
