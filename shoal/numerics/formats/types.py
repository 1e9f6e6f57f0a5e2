"""Number formats as frozen values: floating point, fixed point, and blocks that share an exponent.

A code is the bit pattern of a number, as an unsigned integer. Every value of every format is exactly a Python float;
formats that would need more (60 mantissa bits, say) are refused on construction.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UserError, check_choice, whole_number

SUBNORMALS = ("gradual", "normal", "zero")
MOST_LISTED = 24  # widest format, in bits, whose values are listed

Row = tuple[str, str]


@dataclass(frozen=True, repr=False)
class FloatFormat:
    """EeMm: one sign bit, e exponent bits, m mantissa bits; by default as in IEEE 754, with inf, NaN and subnormals.

    With exponent field f, mantissa field t and bias b, a number is ±(1 + t/2^m)·2^(f-b), except in the lowest
    and the top exponent field.

    `subnormals` decides what f = 0 means: `gradual` ±t·2^(1-b-m); `normal` ±(1 + t/2^m)·2^-b for t ≠ 0 and ±0 for t = 0
    (so 2^-b has no code: the hole); `zero` ±0 for every t.

    The top field f = 2^e-1 depends on `infinities` and `nans`. With both, t = 0 is ±inf and all other codes are NaN.
    With one of them, t all ones is ±inf (or NaN), and the other codes are ordinary numbers. With neither, all are
    ordinary numbers. Without `signed_zero` the code of -0 is the only NaN, so the top field needs none.
    """

    exponent: int
    mantissa: int
    bias: int | None = None
    """2^(e-1) - 1 by default."""
    subnormals: str = "gradual"
    infinities: bool = True
    nans: bool = True
    signed_zero: bool = True

    def __post_init__(self) -> None:
        exponent, mantissa = whole_number("exponent bits", self.exponent), whole_number("mantissa bits", self.mantissa)
        name = f"E{exponent}M{mantissa}"
        if exponent < 1:
            raise UserError(f"{name} has no exponent bits; a format without them is a FixedFormat.")
        if exponent > 11 or not 0 <= mantissa <= 52:
            raise UserError(f"{name} is not possible: at most 11 exponent bits and 0 to 52 mantissa bits (float64).")
        check_choice("subnormals", self.subnormals, SUBNORMALS)
        for switch in ("infinities", "nans", "signed_zero"):
            truth(switch, getattr(self, switch))
        bias = 2 ** (exponent - 1) - 1 if self.bias is None else whole_number("bias", self.bias)
        for field, value in {"exponent": exponent, "mantissa": mantissa, "bias": bias}.items():
            object.__setattr__(self, field, value)
        if not self.signed_zero and not self.nans:
            raise UserError(f"{name} without signed_zero needs nans: the code of -0 is the NaN.")
        if self._reserves_top and mantissa == 0:
            raise UserError(f"{name} has no code for both infinity and NaN; disable infinities or nans.")
        if self.lowest_exponent < -1022 or self.lsb_exponent < -1074 or self.highest_exponent > 1023:
            raise UserError(f"{name} with bias {bias} has numbers outside the range of float64.")
        if self._largest_code < 1 or self._magnitude(self._largest_code) == 0:
            raise UserError(f"{name} with these infinities, nans and subnormals has no value except zero.")

    @property
    def width(self) -> int:
        """Bits of a code."""
        return 1 + self.exponent + self.mantissa

    @property
    def significant_bits(self) -> int:
        """Bits of the significand, the implicit one included."""
        return self.mantissa + 1

    @cached_property
    def max(self) -> float:
        """The largest finite value."""
        return self._magnitude(self._largest_code)

    @property
    def min(self) -> float:
        """The smallest finite value, -max."""
        return -self.max

    @property
    def min_normal(self) -> float:
        """2^(1-b): the smallest value with a nonzero exponent field."""
        return math.ldexp(1.0, 1 - self.exponent_bias)

    @cached_property
    def min_positive(self) -> float:
        """The smallest positive value."""
        codes = range(1, 3) if self.subnormals != "zero" else range(2**self.mantissa, 2**self.mantissa + 1)
        return next(value for value in map(self._magnitude, codes) if value > 0)

    @property
    def lowest_exponent(self) -> int:
        """Exponent of the lowest binade with m mantissa bits; below it the spacing of the values is constant."""
        return -self.exponent_bias if self.subnormals == "normal" and self.mantissa else 1 - self.exponent_bias

    @property
    def highest_exponent(self) -> int:
        """Exponent of the largest finite value."""
        field, fraction = divmod(self._largest_code, 2**self.mantissa)
        if field == 0 and self.subnormals == "gradual":
            return fraction.bit_length() - self.mantissa - self.exponent_bias
        return field - self.exponent_bias

    @property
    def lsb_exponent(self) -> int:
        """Every value is a multiple of 2^lsb_exponent."""
        return self.lowest_exponent - self.mantissa

    def decode(self, code: int) -> float:
        """The value of a code."""
        code = _code(code, self)
        negative, magnitude = divmod(code, 2 ** (self.width - 1))
        if negative and magnitude == 0 and not self.signed_zero:
            return math.nan
        if magnitude > self._largest_code:
            infinite = self.infinities and magnitude == self._largest_code + 1
            value = math.inf if infinite else math.nan
        else:
            value = self._magnitude(magnitude)
        return -value if negative and (value or self.signed_zero) else value

    def encode(self, value: float) -> int:
        """The code of a value of this format; the canonical one where there are several (zero, NaN). Never rounds."""
        value = float(value)
        sign = 2 ** (self.width - 1) if math.copysign(1.0, value) < 0 else 0
        if math.isnan(value) and self.nans:
            if not self.signed_zero:
                return 2 ** (self.width - 1)
            quiet = 2 ** (self.mantissa - 1) + 1 if self._reserves_top else 1  # the canonical quiet NaN of IEEE formats
            return self._largest_code + quiet
        if math.isinf(value) and self.infinities:
            return sign + self._largest_code + 1
        if value == 0:
            return sign if self.signed_zero else 0
        if math.isfinite(value):
            magnitude = self._magnitude_code(abs(value))
            if 0 < magnitude <= self._largest_code and self._magnitude(magnitude) == abs(value):
                return sign + magnitude
        raise UserError(f"{value!r} is not a value of {self}; round it with quantize first.")

    def values(self) -> NDArray[np.float64]:
        """All finite values in ascending order, with zero once."""
        _check_listable(self)
        field, fraction = np.divmod(np.arange(self._largest_code + 1), 2**self.mantissa)
        normal = (field > 0) | ((self.subnormals == "normal") & (fraction > 0))
        significand = np.where(normal, fraction + 2**self.mantissa, fraction if self.subnormals == "gradual" else 0)
        exponent = np.where((field == 0) & ~normal, 1, field) - self.exponent_bias - self.mantissa
        magnitude = np.ldexp(significand.astype(np.float64), exponent)
        return np.unique(np.concatenate([-magnitude, magnitude])) + 0.0

    def describe(self) -> list[Row]:
        """The format as a table of (property, value)."""
        meaning = {"gradual": "gradual underflow", "normal": "normal numbers", "zero": "zero"}
        return [
            ("format", repr(self)),
            ("bits", f"{self.width} (1 sign, {self.exponent} exponent, {self.mantissa} mantissa)"),
            ("bias", str(self.bias)),
            ("largest", f"{self.max:.10g}"),
            ("smallest normal", f"{self.min_normal:.10g}"),
            ("smallest positive", f"{self.min_positive:.10g}"),
            ("unit roundoff", f"{2.0 ** -(self.mantissa + 1):.10g}"),
            ("infinities", "yes" if self.infinities else "no"),
            ("NaN", ("yes" if self.signed_zero else "yes, the code of -0") if self.nans else "no"),
            ("-0", "yes" if self.signed_zero else "no"),
            ("exponent field 0", meaning[self.subnormals]),
        ]

    def __repr__(self) -> str:
        """E5M2; E5M2:4, :5 or :6 for the encodings of CFG-4 to 6; any other difference in parentheses."""
        name = f"E{self.exponent}M{self.mantissa}"
        different: dict[str, object] = {} if self.bias == 2 ** (self.exponent - 1) - 1 else {"bias": self.bias}
        suffix = ""
        if self.infinities and not self.nans:
            suffix = ":" + {"gradual": "4", "normal": "5", "zero": "6"}[self.subnormals]
        else:
            different |= {} if self.subnormals == "gradual" else {"subnormals": self.subnormals}
            different |= {} if self.infinities else {"infinities": False}
            different |= {} if self.nans else {"nans": False}
        different |= {} if self.signed_zero else {"signed_zero": False}
        return name + suffix + brackets(different)

    @property
    def exponent_bias(self) -> int:
        assert self.bias is not None  # set on construction
        return self.bias

    @property
    def _reserves_top(self) -> bool:
        return self.infinities and self.nans and self.signed_zero

    @property
    def _largest_code(self) -> int:
        """The magnitude code of the largest finite value; codes above it are special."""
        codes = 2 ** (self.exponent + self.mantissa)
        if self._reserves_top:
            return codes - 2**self.mantissa - 1
        return codes - 1 - (self.infinities or (self.nans and self.signed_zero))

    def _magnitude(self, code: int) -> float:
        """The value of a finite magnitude code f·2^m + t."""
        field, fraction = divmod(code, 2**self.mantissa)
        if field > 0 or (self.subnormals == "normal" and fraction > 0):
            return math.ldexp(2**self.mantissa + fraction, field - self.exponent_bias - self.mantissa)
        return math.ldexp(fraction, 1 - self.exponent_bias - self.mantissa) if self.subnormals == "gradual" else 0.0

    def _magnitude_code(self, magnitude: float) -> int:
        """Candidate code of a magnitude: correct if it decodes to the same magnitude."""
        lowest = -self.exponent_bias if self.subnormals == "normal" else 1 - self.exponent_bias
        exponent = max(math.frexp(magnitude)[1] - 1, lowest)
        multiple = int(math.ldexp(magnitude, self.mantissa - exponent))
        if self.subnormals == "gradual" and multiple < 2**self.mantissa:
            return multiple
        return ((exponent + self.exponent_bias - 1) << self.mantissa) + multiple


@dataclass(frozen=True, repr=False)
class FixedFormat:
    """Qi.f: two's complement with f bits after the binary point; the i bits before it include the sign.

    Width i + f, range -2^(i-1) to 2^(i-1) - 2^-f. With `sign_extra` the sign is a separate bit: width i + f + 1 and
    twice the range. No infinities, no NaN, a single zero.
    """

    integer: int
    fraction: int
    sign_extra: bool = False

    def __post_init__(self) -> None:
        integer, fraction = whole_number("integer bits", self.integer), whole_number("fraction bits", self.fraction)
        object.__setattr__(self, "integer", integer)
        object.__setattr__(self, "fraction", fraction)
        truth("sign_extra", self.sign_extra)
        least = 0 if self.sign_extra else 1
        if integer < least or fraction < 0:
            raise UserError(f"Q{integer}.{fraction} needs at least {least} integer bits and 0 fraction bits.")
        if not 2 <= self.width <= 54:
            raise UserError(f"Q{integer}.{fraction} has {self.width} bits; 2 to 54 are possible (float64 holds these).")

    @property
    def width(self) -> int:
        """Bits of a code."""
        return self.integer + self.fraction + self.sign_extra

    @property
    def significant_bits(self) -> int:
        """Bits of a magnitude."""
        return self.width - 1

    @property
    def max(self) -> float:
        """The largest value."""
        return math.ldexp(2 ** (self.width - 1) - 1, -self.fraction)

    @property
    def min(self) -> float:
        """The most negative value, one step further from zero than `max`."""
        return math.ldexp(-(2 ** (self.width - 1)), -self.fraction)

    @property
    def min_positive(self) -> float:
        """The step between values, 2^-f."""
        return math.ldexp(1.0, -self.fraction)

    @property
    def lsb_exponent(self) -> int:
        """Every value is a multiple of 2^lsb_exponent."""
        return -self.fraction

    @property
    def highest_exponent(self) -> int:
        """Exponent of the largest value."""
        return self.width - 2 - self.fraction

    def decode(self, code: int) -> float:
        """The value of a two's complement code."""
        code = _code(code, self)
        half = 2 ** (self.width - 1)
        return math.ldexp(code - 2 * half if code >= half else code, -self.fraction)

    def encode(self, value: float) -> int:
        """The code of a value of this format. Never rounds."""
        value = float(value)
        if self.min <= value <= self.max:
            multiple = math.ldexp(value, self.fraction)
            if multiple == int(multiple):
                return int(multiple) % 2**self.width
        raise UserError(f"{value!r} is not a value of {self}; round it with quantize first.")

    def values(self) -> NDArray[np.float64]:
        """All values in ascending order."""
        _check_listable(self)
        half = 2 ** (self.width - 1)
        return np.arange(-half, half) * self.min_positive

    def describe(self) -> list[Row]:
        """The format as a table of (property, value)."""
        before = self.width - self.fraction
        return [
            ("format", repr(self)),
            ("bits", f"{self.width} ({before} before the point, sign included, {self.fraction} after it)"),
            ("largest", f"{self.max:.12g}"),
            ("smallest", f"{self.min:.12g}"),
            ("step", f"{self.min_positive:.12g}"),
            ("infinities, NaN, -0", "no"),
        ]

    def __repr__(self) -> str:
        return f"Q{self.integer}.{self.fraction}" + brackets({"sign_extra": True} if self.sign_extra else {})


Scalar = FloatFormat | FixedFormat


@dataclass(frozen=True, repr=False)
class BlockFormat:
    """Elements that share a power of two: 2^s·v with one s per block and v a value of `element`.

    With a FloatFormat the shared part is an exponent bias (FP8-SEB, block minifloat), with a FixedFormat the exponent
    itself (block floating point). A block is the whole tensor (`tensor`), all of the last axis (`row`), runs of n along
    the last axis (n), or tiles of (h, w) over the last two axes; the last run and the tiles at the edge may be smaller.

    s = (exponent of the block's largest finite magnitude) - (exponent of element.max), so that the largest element
    lands in the top binade; 0 for a block of zeros.
    """

    element: FloatFormat | FixedFormat
    over: str | int | tuple[int, int] = "tensor"

    def __post_init__(self) -> None:
        if not isinstance(self.element, FloatFormat | FixedFormat):
            raise UserError(f"A block's element is a FloatFormat or a FixedFormat, not {self.element!r}.")
        if isinstance(self.over, str):
            check_choice("over", self.over, ("tensor", "row"))
            return
        given = self.over if isinstance(self.over, tuple) else (self.over,)
        sides = tuple(whole_number("block side", side) for side in given)
        if len(sides) > 2 or min(sides, default=0) < 1:
            raise UserError(f"A block over {self.over!r} is not possible; 'tensor', 'row', n or (h, w) from 1 are.")
        object.__setattr__(self, "over", sides if len(sides) == 2 else sides[0])

    @property
    def width(self) -> int:
        """Bits of an element, without the shared exponent."""
        return self.element.width

    @property
    def max(self) -> float:
        """The largest finite value of a block with s = 0."""
        return self.element.max

    @property
    def min_positive(self) -> float:
        """The smallest positive value of a block with s = 0."""
        return self.element.min_positive

    def values(self, shared: int = 0) -> NDArray[np.float64]:
        """All finite values of a block with this s, in ascending order."""
        return np.ldexp(self.element.values(), shared)

    def decode(self, code: int, shared: int = 0) -> float:
        """The value of an element's code in a block with this s."""
        return math.ldexp(self.element.decode(code), shared)

    def encode(self, value: float, shared: int = 0) -> int:
        """The code of a value in a block with this s. Never rounds."""
        return self.element.encode(math.ldexp(value, -shared))

    def describe(self) -> list[Row]:
        """The format as a table of (property, value)."""
        over = {"tensor": "the whole tensor", "row": "the last axis"}.get(str(self.over), f"blocks of {self.over}")
        kind = "exponent bias" if isinstance(self.element, FloatFormat) else "exponent"
        return [("format", repr(self)), (f"shared {kind}", over), *self.element.describe()[1:]]

    def __repr__(self) -> str:
        over = "x".join(map(str, self.over)) if isinstance(self.over, tuple) else self.over
        return f"{self.element!r}/{over}"


Format = FloatFormat | FixedFormat | BlockFormat


def truth(what: str, value: object) -> bool:
    """`value` if it is True or False; anything else is refused."""
    if not isinstance(value, bool):
        raise UserError(f"{what} must be True or False, not {value!r}.")
    return value


def _code(code: int, format: FloatFormat | FixedFormat) -> int:
    code = whole_number("a code", code)
    if not 0 <= code < 2**format.width:
        raise UserError(f"{code} is not a code of {format}: codes are 0 to {2**format.width - 1}.")
    return code


def _check_listable(format: FloatFormat | FixedFormat) -> None:
    if format.width > MOST_LISTED:
        raise UserError(f"{format} has 2^{format.width} codes; formats of up to {MOST_LISTED} bits are listed.")


def brackets(fields: dict[str, object]) -> str:
    return f"({', '.join(f'{name}={value}' for name, value in fields.items())})" if fields else ""
