"""Uniform affine quantization of tensors: integer codes, and simulated quantization error.

A `Quantizer` says how; `codes` returns integer codes, `simulate` the dequantized values. The grids are those of
`shoal.inference.grid`. The paper style has 2^n + 1 codes, so it is for simulation only.

The scale has the tensor's own dtype; given the scale, codes of float32 tensors are exact: quotients are computed in
float64, where none can be rounded onto a tie. Where the range is too narrow for a scale (a tensor of zeros, or nearly
so) nothing is quantized: values pass unchanged, and codes are those of 0 with a scale of 1. NaN and infinities are
refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.errors import UserError
from shoal.inference.grid import Grid, fields, value_range
from shoal.quantization.quantizer import HALVES, Quantizer


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


def codes(x: Tensor, quantizer: Quantizer, keep: Sequence[int] = ()) -> Codes:
    """The integer codes of a tensor, with one scale per index of the axes in `keep`."""
    if quantizer.format is not None or quantizer.style == "paper":
        raise UserError(f"Only the standard style has integer codes, not {quantizer.format or 'the paper style'}.")
    check_finite("The tensor", x)
    grid = Grid.of_numbers(x, quantizer.bits, quantizer.kind, keep)
    return Codes(grid.encode(x.double()), grid)


def simulate(
    x: Tensor, quantizer: Quantizer, keep: Sequence[int] = (), ranges: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Quantize and dequantize a tensor; `ranges` are its (low, high), by default taken from the tensor itself."""
    if quantizer.format is not None:
        if quantizer.format in HALVES:
            return _finite(x, getattr(torch, quantizer.format)).to(x.dtype)
        from shoal.numerics import quantize

        return quantize(x.contiguous(), quantizer.format, overflow="saturate").to(x.dtype)
    low, high = value_range(x, keep) if ranges is None else ranges
    grid = Grid.of_range(low, high, quantizer.bits, quantizer.kind)
    narrow = _finite(grid.round(x.double()), x.dtype)
    return torch.where(grid.scale <= high - low, narrow, x)  # a range narrower than one step is not quantized


def stored_bytes(numbers: int, scales: int, quantizer: Quantizer | None) -> int:
    """Bytes of this many values with this many scales, the codes packed as in exported files; None: float32.

    Codes of 2 to 7 bits are in fields of 4, 2 and 1 bits that fill whole bytes, others bit by bit. A scale takes 4
    bytes, a shared exponent of a block format 1, and a zero point as many as a code. The paper style
    counts n bits, as the paper does.
    """
    if quantizer is None:
        return 4 * numbers
    whole = quantizer.format is not None or quantizer.style == "paper" or quantizer.bits > 7
    packed = sum((numbers * width + 7) // 8 for width in ([quantizer.width] if whole else fields(quantizer.bits)))
    if quantizer.format is not None:
        return packed + scales
    zeros = 0 if quantizer.symmetric or quantizer.style == "paper" else scales * (1 if quantizer.bits <= 8 else 2)
    return packed + 4 * scales + zeros


def _finite(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The values in this dtype, clamped to its largest finite number."""
    most = torch.finfo(dtype).max
    return values.clamp(-most, most).to(dtype)
