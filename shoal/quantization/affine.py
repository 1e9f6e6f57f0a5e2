"""Uniform affine quantization: real numbers as few whole ones, and what is lost.

A `Scheme` says how; `codes` gives real integer codes, `simulate` the numbers that come back from them. The grids are
those of `shoal.inference.grid`. The paper style has 2^n + 1 codes, so it is for simulated error only.

The scale is a number of the tensor's own type; given it, codes of float32 tensors are exact: their quotients are taken
in float64, which is too fine for one to be rounded onto a tie that it is not.
Where the range is too narrow for a scale (a tensor of zeros, or next to it) nothing is quantized: numbers pass as they
are, and codes are those of 0 with a scale of 1. NaN and infinities are refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shoal.errors import UserError, check_choice, check_range
from shoal.inference.grid import Grid, Kind, value_range

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
    def kind(self) -> Kind:
        """Which kind of grid."""
        if self.style == "paper":
            return "paper"
        return "symmetric" if self.symmetric else "asymmetric"

    @property
    def label(self) -> str:
        """What a table calls it."""
        return self.format or f"{self.bits} bits"


@dataclass(frozen=True, eq=False)
class Codes:
    """Integers and the grid that they are the codes of."""

    codes: Tensor
    grid: Grid

    def values(self) -> Tensor:
        """The real numbers, each rounded once."""
        return _finite(self.grid.values(self.codes.double()), self.grid.scale.dtype)


def check_finite(what: str, x: Tensor) -> None:
    """Refuse numbers that no code can stand for."""
    if not bool(torch.isfinite(x).all()):
        kind = "NaN" if bool(torch.isnan(x).any()) else "infinity"
        raise UserError(f"{what} has {kind} among its numbers, which no code stands for: the model is damaged.")


def codes(x: Tensor, scheme: Scheme, keep: Sequence[int] = ()) -> Codes:
    """The integer codes of a tensor, with one scale for each index of the axes in `keep`."""
    if scheme.format is not None or scheme.style == "paper":
        raise UserError(f"Only the standard style has integer codes, not {scheme.format or 'the paper style'}.")
    check_finite("The tensor", x)
    grid = Grid.of_numbers(x, scheme.bits, scheme.kind, keep)
    return Codes(grid.encode(x.double()), grid)


def simulate(
    x: Tensor, scheme: Scheme, keep: Sequence[int] = (), ranges: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """The tensor as it comes back from its codes; `ranges` are its ends, if they are not to be taken from itself."""
    if scheme.format is not None:
        return _in_format(x, scheme.format)
    low, high = value_range(x, keep) if ranges is None else ranges
    grid = Grid.of_range(low, high, scheme.bits, scheme.kind)
    narrow = _finite(grid.round(x.double()), x.dtype)
    return torch.where(grid.scale <= high - low, narrow, x)  # a range that is narrower than one step is none


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


def _finite(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of this type; where the outermost codes stand for more than its largest number, that."""
    most = torch.finfo(dtype).max
    return values.clamp(-most, most).to(dtype)


def _in_format(x: Tensor, name: str) -> Tensor:
    """Values of a number format; what is beyond the largest becomes the largest."""
    if name in HALVES:
        most = torch.finfo(HALVES[name]).max
        return x.clamp(-most, most).to(HALVES[name]).to(x.dtype)
    from shoal.numerics import quantize

    return quantize(x.contiguous(), name, overflow="saturate").to(x.dtype)
