"""Uniform affine quantization: real numbers as few whole ones, and what is lost.

A `Scheme` says how; `codes` gives real integer codes, `simulate` the numbers that come back from them.

    paper      round(W / d) * d with d = (|min(W, 0)| + |max(W, 0)|) / 2^n: no zero point, no clamp. It has 2^n + 1
               codes, so it is for simulated error only.
    standard   symmetric: d = max|W| / (2^(n-1) - 1), codes -(2^(n-1) - 1) to 2^(n-1) - 1, 0 is 0;
               asymmetric: d = (max(W, 0) - min(W, 0)) / (2^n - 1), codes 0 to 2^n - 1, 0 is the code `zero`.

Ties go to the even code. The scale is a number of the tensor's own type; given it, codes of float32 tensors are exact:
their quotients are taken in float64, which is too fine for one to be rounded onto a tie that it is not.
Where d is 0 (a tensor of zeros, or one whose d is below the smallest number) nothing is quantized: numbers pass as they
are, and codes are those of 0 with a scale of 1. NaN and infinities are refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shoal.errors import UserError, check_choice, check_range

Style = Literal["standard", "paper"]
STYLES: tuple[Style, ...] = ("standard", "paper")
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
SHORT = {"fp16": "float16", "bf16": "bfloat16"}
LEAST_BITS, MOST_BITS = 2, 16


@dataclass(frozen=True)
class Scheme:
    """How numbers are quantized: to integers of `bits`, or to the values of a number format."""

    bits: int = 8
    style: Style = "standard"
    symmetric: bool = True
    """Standard style: zero in the middle of the codes, or wherever the range wants it."""
    per_channel: bool | None = None
    """One scale an output; False: one a tensor (of each network, where several are stacked); None: per channel for
    convolutions only, as the paper has it."""
    format: str | None = None
    """float16, bfloat16 or any format of `shoal.numerics` by name (E4M3, Q4.4) in place of integers."""

    def __post_init__(self) -> None:
        check_choice("style", self.style, STYLES)
        if self.format is None:
            check_range("bits", self.bits, LEAST_BITS, MOST_BITS)
        elif self.format in SHORT:
            object.__setattr__(self, "format", SHORT[self.format])
        elif self.format not in HALVES:
            from shoal.numerics import parse

            parse(self.format)  # or a sentence

    @property
    def width(self) -> int:
        """Bits of one number as it is stored."""
        if self.format is None:
            return self.bits
        if self.format in HALVES:
            return 16
        from shoal.numerics import BlockFormat, parse

        found = parse(self.format)
        return (found.element if isinstance(found, BlockFormat) else found).width

    def shared(self, shape: torch.Size) -> int:
        """How many exponents the blocks of a tensor have, where the format has blocks."""
        if self.format is None or self.format in HALVES:
            return 0
        from shoal.numerics import BlockFormat, parse
        from shoal.numerics.rounding.blocks import tiles

        if not isinstance(found := parse(self.format), BlockFormat):
            return 0
        (groups, rows, columns), (high, wide) = tiles(found, shape)
        return groups * -(-rows // high) * -(-columns // wide)

    @property
    def lowest(self) -> int:
        """The lowest code of the standard style."""
        return -self.highest if self.symmetric else 0

    @property
    def highest(self) -> int:
        """The highest code of the standard style."""
        return 2 ** (self.bits - 1) - 1 if self.symmetric else 2**self.bits - 1

    @property
    def code_type(self) -> torch.dtype:
        """The smallest integers that hold the codes of the standard style."""
        if self.symmetric:
            return torch.int8 if self.bits <= 8 else torch.int16
        return torch.uint8 if self.bits <= 8 else torch.uint16

    @property
    def label(self) -> str:
        """What a table calls it."""
        return self.format or f"{self.bits} bits"


@dataclass(frozen=True, eq=False)
class Codes:
    """Integers and what they stand for: value = scale * (code - zero)."""

    codes: Tensor
    scale: Tensor
    zero: Tensor

    def values(self) -> Tensor:
        """The real numbers, each rounded once."""
        return _finite((self.codes.double() - self.zero) * self.scale.double(), self.scale.dtype)


def check_finite(what: str, x: Tensor) -> None:
    """Refuse numbers that no code can stand for."""
    if not bool(torch.isfinite(x).all()):
        kind = "NaN" if bool(torch.isnan(x).any()) else "infinity"
        raise UserError(f"{what} has {kind} among its numbers, which no code stands for: the model is damaged.")


def value_range(x: Tensor, keep: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """min(x, 0) and max(x, 0) over all axes but those in `keep`, which stay as axes of the result."""
    axes = [axis for axis in range(x.dim()) if axis not in keep]
    low, high = (x.amin(axes, keepdim=True), x.amax(axes, keepdim=True)) if axes else (x, x)
    return low.clamp(max=0), high.clamp(min=0)


def scale_of(low: Tensor, high: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """The scale d, 0 where there is nothing to scale, and the code of zero."""
    if scheme.style == "standard" and scheme.symmetric:
        scale = symmetric_scale(torch.maximum(-low, high), scheme)
        return scale, torch.zeros_like(scale)
    wide = low.double()
    span = high.double() - wide
    if scheme.style == "paper":
        scale = (span / 2**scheme.bits).to(low.dtype)
        return scale, torch.zeros_like(scale)
    scale = (span / scheme.highest).to(low.dtype)
    zero = torch.round(-wide / _nonzero(scale).double()).clamp(0, scheme.highest)
    return scale, zero.to(torch.promote_types(low.dtype, torch.float32))  # which holds every code


def symmetric_scale(most: Tensor, scheme: Scheme) -> Tensor:
    """The scale d of numbers up to this magnitude on both sides."""
    return (most.double() / scheme.highest).to(most.dtype)


def codes(x: Tensor, scheme: Scheme, keep: Sequence[int] = ()) -> Codes:
    """The integer codes of a tensor, with one scale for each index of the axes in `keep`."""
    if scheme.format is not None or scheme.style == "paper":
        raise UserError(f"Only the standard style has integer codes, not {scheme.format or 'the paper style'}.")
    check_finite("The tensor", x)
    scale, zero = scale_of(*value_range(x, keep), scheme)
    scale = _nonzero(scale)
    return Codes(_rounded(x, scale, zero, scheme).to(scheme.code_type), scale, zero)


def simulate(
    x: Tensor, scheme: Scheme, keep: Sequence[int] = (), ranges: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """The tensor as it comes back from its codes; `ranges` are its ends, if they are not to be taken from itself."""
    if scheme.format is not None:
        return _in_format(x, scheme.format)
    scale, zero = scale_of(*(value_range(x, keep) if ranges is None else ranges), scheme)
    divisor = _nonzero(scale)
    values = (_rounded(x, divisor, zero, scheme) - zero) * divisor.double()
    return torch.where(scale > 0, _finite(values, x.dtype), x)


def stored_bytes(numbers: int, scales: int, scheme: Scheme | None) -> int:
    """Bytes of this many numbers with this many scales, the codes packed bit by bit; None: float32.

    A scale takes 4 bytes, the exponent that a block of a format shares takes 1, and the code of zero as many as a code.
    The paper's style counts n bits, as the paper does.
    """
    if scheme is None:
        return 4 * numbers
    packed = (numbers * scheme.width + 7) // 8
    if scheme.format is not None:
        return packed + scales
    zeros = 0 if scheme.symmetric or scheme.style == "paper" else scales * (1 if scheme.bits <= 8 else 2)
    return packed + 4 * scales + zeros


def _rounded(x: Tensor, scale: Tensor, zero: Tensor, scheme: Scheme) -> Tensor:
    """The codes in float64, where they are exact."""
    rounded = torch.round(x.double() / scale.double())  # ties to even
    if scheme.style == "paper":
        return rounded
    return (rounded + zero).clamp(scheme.lowest, scheme.highest)


def _finite(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of this type; where the outermost codes stand for more than its largest number, that."""
    most = torch.finfo(dtype).max
    return values.clamp(-most, most).to(dtype)


def _nonzero(scale: Tensor) -> Tensor:
    return torch.where(scale > 0, scale, 1.0)


def _in_format(x: Tensor, name: str) -> Tensor:
    """Values of a number format; what is beyond the largest becomes the largest."""
    if name in HALVES:
        most = torch.finfo(HALVES[name]).max
        return x.clamp(-most, most).to(HALVES[name]).to(x.dtype)
    from shoal.numerics import quantize

    return quantize(x.contiguous(), name, overflow="saturate").to(x.dtype)
