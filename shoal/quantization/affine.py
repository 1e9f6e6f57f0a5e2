"""Uniform affine quantization of tensors: integer codes, and simulated quantization error.

A `Scheme` says how; `codes` returns integer codes, `simulate` the dequantized values. The grids are those of
`shoal.inference.grid`. The paper style has 2^n + 1 codes, so it is for simulation only.

The scale has the tensor's own dtype; given the scale, codes of float32 tensors are exact: quotients are computed in
float64, where none can be rounded onto a tie. Where the range is too narrow for a scale (a tensor of zeros, or nearly
so) nothing is quantized: values pass unchanged, and codes are those of 0 with a scale of 1. NaN and infinities are
refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shoal.errors import UserError, check_choice, check_range
from shoal.inference.codes import fields
from shoal.inference.grid import Grid, GridKind, value_range

Style = Literal["standard", "paper"]
STYLES: tuple[Style, ...] = ("standard", "paper")
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
SHORT = {"fp16": "float16", "bf16": "bfloat16"}
LEAST_BITS, MOST_BITS = 2, 16


@dataclass(frozen=True)
class Scheme:
    """How values are quantized: to integers of `bits`, or to a number format."""

    bits: int = 8
    style: Style = "standard"
    symmetric: bool = True
    """Standard style: symmetric around zero, or with a zero point that the range determines."""
    per_channel: bool | None = None
    """One scale per output channel; False: one per tensor (of each network, where several are stacked); None: per
    channel for convolutions only, as in the paper."""
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

            parse(self.format)  # raises a UserError

    @property
    def width(self) -> int:
        """Bits per stored value."""
        if self.format is None:
            return self.bits
        if self.format in HALVES:
            return 16
        from shoal.numerics import BlockFormat, parse

        found = parse(self.format)
        return (found.element if isinstance(found, BlockFormat) else found).width

    def shared(self, shape: torch.Size) -> int:
        """Number of shared exponents of a tensor, where the format has blocks."""
        if self.format is None or self.format in HALVES:
            return 0
        from shoal.numerics import BlockFormat, parse
        from shoal.numerics.rounding.blocks import tiles

        if not isinstance(found := parse(self.format), BlockFormat):
            return 0
        (groups, rows, columns), (high, wide) = tiles(found, shape)
        return groups * -(-rows // high) * -(-columns // wide)

    @property
    def kind(self) -> GridKind:
        """The kind of grid."""
        if self.style == "paper":
            return "paper"
        return "symmetric" if self.symmetric else "asymmetric"

    @property
    def label(self) -> str:
        """Its name in tables."""
        return self.format or f"{self.bits} bits"


@dataclass(frozen=True, eq=False)
class Codes:
    """Integer codes and their grid."""

    codes: Tensor
    grid: Grid

    def values(self) -> Tensor:
        """The dequantized values, each rounded once."""
        return _finite(self.grid.values(self.codes.double()), self.grid.scale.dtype)


def check_finite(what: str, x: Tensor) -> None:
    """Refuse NaN and infinities, which have no code."""
    if not bool(torch.isfinite(x).all()):
        kind = "NaN" if bool(torch.isnan(x).any()) else "infinity"
        raise UserError(f"{what} has {kind} among its values, which cannot be quantized: the model is damaged.")


def codes(x: Tensor, scheme: Scheme, keep: Sequence[int] = ()) -> Codes:
    """The integer codes of a tensor, with one scale per index of the axes in `keep`."""
    if scheme.format is not None or scheme.style == "paper":
        raise UserError(f"Only the standard style has integer codes, not {scheme.format or 'the paper style'}.")
    check_finite("The tensor", x)
    grid = Grid.of_numbers(x, scheme.bits, scheme.kind, keep)
    return Codes(grid.encode(x.double()), grid)


def simulate(
    x: Tensor, scheme: Scheme, keep: Sequence[int] = (), ranges: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Quantize and dequantize a tensor; `ranges` are its (low, high), by default taken from the tensor itself."""
    if scheme.format is not None:
        return _in_format(x, scheme.format)
    low, high = value_range(x, keep) if ranges is None else ranges
    grid = Grid.of_range(low, high, scheme.bits, scheme.kind)
    narrow = _finite(grid.round(x.double()), x.dtype)
    return torch.where(grid.scale <= high - low, narrow, x)  # a range narrower than one step is not quantized


def stored_bytes(numbers: int, scales: int, scheme: Scheme | None) -> int:
    """Bytes of this many values with this many scales, the codes packed as in exported files; None: float32.

    Codes of 2 to 7 bits are in fields of 4, 2 and 1 bits that fill whole bytes, others bit by bit. A scale takes 4
    bytes, a shared exponent of a block format 1, and a zero point as many as a code. The paper style
    counts n bits, as the paper does.
    """
    if scheme is None:
        return 4 * numbers
    whole = scheme.format is not None or scheme.style == "paper" or scheme.bits > 7
    packed = sum((numbers * width + 7) // 8 for width in ([scheme.width] if whole else fields(scheme.bits)))
    if scheme.format is not None:
        return packed + scales
    zeros = 0 if scheme.symmetric or scheme.style == "paper" else scales * (1 if scheme.bits <= 8 else 2)
    return packed + 4 * scales + zeros


def _finite(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The values in this dtype, clamped to its largest finite number."""
    most = torch.finfo(dtype).max
    return values.clamp(-most, most).to(dtype)


def _in_format(x: Tensor, name: str) -> Tensor:
    """Round to a number format, saturating at its largest value."""
    if name in HALVES:
        most = torch.finfo(HALVES[name]).max
        return x.clamp(-most, most).to(HALVES[name]).to(x.dtype)
    from shoal.numerics import quantize

    return quantize(x.contiguous(), name, overflow="saturate").to(x.dtype)
