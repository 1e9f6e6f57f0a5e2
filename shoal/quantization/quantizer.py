"""How values are quantized, as a value, and the words that name it; imports no torch, so mistakes are found at once."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shoal.errors import UserError, check_choice, check_range

if TYPE_CHECKING:
    import torch

    from shoal.inference.grid import GridKind

Style = Literal["standard", "paper"]
STYLES: tuple[Style, ...] = ("standard", "paper")
HALVES = ("float16", "bfloat16")
SHORT = {"fp16": "float16", "bf16": "bfloat16"}
LEAST_BITS, MOST_BITS = 2, 16
What = Literal["weights", "activations", "both"]
WHAT: tuple[What, ...] = ("weights", "activations", "both")


@dataclass(frozen=True)
class Quantizer:
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

        number = parse(self.format)
        return (number.element if isinstance(number, BlockFormat) else number).width

    def shared(self, shape: "torch.Size") -> int:
        """Number of shared exponents of a tensor, where the format has blocks."""
        if self.format is None or self.format in HALVES:
            return 0
        from shoal.numerics import BlockFormat, parse
        from shoal.numerics.rounding.blocks import tiles

        if not isinstance(number := parse(self.format), BlockFormat):
            return 0
        (groups, rows, columns), (high, wide) = tiles(number, shape)
        return groups * -(-rows // high) * -(-columns // wide)

    @property
    def kind(self) -> "GridKind":
        if self.style == "paper":
            return "paper"
        return "symmetric" if self.symmetric else "asymmetric"

    @property
    def label(self) -> str:
        """Its name in tables."""
        return self.format or f"{self.bits} bits"


Scheme = Quantizer  # its name before version 0.2


@dataclass(frozen=True)
class Width:
    """A precision, under the name that it has in tables."""

    name: str
    quantizer: Quantizer | None  # None: float32

    @property
    def bits(self) -> int:
        return 32 if self.quantizer is None else self.quantizer.width


def named_width(
    word: str, style: Style = "standard", symmetric: bool = True, per_tensor: bool = False, name: str = "bits"
) -> Width:
    """Parse a width: a number of bits, or a number format.

    The paper style has one scale per layer, but one per channel in convolutions.
    """
    if word in ("32", "float32", "fp32"):
        return Width("float32", None)
    per_channel = None if style == "paper" else not per_tensor
    if re.fullmatch(r"-?[0-9]{1,9}", word):
        if not LEAST_BITS <= int(word) <= MOST_BITS:
            raise UserError(f"`{name}` is {word}, but must be from {LEAST_BITS} to {MOST_BITS}, or 32 for float32.")
        quantizer = Quantizer(int(word), style, symmetric, per_channel)
    else:
        try:
            quantizer = Quantizer(style=style, format=word)
        except UserError as error:
            raise UserError(f"`{name}` '{word}' is neither a number of bits nor a number format: {error}") from None
    return Width(quantizer.label, quantizer)
