"""A cast: a number format and how tensors are rounded to it, as a frozen value."""

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from shoal.errors import UserError, check_choice, check_range, whole_number
from shoal.numerics.formats.notation import fields_after_commas, parse
from shoal.numerics.formats.types import BlockFormat, FixedFormat, FloatFormat, Format, Scalar, truth
from shoal.numerics.rounding.plan import FLOAT32, ROUNDINGS, VARIANTS, check_rules, fits

EXAMPLES = "'E5M2', 'E4M3/tensor, rounding=stochastic' and 'E6M9, overflow=saturate' are examples"


@dataclass(frozen=True, repr=False)
class Cast:
    """Rounding of a tensor to a format; the result is float32.

    NaN becomes infinite where the format has infinities but no NaN, and zero where it has neither.
    """

    format: Format
    rounding: str = "nearest-even"
    """`nearest-even`, `nearest-away`, `toward-zero`, `up`, `down`, `stochastic` or, for weights, `hysteresis`."""
    overflow: str | None = None
    """`infinity` (the default where the format has it), `saturate` (elsewhere, and for blocks), `nan` or `wrap`."""
    random_bits: int | None = None
    """Stochastic: number of random bits; by default as many as there are."""
    variant: str = "A"
    """Stochastic: `A`, `B` or `C`."""
    start: str = "nearest-even"
    """Hysteresis: the first rounding, `nearest-even` or `down`."""
    squeeze: bool = False
    """S2FP8: shift and squeeze the logarithms of the tensor's magnitudes into the format's range before rounding, and
    undo it afterwards."""

    def __post_init__(self) -> None:
        named: object = self.format
        if isinstance(named, str):
            object.__setattr__(self, "format", parse(named))
        if not isinstance(self.format, FloatFormat | FixedFormat | BlockFormat):
            raise UserError(f"A cast needs a number format or its name, not {named!r}.")
        check_choice("rounding", self.rounding, ROUNDINGS)
        check_choice("variant", self.variant, VARIANTS)
        check_choice("start", self.start, ("nearest-even", "down"))
        truth("squeeze", self.squeeze)
        check_rules(self.element, self.rounding, self.overflow, "round", self.nan)
        if self.random_bits is not None:
            check_range("random_bits", whole_number("random_bits", self.random_bits), 1, 30)
        if not fits(self.element, FLOAT32):
            raise UserError(f"{self.format} has values that float32 cannot represent; tensors in training are float32.")
        if self.squeeze and (isinstance(self.format, BlockFormat) or not isinstance(self.format, FloatFormat)):
            raise UserError(f"squeeze is for floating-point formats without blocks, not for {self.format}.")
        if self.overflow == "wrap":
            raise UserError("A cast in training does not wrap around; choose overflow=saturate.")

    @property
    def element(self) -> Scalar:
        """The format of a single number."""
        return self.format.element if isinstance(self.format, BlockFormat) else self.format

    @property
    def shares(self) -> str:
        """What shares a power of two: nothing (empty), the whole `tensor`, or `blocks` of a matrix."""
        if not isinstance(self.format, BlockFormat):
            return ""
        return "tensor" if self.format.over == "tensor" else "blocks"

    @property
    def run(self) -> int | None:
        """Numbers of a row that share a power of two; None: all of them."""
        over = self.format.over if isinstance(self.format, BlockFormat) else "row"
        return None if isinstance(over, str) else over[-1] if isinstance(over, tuple) else over

    @property
    def nan(self) -> str:
        """What NaN becomes where the format has none."""
        return "infinity" if isinstance(self.element, FloatFormat) and self.element.infinities else "zero"

    def __repr__(self) -> str:
        """The format, then fields that differ from their defaults after commas; `parse_cast` reads it."""
        different = [field for field in fields(self)[1:] if getattr(self, field.name) != field.default]
        return f"{self.format!r}" + "".join(f", {field.name}={getattr(self, field.name)}" for field in different)


@lru_cache(maxsize=512)
def parse_cast(text: str) -> Cast:
    """Parse `E5M2, rounding=stochastic`."""
    name, options = fields_after_commas(text, EXAMPLES)
    known = [field.name for field in fields(Cast)[1:]]
    for option in options:
        check_choice("The field of a cast", option, known)
    chosen: dict[str, Any] = dict(options)
    return Cast(parse(name), **chosen)
