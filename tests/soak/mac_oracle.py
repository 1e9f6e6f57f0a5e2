"""What a MAC unit computes, written a second time from docs/numerics.md in exact fractions; nothing of Shoal is used.

Numbers of a format are Python floats, because infinities, NaN and the sign of zero are numbers, too; everything between
two roundings is a Fraction. `tests/soak/test_macs.py` holds `shoal.numerics.matmul` against this.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

Two = Fraction(2)
Draw = Callable[[int], int]


class Refused(Exception):
    """A NaN where no code is for it, and the unit has nan=error."""


@dataclass(frozen=True)
class Float:
    """EeMm: what the two special exponent fields mean is `low` and (`inf`, `nan`)."""

    e: int
    m: int
    bias: int
    low: str = "gradual"
    inf: bool = True
    nan: bool = True
    signed_zero: bool = True

    def decode(self, code: int) -> Fraction:
        """The magnitude of a code without its sign that is no special one."""
        f, t = code >> self.m, code % 2**self.m
        if f == 0:
            if self.low == "gradual":
                return t * Two ** (1 - self.bias - self.m)
            if self.low == "zero" or t == 0:
                return Fraction(0)
        return (1 + Fraction(t, 2**self.m)) * Two ** (f - self.bias)

    @cached_property
    def most(self) -> tuple[Fraction, Fraction]:
        """The largest magnitude of a positive and of a negative number."""
        last = 2 ** (self.e + self.m) - 1
        if self.inf and self.nan and self.signed_zero:
            last -= 2**self.m  # the top field is inf and NaN
        elif self.inf or (self.nan and self.signed_zero):
            last -= 1  # t all ones is inf, or NaN
        return self.decode(last), self.decode(last)

    @cached_property
    def least(self) -> Fraction:
        """The smallest number above zero."""
        return next(value for value in map(self.decode, range(1, 2**self.m + 2)) if value)

    def neighbours(self, x: Fraction) -> tuple[Fraction, Fraction, bool]:
        """The numbers below (or at) and above a magnitude, and whether the lower one is the even one."""
        if self.low != "gradual" and x < self.least:
            return Fraction(0), self.least, True
        lowest = 1 - self.bias - (self.low == "normal" and self.m > 0)
        step = Two ** (max(exponent(x), lowest) - self.m)
        below = x // step
        return below * step, (below + 1) * step, below % 2 == 0


@dataclass(frozen=True)
class Fixed:
    """Qi.f, two's complement; with `extra` the sign is not one of the i."""

    i: int
    f: int
    extra: bool = False
    inf = nan = signed_zero = False

    @cached_property
    def most(self) -> tuple[Fraction, Fraction]:
        """The largest magnitude of a positive and of a negative number."""
        top = Two ** (self.i - 1 + self.extra)
        return top - Two**-self.f, top

    def neighbours(self, x: Fraction) -> tuple[Fraction, Fraction, bool]:
        """The numbers below (or at) and above a magnitude, and whether the lower one is the even one."""
        step = Two**-self.f
        below = x // step
        return below * step, (below + 1) * step, below % 2 == 0


Format = Float | Fixed


def exponent(x: Fraction) -> int:
    """floor(log2(x))."""
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess - (Two**guess > x)


def goes_up(x: Fraction, below: Fraction, above: Fraction, even: bool, negative: bool, rounding: "Rounding") -> bool:
    """Whether a magnitude that is no number of the format becomes the larger neighbour."""
    mode, part = rounding.mode, (x - below) / (above - below)
    if mode == "nearest-even":
        return part > Fraction(1, 2) or (part == Fraction(1, 2) and not even)
    if mode == "nearest-away":
        return part >= Fraction(1, 2)
    if mode != "stochastic":
        return {"toward-zero": False, "up": not negative, "down": negative}[mode]
    full = 2**rounding.bits
    if rounding.variant == "A":
        return math.floor(part * full) + rounding.random >= full
    if rounding.variant == "B":
        return math.floor(part * 2 * full) + 2 * rounding.random + 1 >= 2 * full
    return round(part * full) + rounding.random >= full  # Python rounds fractions to nearest, ties to even


@dataclass(frozen=True)
class Rounding:
    """How a number becomes one of a format; `random` is R of `bits` bits."""

    mode: str
    overflow: str
    random: int = 0
    bits: int = 1
    variant: str = "A"


@dataclass
class Counts:
    """What `MacStats` counts beside the multiplications."""

    saturated: int = 0
    overflowed: int = 0
    underflowed: int = 0


def rounded(x: Fraction, format: Format, rounding: Rounding, counts: Counts) -> float:
    """A finite number as one of the format's; -0 for a negative one that becomes zero, where there is a -0."""
    negative, magnitude = x < 0, abs(x)
    below, above, even = format.neighbours(magnitude)
    if below != magnitude and goes_up(magnitude, below, above, even, negative, rounding):
        below = above
    if below > format.most[negative]:
        if rounding.overflow == "saturate":
            counts.saturated += 1
        else:
            counts.overflowed += 1
        inward = rounding.mode == "toward-zero" or rounding.mode == ("up" if negative else "down")
        if rounding.overflow == "wrap":
            period = 2 * format.most[True]
            return float((-below if negative else below) % period - (period if _upper(below, negative, format) else 0))
        if rounding.overflow == "saturate" or inward:
            below = format.most[negative]
        else:
            return math.nan if rounding.overflow == "nan" else math.copysign(math.inf, -negative or 1)
    elif x and not below:
        counts.underflowed += 1
    value = float(below)
    return -value if negative and (value or format.signed_zero) else value


def _upper(magnitude: Fraction, negative: bool, format: Format) -> bool:
    """Whether the bits that are left of a wrapped number have the sign set."""
    half = format.most[True]
    return (-magnitude if negative else magnitude) % (2 * half) >= half


def infinite(value: float, format: Format, overflow: str) -> float:
    """An infinite number as one of the format's."""
    if overflow in ("saturate", "wrap"):
        return math.copysign(float(format.most[value < 0]), value)
    return value if format.inf else math.nan


def cast(value: float, format: Format, nan: str) -> float:
    """An operand: to nearest, ties to even; too large ones are infinite where the format has that."""
    if math.isnan(value):
        if format.nan:
            return math.nan
        if nan == "error" or (nan == "infinity" and not format.inf):
            raise Refused
        return 0.0 if nan == "zero" else math.inf
    overflow = "infinity" if format.inf else "saturate"
    if math.isinf(value):
        return infinite(value, format, overflow)
    if value == 0:
        return value if format.signed_zero else 0.0
    return rounded(Fraction(value), format, Rounding("nearest-even", overflow), Counts())


@dataclass(frozen=True)
class Multiplier:
    """Of floats in a configuration 1 to 6, or of fixed-point numbers with `cfg` 0."""

    a: Format
    b: Format
    cfg: int
    product: Format | None  # None: exact without an end
    rounding: str = "nearest-even"
    flush: str = "after-rounding"
    zero_times_infinity: str = "infinity"

    def __call__(self, x: float, y: float, counts: Counts) -> float | Fraction:
        """What comes out for two operands."""
        if self.cfg == 0:
            exact = Fraction(x) * Fraction(y)
            return exact if self.product is None else rounded(exact, self.product, self._how("saturate"), counts)
        sign = math.copysign(1.0, x) * math.copysign(1.0, y)
        if math.isnan(x) or math.isnan(y):
            return math.nan
        if math.isinf(x) or math.isinf(y):
            if x and y:
                return sign * math.inf
            return math.nan if self.cfg <= 3 else sign * (0.0 if self.zero_times_infinity == "zero" else math.inf)
        if not (x and y):
            return sign * 0.0
        exact = Fraction(x) * Fraction(y)
        assert isinstance(self.product, Float)
        normal = Two ** (1 - self.product.bias)
        if self.cfg <= 2:
            if self.cfg == 2 and self._seen(exact) < normal:
                counts.underflowed += 1
                return sign * 0.0
            return rounded(exact, self.product, self._how("infinity"), counts)
        if abs(exact) > self.product.most[0]:
            counts.overflowed += 1
            return sign * math.inf
        if self.cfg <= 4 and abs(exact) < normal:
            counts.underflowed += 1
            return sign * 0.0
        return exact

    def _how(self, overflow: str) -> Rounding:
        return Rounding(self.rounding, overflow)

    def _seen(self, exact: Fraction) -> Fraction:
        """CFG-2: the magnitude that is held against the smallest normal number."""
        assert isinstance(self.product, Float)
        if self.flush == "before-rounding":
            return abs(exact)
        format = self.product
        if self.flush == "after-rounding":  # in [1, 2), where no exponent is too small
            scale = Two ** exponent(abs(exact))
            wide = Float(8, format.m, 127)
            return abs(Fraction(rounded(exact / scale, wide, self._how("infinity"), Counts()))) * scale
        seen = rounded(exact, format, self._how("saturate"), Counts())
        return abs(Fraction(seen))


@dataclass
class Unit:
    """A multiplier and an accumulator with the unit's fields; sums of products count into `counts`."""

    multiplier: Multiplier
    sums: Format
    order: str = "sequential"
    chunk: int = 0
    rounding: str = "nearest-even"
    overflow: str = "saturate"
    fused: bool = True
    nan: str = "error"
    bits: int = 14
    variant: str = "A"
    counts: Counts = field(default_factory=Counts)

    def dot(self, xs: Sequence[float], ys: Sequence[float], draw: Draw) -> float:
        """The sum of the products of operands that are cast already."""
        products = [self._product(x, y) for x, y in zip(xs, ys, strict=True)]
        return getattr(self, f"_{self.order}")(products, draw)

    def _product(self, x: float, y: float) -> float | Fraction:
        product = self.multiplier(x, y, self.counts)
        if product == product or self.sums.nan:
            return product
        if self.nan == "error":
            raise Refused
        return 0.0 if self.nan == "zero" else math.inf

    def _sequential(self, products: Sequence[float | Fraction], draw: Draw, first: int = 0) -> float:
        total = 0.0
        for k, product in enumerate(products, first):
            if not self.fused:
                product = self._taken_in(product, draw(k))
            total = self._sum(total, product, draw(k))
        return total

    def _chunked(self, products: Sequence[float | Fraction], draw: Draw) -> float:
        total = 0.0
        for c, first in enumerate(range(0, len(products), self.chunk)):
            part = self._sequential(products[first : first + self.chunk], draw, first)
            total = self._sum(total, part, draw(len(products) + c))
        return total

    def _pairwise(self, products: Sequence[float | Fraction], draw: Draw) -> float:
        row = [self._taken_in(product, draw(k)) for k, product in enumerate(products)]
        row = [value or 0.0 for value in row]  # zeros as +0
        level = 0
        while len(row) > 1:
            level += 1
            alone = row[len(row) // 2 * 2 :]
            steps = range(level * len(products), level * len(products) + len(row) // 2)
            row = [self._sum(x, y, draw(n)) for x, y, n in zip(row[::2], row[1::2], steps, strict=False)] + alone
        return row[0] if row else 0.0

    def _kahan(self, products: Sequence[float | Fraction], draw: Draw) -> float:
        total = lost = 0.0
        for k, product in enumerate(products):
            if not self.fused:
                product = self._taken_in(product, draw(4 * k))
            y = self._sum(product, -lost, draw(4 * k))
            t = self._sum(total, y, draw(4 * k + 1))
            lost = self._sum(self._sum(t, -total, draw(4 * k + 2)), -y, draw(4 * k + 3))
            total = t
        return total

    def _exact(self, products: Sequence[float | Fraction], draw: Draw) -> float:
        if any(product != product for product in products):
            return math.nan
        endless = [float(product) for product in products if abs(product) == math.inf]
        if endless:
            if self.sums.nan and len(set(endless)) > 1:
                return math.nan
            return endless[0] if self.sums.inf else infinite(endless[0], self.sums, self.overflow)
        exact = sum(map(Fraction, products), Fraction(0))
        return rounded(exact, self.sums, self._how(draw(0)), self.counts)

    def _how(self, random: int) -> Rounding:
        return Rounding(self.rounding, self.overflow, random, self.bits, self.variant)

    def _taken_in(self, product: float | Fraction, random: int) -> float:
        """The product as a number of the accumulator: what the converter gives, or separate rounding."""
        if product != product:
            return math.nan
        if abs(product) == math.inf:
            return float(product) if self.sums.inf else infinite(float(product), self.sums, self.overflow)
        if not product:
            return float(product) if self.sums.signed_zero else 0.0
        return rounded(Fraction(product), self.sums, self._how(random), self.counts)

    def _sum(self, x: float | Fraction, y: float | Fraction, random: int) -> float:
        """acc + product: the exact sum, one rounding; of fixed-point numbers nothing is left to round."""
        if x != x or y != y:
            return math.nan
        ends = [float(value) for value in (x, y) if abs(value) == math.inf]
        if len(set(ends)) == 2:
            return math.nan if self.sums.nan else float(x)
        if ends:
            return ends[0] if self.sums.inf else infinite(ends[0], self.sums, self.overflow)
        exact = Fraction(x) + Fraction(y)
        if not exact:
            both = not x and not y and math.copysign(1.0, float(x)) < 0 and math.copysign(1.0, float(y)) < 0
            return -0.0 if both and self.sums.signed_zero else 0.0
        return rounded(exact, self.sums, self._how(random), self.counts)


# ---- random bits, after docs/numerics.md and the words of shoal/numerics/rounding/randomness.py ---------------


def random_bits(seed: int, call: int, output: int, bits: int) -> Draw:
    """R of each step of an output's sum."""
    state = _mix64(_mix64(_mix64(seed) ^ _mix64(call + _GOLDEN)) ^ _mix64(_GOLDEN))
    second = _mix64(state + _GOLDEN)
    own = _hash(output, state >> 32, state % 2**32)

    def draw(step: int) -> int:
        both = step if bits > 16 else step // 2
        word = _finish(_turn(own ^ _hash(both, second >> 32, second % 2**32)))
        if bits > 16:
            return word >> (32 - bits)
        return (word % 2**16 if step % 2 else word >> 16) >> (16 - bits)

    return draw


_GOLDEN = 0x9E3779B97F4A7C15


def _mix64(x: int) -> int:
    """The finaliser of splitmix64."""
    x %= 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def _turn(x: int) -> int:
    return (x ^ x >> 16) * 0x7FEB352D % 2**32


def _finish(x: int) -> int:
    x = (x ^ x >> 15) * 0x846CA68B % 2**32
    return x ^ x >> 16


def _hash(index: int, before: int, between: int) -> int:
    return _finish(_turn(index % 2**32 ^ before) ^ between)
